//! Gateways that share their counters through Redis.

mod parity;
