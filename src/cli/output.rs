//! What commands print, and what happens where it cannot be written.

use std::io::{ErrorKind, Write};

/// Why nothing more can be printed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unprinted {
    /// The reader has gone, as `head` does once it has enough. There is nobody to report it to.
    #[error("the reader of the output has gone")]
    ReaderGone,
    /// The disk is full, or the like.
    #[error("cannot write the output: {0}")]
    Failed(std::io::Error),
}

impl From<std::io::Error> for Unprinted {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::ReaderGone,
            _ => Self::Failed(error),
        }
    }
}

/// Prints a result, all of it: what stays in a buffer may never arrive.
pub(super) fn print(text: &str) -> Result<(), Unprinted> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Says something beside the result. Where stderr cannot be written, nothing else can say so.
pub(super) fn remark(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
