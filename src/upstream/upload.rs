//! The request's body as it passes: nothing is held whole, and the caller waits for the backend.

use crate::deadline::Deadline;
use bytes::Bytes;
use http::HeaderName;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A request's body on its way to the backend.
#[derive(Debug)]
pub struct RequestBody(Option<(Incoming, Rc<Upload>)>);

/// What is known of a body on its way.
pub struct Upload {
    /// Bytes that have passed.
    passed: Cell<u64>,
    /// Bytes that may still come; beyond them the body is too large.
    left: Cell<u64>,
    too_large: Cell<bool>,
    /// The caller broke off, or what came is no body.
    failed: Cell<bool>,
    /// The caller has yet to send more.
    waiting: Cell<bool>,
    /// The backend's time to answer, which begins anew with every piece it is given.
    clock: Cell<Option<(Rc<Deadline>, Duration)>>,
    /// Fields that a trailer must not bring in.
    is_ours: Box<dyn Fn(&HeaderName) -> bool>,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Upload {
    /// At most `limit` bytes, and no trailer that `is_ours`.
    pub fn new(limit: Option<u64>, is_ours: impl Fn(&HeaderName) -> bool + 'static) -> Rc<Self> {
        Rc::new(Self {
            passed: Cell::new(0),
            left: Cell::new(limit.unwrap_or(u64::MAX)),
            too_large: Cell::new(false),
            failed: Cell::new(false),
            waiting: Cell::new(false),
            clock: Cell::new(None),
            is_ours: Box::new(is_ours),
        })
    }

    /// How many bytes have passed.
    pub fn passed(&self) -> u64 {
        self.passed.get()
    }

    /// Whether more came than may.
    pub fn is_too_large(&self) -> bool {
        self.too_large.get()
    }

    /// Whether the caller broke off, or sent what is no body.
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Whether it is the caller that everybody waits for.
    pub fn is_waiting(&self) -> bool {
        self.waiting.get()
    }

    /// Lets every piece begin the backend's time to answer anew.
    pub fn puts_off(&self, deadline: Rc<Deadline>, by: Duration) {
        self.clock.set(Some((deadline, by)));
    }

    fn progressed(&self) {
        if let Some((deadline, by)) = self.clock.take() {
            deadline.set(by);
            self.clock.set(Some((deadline, by)));
        }
    }
}

/// Why a body cannot be passed on.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError {
    /// hyper could not read it.
    #[error(transparent)]
    Read(#[from] hyper::Error),
    /// It is larger than the route takes.
    #[error("the body is too large")]
    TooLarge,
}

impl RequestBody {
    /// No body.
    pub fn empty() -> Self {
        Self(None)
    }

    /// A body that comes from the caller.
    pub fn new(incoming: Incoming, upload: Rc<Upload>) -> Self {
        Self(Some((incoming, upload)))
    }

    /// What is known of it; nothing if there is none.
    pub fn upload(&self) -> Option<Rc<Upload>> {
        self.0.as_ref().map(|(_, upload)| Rc::clone(upload))
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let Some((incoming, upload)) = &mut self.0 else {
            return Poll::Ready(None);
        };
        upload.waiting.set(true);
        let frame = ready!(Pin::new(incoming).poll_frame(cx));
        upload.waiting.set(false);
        upload.progressed();
        let mut frame = match frame {
            None => return Poll::Ready(None),
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                upload.failed.set(true);
                return Poll::Ready(Some(Err(error.into())));
            }
        };
        if let Some(data) = frame.data_ref() {
            match upload.left.get().checked_sub(data.len() as u64) {
                Some(left) => {
                    upload.left.set(left);
                    upload.passed.set(upload.passed.get() + data.len() as u64);
                }
                None => {
                    upload.too_large.set(true);
                    return Poll::Ready(Some(Err(RequestBodyError::TooLarge)));
                }
            }
        }
        if let Some(trailers) = frame.trailers_mut() {
            let ours: Vec<HeaderName> =
                trailers.keys().filter(|name| (upload.is_ours)(name)).cloned().collect();
            for name in ours {
                trailers.remove(name);
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|(incoming, _)| incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), |(incoming, _)| incoming.size_hint())
    }
}
