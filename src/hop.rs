//! What belongs to one connection, and is never passed on: HTTP's fixed set, and what `Connection`
//! names beside it.

use http::HeaderName;

/// Whether a field is for one connection only, whatever `Connection` says.
pub fn is_per_connection(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// The field that an element of `Connection` names.
pub fn named(element: &[u8]) -> Option<HeaderName> {
    HeaderName::from_bytes(element.trim_ascii()).ok().filter(may_be_named)
}

/// A peer cannot use `Connection` to take off what others rely on.
pub fn may_be_named(name: &HeaderName) -> bool {
    !matches!(
        name.as_str(),
        "host"
            | "content-length"
            | "authorization"
            | "cookie"
            | "set-cookie"
            | "content-type"
            | "cache-control"
            | "x-forwarded-for"
            | "x-forwarded-proto"
            | "x-forwarded-host"
            | "forwarded"
            | "via"
    )
}
