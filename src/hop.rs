//! What belongs to one connection, and is never passed on: HTTP's fixed set, and what `Connection`
//! names beside it.

use http::HeaderName;

/// Whether a field is for one connection only, whatever `Connection` says.
pub fn is_per_connection(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "http2-settings"
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
            | "traceparent"
            | "x-request-id"
    )
}

/// Whether a field may come after a body: not if it says how the message is to be read, by whom, or
/// what was to be known before.
pub fn may_trail(name: &HeaderName) -> bool {
    !is_per_connection(name)
        && may_be_named(name)
        && !matches!(
            name.as_str(),
            "content-encoding"
                | "content-range"
                | "max-forwards"
                | "trailer"
                | "expect"
                | "range"
                | "age"
                | "date"
                | "location"
                | "retry-after"
                | "vary"
                | "www-authenticate"
        )
}
