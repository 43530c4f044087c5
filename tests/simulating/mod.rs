//! Limits are tried on logs: `sluice simulate` and `sluice suggest`.

mod kit;

mod formats;
mod live;
mod manual;
mod oracle;
mod reports;
mod suggesting;
