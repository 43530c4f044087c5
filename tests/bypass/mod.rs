//! Attempts to get around limits, one file per kind of attempt, each test named after it and showing what
//! the attempt costs the client that makes it. docs/hostile-clients.md lists them.

mod kit;
mod leaving;
