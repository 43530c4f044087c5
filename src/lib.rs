//! Sluice.
pub mod clock;
pub mod limit;
pub mod store;
