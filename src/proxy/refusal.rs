//! Every way in which a request can fail to be answered by a backend.

use super::settle::End;
use crate::clock::Micros;
use crate::config::model::Priority;
use crate::metrics::Refused;
use crate::overload::Shed;
use crate::token::TokenError;
use http::{HeaderValue, StatusCode};

/// Why a request is not answered by a backend. [`respond`](super::respond) turns it into a
/// response; nothing else does.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Two readers could understand it differently, or it breaks the protocol's rules.
    #[error("bad request: {0}")]
    Malformed(&'static str),
    /// Its head has more fields than are taken.
    #[error("too many header fields")]
    TooManyHeaders,
    /// Its target is longer than is taken.
    #[error("the target is too long")]
    UriTooLong,
    /// It has been here already: it would go round and round.
    #[error("the request has come back to this gateway")]
    Loop,
    /// CONNECT and TRACE are not for gateways.
    #[error("the method is not for gateways")]
    MethodRefused,
    /// Nothing answers here.
    #[error("no route")]
    NoRoute,
    /// The path is known, the method is not.
    #[error("method not allowed")]
    MethodNotAllowed(HeaderValue),
    /// A credential is missing.
    #[error("{} required", .0.name())]
    Missing(Credential),
    /// An API key that nobody was given.
    #[error("unknown API key")]
    UnknownKey,
    /// A token that is not believed.
    #[error("{0}")]
    BadToken(#[from] TokenError),
    /// A limit of the caller's own.
    #[error("limited")]
    Limited {
        /// How long the caller must wait.
        retry_after: Micros,
    },
    /// They ignored too many 429s.
    #[error("banned by {limit}")]
    Banned {
        /// The limit whose rejects they ignored.
        limit: String,
        /// How long it lasts.
        retry_after: Micros,
    },
    /// A limit of the system's.
    #[error("limited for everybody")]
    SystemLimited {
        /// When to come back.
        retry_after: Micros,
    },
    /// A limit does not want to go on while the shared store is away.
    #[error("the store is away")]
    StoreAway,
    /// There is more to do than can be done, and this is not what is done first.
    #[error("overloaded: {}", .why.reason())]
    Overloaded {
        /// What there is too much of.
        why: Shed,
        /// How important it was.
        priority: Priority,
    },
    /// No endpoint of the upstream can be asked.
    #[error("no endpoint is in service")]
    NoEndpoint,
    /// The body is larger than the route takes.
    #[error("body too large")]
    TooLarge,
    /// The caller stopped sending the body.
    #[error("the caller stopped sending")]
    Stalled,
    /// The backend could not be reached, or what it said makes no sense.
    #[error("bad gateway: {0}")]
    BadGateway(String),
    /// The backend took too long.
    #[error("gateway timeout")]
    GatewayTimeout,
}

/// What a caller can present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A bearer token, or a trusted proxy's word.
    User,
    /// An API key.
    ApiKey,
    /// One of the two.
    Either,
}

impl Credential {
    fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::ApiKey => "API key",
            Self::Either => "user or API key",
        }
    }
}

impl Refusal {
    /// The status that says it.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::TooManyHeaders => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::MethodRefused | Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Missing(_) | Self::UnknownKey | Self::BadToken(_) => StatusCode::UNAUTHORIZED,
            Self::Limited { .. } | Self::Banned { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::SystemLimited { .. }
            | Self::StoreAway
            | Self::Overloaded { .. }
            | Self::NoEndpoint => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Stalled => StatusCode::REQUEST_TIMEOUT,
            Self::BadGateway(_) => StatusCode::BAD_GATEWAY,
            Self::GatewayTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// What it means for costs; `sent`: a backend had something of the request.
    pub(super) fn end(&self, sent: bool) -> End {
        match self {
            Self::BadGateway(_)
            | Self::GatewayTimeout
            | Self::NoEndpoint
            | Self::Overloaded { .. }
                if !sent =>
            {
                End::Unreached
            }
            Self::BadGateway(_) | Self::NoEndpoint | Self::Overloaded { .. } | Self::StoreAway
                if sent =>
            {
                End::NoAnswer
            }
            // The client, or the time that it has, ended the request.
            _ if sent => End::Left,
            _ => End::Refused,
        }
    }

    /// Whether the connection cannot be trusted to be in step any more.
    pub fn closes(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::MethodRefused | Self::TooLarge | Self::Stalled)
    }

    /// Which guard of the edge it was, if it was one.
    pub fn guard(&self) -> Option<Refused> {
        match self {
            Self::Malformed(_) | Self::MethodRefused => Some(Refused::BadRequest),
            Self::UriTooLong => Some(Refused::UriTooLong),
            Self::Loop => Some(Refused::Loop),
            Self::TooManyHeaders => Some(Refused::TooManyHeaders),
            Self::TooLarge => Some(Refused::BodyTooLarge),
            Self::Stalled => Some(Refused::BodyTimeout),
            _ => None,
        }
    }

    /// Whether it is the caller who has asked for too much.
    pub fn is_own(&self) -> bool {
        matches!(self, Self::Limited { .. } | Self::Banned { .. })
    }

    /// Whether a limit or a gate said no, for the access log's sampling.
    pub fn is_rejection(&self) -> bool {
        matches!(
            self,
            Self::Limited { .. }
                | Self::Banned { .. }
                | Self::SystemLimited { .. }
                | Self::Overloaded { .. }
        )
    }
}
