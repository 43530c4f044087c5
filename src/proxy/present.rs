//! Which of the headers that the gateway looks at are there, found in one pass over the names: most
//! are not there most of the time, and a look-up costs a hash each.

use http::HeaderMap;

/// A set of headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Present(u16);

impl Present {
    pub(super) const CONNECTION: Self = Self(1);
    pub(super) const CONTENT_TYPE: Self = Self(1 << 1);
    pub(super) const FORWARDED: Self = Self(1 << 2);
    pub(super) const TE: Self = Self(1 << 3);
    pub(super) const TRANSFER_ENCODING: Self = Self(1 << 4);
    pub(super) const VIA: Self = Self(1 << 5);
    pub(super) const X_FORWARDED_FOR: Self = Self(1 << 6);
    pub(super) const X_FORWARDED_HOST: Self = Self(1 << 7);
    pub(super) const X_FORWARDED_PROTO: Self = Self(1 << 8);
    pub(super) const UPGRADE: Self = Self(1 << 9);
    pub(super) const EXPECT: Self = Self(1 << 10);
    pub(super) const COOKIE: Self = Self(1 << 11);
    pub(super) const CONTENT_LENGTH: Self = Self(1 << 12);
    pub(super) const TRACEPARENT: Self = Self(1 << 13);
    pub(super) const X_REQUEST_ID: Self = Self(1 << 14);

    pub(super) fn of(headers: &HeaderMap) -> Self {
        let flag = |name: &str| match name {
            "connection" => Self::CONNECTION.0,
            "content-length" => Self::CONTENT_LENGTH.0,
            "content-type" => Self::CONTENT_TYPE.0,
            "cookie" => Self::COOKIE.0,
            "expect" => Self::EXPECT.0,
            "forwarded" => Self::FORWARDED.0,
            "te" => Self::TE.0,
            "traceparent" => Self::TRACEPARENT.0,
            "transfer-encoding" => Self::TRANSFER_ENCODING.0,
            "upgrade" => Self::UPGRADE.0,
            "via" => Self::VIA.0,
            "x-forwarded-for" => Self::X_FORWARDED_FOR.0,
            "x-forwarded-host" => Self::X_FORWARDED_HOST.0,
            "x-forwarded-proto" => Self::X_FORWARDED_PROTO.0,
            "x-request-id" => Self::X_REQUEST_ID.0,
            _ => 0,
        };
        Self(headers.keys().fold(0, |set, name| set | flag(name.as_str())))
    }

    pub(super) fn has(self, header: Self) -> bool {
        self.0 & header.0 != 0
    }
}
