//! Draws the pictures of `docs/algorithms.md`, with the gateway's own algorithms:
//!
//! ```sh
//! make pictures          # or: cargo run --release --example algorithm_pictures
//! ```
//!
//! ```text
//! arrivals ──traffic──▶ Quota::check ──▶ outcomes ──one file per picture──▶ Svg ──▶ docs/algorithms/*.svg
//! ```
//!
//! Arrivals are written out below, there is no clock and no chance: the same code draws the same
//! bytes. Time 0 is the beginning of a window.

mod boundary;
mod burst;
mod estimate;
mod flight;
mod plot;
mod rows;
mod svg;
mod traffic;

use sluice::limit::QuotaError;
use std::path::Path;
use svg::Svg;

/// A picture's file and what draws it.
type Picture = (&'static str, fn() -> Result<Svg, QuotaError>);

const PICTURES: [Picture; 5] = [
    ("bursty-traffic.svg", rows::draw),
    ("boundary-burst.svg", boundary::draw),
    ("sliding-estimate.svg", estimate::draw),
    ("token-and-leaky-bucket.svg", burst::draw),
    ("concurrency.svg", flight::draw),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/algorithms");
    std::fs::create_dir_all(&folder)?;
    for (name, draw) in PICTURES {
        std::fs::write(folder.join(name), draw()?.to_string())?;
        println!("docs/algorithms/{name}");
    }
    Ok(())
}
