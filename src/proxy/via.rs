//! `Via`: the name of this process, by which a request that comes back to it is noticed.
//!
//! Each process has a name of its own, so two gateways in a row are no loop.

use http::header::VIA;
use http::{HeaderMap, Version};

/// What all gateways are called; the process's number follows.
pub const PSEUDONYM: &str = "sluice";

/// What this process adds to `Via`.
#[derive(Debug)]
pub struct Via {
    name: String,
    hops: [Box<[u8]>; 3],
}

impl Via {
    /// A name that no other process has.
    pub fn new() -> Self {
        let name = format!("{PSEUDONYM}-{:08x}", fastrand::u32(..));
        let hops = ["1.0", "1.1", "2.0"].map(|version| format!("{version} {name}"));
        Self { hops: hops.map(|hop| hop.into_bytes().into()), name }
    }

    /// What this process is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is added for a request that came in this version.
    pub(super) fn hop(&self, version: Version) -> &[u8] {
        match version {
            Version::HTTP_10 => &self.hops[0],
            Version::HTTP_2 => &self.hops[2],
            _ => &self.hops[1],
        }
    }

    /// Whether the request has been here already.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        names(headers).any(|name| name.eq_ignore_ascii_case(self.name.as_bytes()))
    }
}

impl Default for Via {
    fn default() -> Self {
        Self::new()
    }
}

/// Who has passed a request on: the second word of each element.
pub fn names(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let elements =
        headers.get_all(VIA).iter().flat_map(|line| line.as_bytes().split(|b| *b == b','));
    elements.filter_map(|element| {
        element.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).nth(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_request_that_comes_back_is_noticed_wherever_it_has_been() {
        let via = Via::new();
        let name = &via.name;
        let is_in = |line: String| {
            let mut headers = HeaderMap::new();
            headers.append(VIA, HeaderValue::from_static("1.1 edge"));
            headers.append(VIA, HeaderValue::from_str(&line).unwrap());
            via.is_in(&headers)
        };
        assert!(is_in(format!("1.1 {name}")));
        assert!(is_in(format!("2.0 proxy, HTTP/1.1  {} (a, b) ,1.1 other", name.to_uppercase())));
        assert!(!is_in("1.1 sluice, 1.1 sluice-zzzzzzzz".to_owned()));
        assert!(!is_in(format!("1.1 {name}0, {name}")));
    }
}
