//! One test binary; each file is one behaviour that a user would name.

#![allow(missing_docs, reason = "tests speak through their names")]
#![allow(
    unreachable_pub,
    dead_code,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::format_push_string,
    reason = "tests share helpers, wait for real sockets, and fail by panicking"
)]

mod common;

mod admin;
mod algorithms;
mod ambiguity;
mod bypass;
mod callers;
mod checking;
mod costs;
mod drills;
mod explaining;
mod fleet;
mod forwarding;
mod guards;
mod handover;
mod http2;
mod limits;
mod listeners;
mod operations;
mod operator;
mod overload;
mod overrides;
mod printing;
mod reload;
mod restart;
mod routes;
mod schema;
mod simulating;
mod state_files;
mod stopping;
mod tls;
mod tracing;
mod tunnels;
mod upstreams;
