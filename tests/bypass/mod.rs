//! Attempts to get around limits, one file per attempt, named after it. Each test shows what the attempt
//! costs the client that makes it. docs/hostile-clients.md lists them.

mod addresses;
mod bans;
mod endpoints;
mod heads;
mod loops;
mod paths;
mod refusals;
mod reloads;
mod websockets;
