//! Access logs as traffic: what was asked, by whom and when, in the order of time.
//!
//! ```text
//! Source    a file or standard input, plain, gzip or zstd
//!    │  pieces of whole lines, each read by its Format on a thread beside
//! Chunk     the text, and for each line an Entry: which part of the text is what
//!    │  lines of all sources; each may be late by a few seconds
//! Order     the same lines by their time
//! ```
//!
//! What a request means to a configuration is for [`simulate`](crate::simulate) to say.

mod chunk;
mod combined;
mod csv;
mod fields;
mod format;
mod json;
mod moment;
mod order;
mod source;

pub use chunk::{Chunk, Entry, Extra, Span, Unreadable};
pub use fields::{Field, Fields, Unit};
pub use format::{Format, How, NoFormat};
pub use moment::Moments;
pub use order::Order;
pub use source::{Input, Sources, Trouble};
