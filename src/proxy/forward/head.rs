//! Where the fields of a backend's request are written to: a head as HTTP/1.1 sends it, or a map for
//! HTTP/2.

use crate::hop;
use crate::snapshot::Route;
use http::header::{ACCEPT_ENCODING, HOST, TE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Where the fields of a head go.
pub(super) trait Sink {
    /// One field whose value is put together of these, with something between them.
    fn put<'v>(
        &mut self,
        name: &HeaderName,
        values: impl Iterator<Item = &'v [u8]>,
        between: &[u8],
    );

    /// Whether HTTP/1.1's fields for the connection have a place in it.
    const HTTP1: bool;
}

/// A head as HTTP/1.1 sends it.
pub(super) struct Wire(pub(super) Vec<u8>);

impl Sink for Wire {
    const HTTP1: bool = true;

    #[inline]
    fn put<'v>(
        &mut self,
        name: &HeaderName,
        mut values: impl Iterator<Item = &'v [u8]>,
        between: &[u8],
    ) {
        self.0.extend_from_slice(name.as_str().as_bytes());
        self.0.extend_from_slice(b": ");
        self.0.extend_from_slice(values.next().unwrap_or_default());
        for value in values {
            self.0.extend_from_slice(between);
            self.0.extend_from_slice(value);
        }
        self.0.extend_from_slice(b"\r\n");
    }
}

/// The fields of a head, for HTTP/2.
pub(super) struct Fields(pub(super) HeaderMap);

impl Sink for Fields {
    const HTTP1: bool = false;

    fn put<'v>(
        &mut self,
        name: &HeaderName,
        mut values: impl Iterator<Item = &'v [u8]>,
        between: &[u8],
    ) {
        // The first line says the host; what is for one connection has no place here.
        if *name == HOST || *name != TE && hop::is_per_connection(name) {
            return;
        }
        let mut whole = values.next().unwrap_or_default().to_vec();
        for value in values {
            whole.extend_from_slice(between);
            whole.extend_from_slice(value);
        }
        if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(whole)) {
            self.0.append(name, value);
        }
    }
}

/// Writes a head. What the route sets or removes is left to it.
pub(super) struct Writer<'a, S> {
    pub(super) sink: S,
    pub(super) route: &'a Route,
    /// The answer's body will be read here, so it must come as it is.
    pub(super) identity: bool,
}

impl<S: Sink> Writer<'_, S> {
    pub(super) fn field(&mut self, name: &HeaderName, value: &[u8]) {
        self.list(name, std::iter::once(value));
    }

    /// A field whose value is a list.
    pub(super) fn list<'v>(&mut self, name: &HeaderName, values: impl Iterator<Item = &'v [u8]>) {
        if !self.route.edits(name) {
            self.sink.put(name, values, b", ");
        }
    }

    /// Puts on what the route sets.
    pub(super) fn finish(mut self) -> S {
        for (name, value) in &self.route.set_headers {
            if !(self.identity && *name == ACCEPT_ENCODING) {
                self.sink.put(name, std::iter::once(value.as_bytes()), b"");
            }
        }
        if self.identity {
            self.sink.put(&ACCEPT_ENCODING, std::iter::once(&b"identity"[..]), b"");
        }
        self.sink
    }
}
