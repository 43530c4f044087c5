//! Sluice.
pub mod clock;
pub mod config;
pub mod limit;
pub mod path;
pub mod store;
pub mod token;
