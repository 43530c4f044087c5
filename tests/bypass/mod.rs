//! Attempts to get around limits, one file per attempt, named after it. Each test shows what the attempt
//! costs the client that makes it. docs/hostile-clients.md lists them.

mod addresses;
mod admin;
mod bans;
mod bytes;
mod endpoints;
mod free;
mod heads;
mod kit;
mod late;
mod leaving;
mod loops;
mod paths;
mod places;
mod refusals;
mod reloads;
mod schedules;
mod stalling;
mod table;
mod tokens;
mod websockets;
