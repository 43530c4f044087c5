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
        // By length first: a name is compared with two others at most that way.
        let flag = |name: &str| {
            let one = |known: &str, set: Self| if name == known { set.0 } else { 0 };
            match name.len() {
                2 => one("te", Self::TE),
                3 => one("via", Self::VIA),
                6 => one("cookie", Self::COOKIE) | one("expect", Self::EXPECT),
                7 => one("upgrade", Self::UPGRADE),
                9 => one("forwarded", Self::FORWARDED),
                10 => one("connection", Self::CONNECTION),
                11 => one("traceparent", Self::TRACEPARENT),
                12 => {
                    one("content-type", Self::CONTENT_TYPE)
                        | one("x-request-id", Self::X_REQUEST_ID)
                }
                14 => one("content-length", Self::CONTENT_LENGTH),
                15 => one("x-forwarded-for", Self::X_FORWARDED_FOR),
                16 => one("x-forwarded-host", Self::X_FORWARDED_HOST),
                17 => {
                    one("transfer-encoding", Self::TRANSFER_ENCODING)
                        | one("x-forwarded-proto", Self::X_FORWARDED_PROTO)
                }
                _ => 0,
            }
        };
        Self(headers.keys().fold(0, |set, name| set | flag(name.as_str())))
    }

    pub(super) fn has(self, header: Self) -> bool {
        self.0 & header.0 != 0
    }
}
