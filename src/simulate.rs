//! What limits would have done: logs are replayed in virtual time through the code that limits live
//! traffic.
//!
//! ```text
//! traffic::Sources ── lines ──► Trial::arrive ──► Order ── by time ──► Trial::judge ──► Tally ──► Report
//! ```
//!
//! Several configurations can be on trial at once; each sees every line. [`suggest`] finds out which
//! numbers would have been enough.

mod callers;
pub mod figures;
pub mod html;
mod largest;
mod plot;
mod replay;
pub mod report;
mod routes;
pub mod suggest;
mod tally;
mod timeline;
mod trial;
mod usage;
mod warnings;

pub use callers::{Callers, Principal};
pub use replay::{Failure, Intake, Logged, Logs, Progress, replay};
pub use tally::Tally;
pub use timeline::Timeline;
pub use trial::{Arrival, Outcome, Terms, Trial, Tried};
pub use usage::{Counted, Usage};
