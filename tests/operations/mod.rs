//! What operators go by: the metrics page with all its numbers, the reference of it, and the alerts and
//! dashboards that ship.

mod expected;
mod numbers;
mod page;
mod promql;
mod promtool;
mod shipped;
mod world;
