//! The gateway in front of a backend of known capacity that is asked for more than it can do:
//! `make overload`.
//!
//! ```text
//! callers (open loop, Poisson) ──► sluice ──► backend: some workers, a queue, service times
//!     │ who was answered, when                    │ capacity, which can change
//!     └──► runs ──► a table, benches/results/overload.json, docs/overload/*.svg
//! ```
//!
//! Callers do not wait for each other, and give up after a second; the backend does not notice when
//! they do, as few backends would. All figures are ratios to the backend's capacity or to how long
//! answers take when there is no hurry, so they mean the same on any machine.

mod backend;
mod callers;
#[allow(dead_code, reason = "shared with the comparison, which uses all of it")]
#[path = "../compare/machine.rs"]
mod machine;
mod plot;
mod runs;

use machine::Failure;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let binary = arguments.next().unwrap_or_else(|| "target/release/sluice".to_owned());
    match run(Path::new(&binary)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(binary: &Path) -> Result<(), Failure> {
    machine::allow_files();
    if !binary.exists() {
        return Err(Failure::said(format!("{} is not there: make build", binary.display())));
    }
    let report = runs::Report::make(binary)?;
    report.print();
    report.write()
}
