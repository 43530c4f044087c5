//! Attempts to get around limits, one file per kind of attempt, each test named after it and showing what
//! the attempt costs the client that makes it. docs/hostile-clients.md lists them.

mod bytes;
mod free;
mod kit;
mod late;
mod leaving;
mod places;
mod schedules;
mod stalling;
