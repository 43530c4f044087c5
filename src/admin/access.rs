//! Who may use the admin listener.
//!
//! With a token, whoever presents it: as a bearer token, or as the password of HTTP Basic, which is
//! how a browser comes to the dashboard. It is compared in constant time, and guesses are limited by
//! address: beyond the limit nobody from there is listened to, not even with the right one, or the
//! limit would be none.
//!
//! A browser carries credentials, and reaches loopback, for any page that asks it to. So what changes
//! something must come from the dashboard itself or from no page at all, and without a token the
//! gateway must be called by its address: a name could be anybody's.

use super::{Answer, ApiError, Operator};
use crate::gateway::Gateway;
use crate::limit::{Quota, Rate};
use crate::proxy::address::cut;
use crate::proxy::judge::retry_after_seconds;
use crate::proxy::via::PSEUDONYM;
use crate::store::{Charge, LimitId, Memory, Part, Subject};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HOST, ORIGIN, RETRY_AFTER, VIA, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, StatusCode};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;

/// What the operator must present; a reload may change it.
pub type Token = Arc<Mutex<Option<String>>>;

/// Guesses that an address has, and in how long they come back.
const GUESSES: Rate = Rate { count: 10, window: 60_000_000 };

/// Addresses whose guesses are remembered.
const ADDRESSES: usize = 100_000;

/// Who may.
pub(super) struct Access {
    gateway: Arc<Gateway>,
    token: Token,
    guesses: Memory,
    limit: LimitId,
    quota: Option<Quota>,
}

/// Why somebody may not.
#[derive(Debug)]
pub(super) enum Refusal {
    /// No token, or a wrong one.
    Unauthorized,
    /// Too many wrong ones: so many seconds to wait.
    TooManyGuesses(u64),
    /// A page of somebody else's, or a name that could be.
    Foreign(&'static str),
}

impl Refusal {
    pub(super) fn answer(&self) -> Answer {
        match self {
            Self::Unauthorized => {
                let message = "present the token: Authorization: Bearer TOKEN";
                let mut answer = ApiError::new(StatusCode::UNAUTHORIZED, message).answer();
                for challenge in [
                    "Bearer realm=\"sluice-admin\"",
                    "Basic realm=\"sluice-admin\", charset=\"UTF-8\"",
                ] {
                    let value = HeaderValue::from_static(challenge);
                    answer.headers_mut().append(WWW_AUTHENTICATE, value);
                }
                answer
            }
            Self::TooManyGuesses(seconds) => {
                let message = "too many wrong tokens from this address";
                let mut answer = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).answer();
                answer.headers_mut().insert(RETRY_AFTER, (*seconds).into());
                answer
            }
            Self::Foreign(why) => ApiError::new(StatusCode::FORBIDDEN, *why).answer(),
        }
    }
}

impl Access {
    pub(super) fn new(operator: &Operator) -> Self {
        let guesses = Memory::new(ADDRESSES);
        let limit = guesses.limit_id("guesses");
        // The numbers are good ones.
        let quota = Quota::token_bucket(GUESSES, None).ok();
        guesses.adopt(quota.iter().map(|quota| (limit, [quota.clone()].into())).collect());
        let (gateway, token) = (Arc::clone(&operator.gateway), Arc::clone(&operator.token));
        Self { gateway, token, guesses, limit, quota }
    }

    pub(super) fn admit<B>(&self, request: &Request<B>, peer: IpAddr) -> Result<(), Refusal> {
        if came_through_a_gateway(request) {
            return Err(Refusal::Foreign(
                "this came through a gateway: callers have no business here",
            ));
        }
        let wanted = self.token.lock().clone();
        match wanted {
            Some(token) => self.admit_by_token(request, &token, peer),
            None if is_called_by_address(request) => Ok(()),
            None => Err(Refusal::Foreign(
                "without a token, the gateway must be called by its address or as localhost",
            )),
        }?;
        let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
        if changes && !is_of_this_page(request) {
            return Err(Refusal::Foreign("another page asked for this"));
        }
        Ok(())
    }

    fn admit_by_token<B>(
        &self,
        request: &Request<B>,
        token: &str,
        peer: IpAddr,
    ) -> Result<(), Refusal> {
        // Nothing presented is nothing guessed.
        let Some(presented) = request.headers().get(AUTHORIZATION) else {
            return Err(Refusal::Unauthorized);
        };
        self.guess(peer, false)?;
        if credentials(presented)
            .is_some_and(|presented| verify_slices_are_equal(&presented, token.as_bytes()).is_ok())
        {
            return Ok(());
        }
        self.gateway.metrics.admin_refused.increment();
        self.guess(peer, true)?;
        tracing::warn!("{peer} presented a wrong token to the admin listener");
        Err(Refusal::Unauthorized)
    }

    /// Whether somebody from there may guess; and that they have.
    fn guess(&self, peer: IpAddr, takes: bool) -> Result<(), Refusal> {
        let Some(quota) = &self.quota else { return Ok(()) };
        // Whoever has an IPv6 address has millions of them.
        let (parts, now) = ([Part::Ip(cut(peer, 64))], self.gateway.clock.now());
        let mut charges = [Charge::new(self.limit, quota, Subject(&parts))];
        let decision = if takes {
            self.guesses.charge_all(&mut charges, now)
        } else {
            self.guesses.foresee(&mut charges, now)
        };
        if decision.rejected_by.is_none() {
            return Ok(());
        }
        if !takes {
            self.gateway.metrics.admin_refused.increment();
        }
        Err(Refusal::TooManyGuesses(retry_after_seconds(charges[0].verdict.retry_after(), 0.0)))
    }
}

/// Whether a gateway forwarded the request: its pseudonym, with an id or without, is somewhere in a
/// `Via`. Comments are not told apart: one that a caller leaves open would hide what follows it.
fn came_through_a_gateway<B>(request: &Request<B>) -> bool {
    let words = |via: &'_ HeaderValue| {
        let mut words = via.as_bytes().split(|byte| b", \t:;()\"".contains(byte));
        words.any(|word| {
            let (name, id) = word.split_at(word.len().min(PSEUDONYM.len()));
            name.eq_ignore_ascii_case(PSEUDONYM.as_bytes())
                && matches!(id.first(), None | Some(b'-'))
        })
    };
    request.headers().get_all(VIA).iter().any(words)
}

/// The token that is presented.
fn credentials(value: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, rest) = value.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().as_bytes().to_vec());
    }
    let decoded = STANDARD.decode(rest.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    scheme.eq_ignore_ascii_case("basic").then(|| decoded[colon + 1..].to_vec())
}

fn host<B>(request: &Request<B>) -> Option<&str> {
    request.headers().get(HOST)?.to_str().ok()
}

fn is_called_by_address<B>(request: &Request<B>) -> bool {
    let Some(host) = host(request) else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// A browser says which page asks; who is none says nothing.
fn is_of_this_page<B>(request: &Request<B>) -> bool {
    let Some(origin) = request.headers().get(ORIGIN) else { return true };
    let origin = origin.to_str().unwrap_or_default();
    let named = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    named.is_some() && named == host(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: &str, origin: Option<&str>) -> Request<()> {
        let mut request = Request::post("/").header(HOST, host);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn a_name_could_be_anybodys() {
        for host in ["localhost", "LOCALHOST:9901", "127.0.0.1:9901", "[::1]:9901", "[::1]"] {
            assert!(is_called_by_address(&request(host, None)), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:9901", "", "127.0.0.1.nip.io"] {
            assert!(!is_called_by_address(&request(host, None)), "{host}");
        }
    }

    #[test]
    fn a_request_that_a_gateway_forwarded_is_known_by_any_element_of_via() {
        let via = |values: &[&str]| {
            let request = Request::get("/");
            let request = values.iter().fold(request, |request, via| request.header(VIA, *via));
            came_through_a_gateway(&request.body(()).unwrap())
        };
        for forwarded in [
            &["1.1 sluice"][..],
            &["1.1 sluice, 1.1 proxy"],
            &["1.1 sluice,1.1 proxy"],
            &["1.0 first, 1.1 sluice-ab12cd (a comment), 1.1 last"],
            &["1.1 first", "HTTP/1.1 SLUICE-0", "1.1 last"],
            &["1.1\tsluice:8080"],
            &["1.1 first (left open, 1.1 sluice"],
        ] {
            assert!(via(forwarded), "{forwarded:?}");
        }
        for direct in [&[][..], &["1.1 proxy"], &["1.1 sluices"], &["1.1 my-sluice, 1.1 a"]] {
            assert!(!via(direct), "{direct:?}");
        }
    }

    #[test]
    fn only_the_dashboards_own_page_may_act() {
        let own = request("127.0.0.1:9901", Some("http://127.0.0.1:9901"));
        assert!(is_of_this_page(&own) && is_of_this_page(&request("a", None)));
        for origin in ["http://evil.example", "null", "127.0.0.1:9901", "http://127.0.0.1"] {
            assert!(!is_of_this_page(&request("127.0.0.1:9901", Some(origin))), "{origin}");
        }
    }

    #[test]
    fn a_token_is_a_bearer_or_a_password() {
        let read = |text: &str| credentials(&HeaderValue::from_str(text).unwrap());
        assert_eq!(read("Bearer s3cret"), Some(b"s3cret".to_vec()));
        assert_eq!(read("bearer  s3cret "), Some(b"s3cret".to_vec()));
        assert_eq!(read("Basic YW55OnMzY3JldA=="), Some(b"s3cret".to_vec()));
        for bad in ["s3cret", "Basic !", "Basic czNjcmV0", "Digest YW55OnMzY3JldA=="] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
