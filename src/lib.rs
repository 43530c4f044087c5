//! Sluice: a reverse-proxy API gateway with rate limiting built in.
pub mod access_log;
pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod deadline;
pub mod gateway;
pub mod limit;
pub mod metrics;
pub mod path;
pub mod proxy;
pub mod server;
pub mod snapshot;
pub mod store;
pub mod token;
pub mod upstream;
pub mod worker;
