//! The gateway beside its peers: the same load on the same core, in turns, with the same yardstick.
//!
//! ```text
//! Scenario (what is asked) × Contestant (who is asked) × round ──► Sample (rate, latency, CPU, memory)
//!     │  medians; ratios to nginx within a round, then their median
//! Report: a table, benches/results/*.json, a bar chart, the budget line by line
//! ```
//!
//! The contestant has a core to itself; wrk and the backend share the other. The figure that counts
//! is CPU time per request as a ratio to nginx in the same round: machines are noisy, and what else
//! they do falls on both. `make bench` runs everything; `cargo bench --bench compare -- --help`
//! says how to run a part.

mod backend;
mod budget;
mod chart;
mod contestants;
mod growth;
mod guard;
mod idle;
mod load;
mod machine;
mod options;
mod replay;
mod report;
mod scenarios;
mod watcher;

use contestants::{Contestant, Stage};
use machine::Failure;
use options::{Options, Part};
use report::Report;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", options::HELP);
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{wrong}\n\n{}", options::HELP);
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    if let Part::Backend(port) = options.part {
        return backend::serve(port);
    }
    machine::allow_files();
    let stage = Stage::new(&options.binary, options.cores)?;
    match &options.part {
        Part::Backend(_) => Ok(()),
        Part::Train => {
            scenarios::train(&stage)?;
            replay::train(&stage)
        }
        Part::Guard { update } => guard::run(&stage, *update),
        Part::Compare => {
            let mut report = Report::begin(options, &stage);
            for contestant in Contestant::ALL.into_iter().filter(|c| !c.is_variant()) {
                if let Err(why) = stage.find(contestant) {
                    println!("{} takes no part: {why}", contestant.name());
                }
            }
            scenarios::run(options, &stage, &mut report)?;
            idle::run(options, &stage, &mut report)?;
            growth::run(options, &stage, &mut report)?;
            replay::run(options, &stage, &mut report)?;
            if options.wants("guard") {
                report.guard = guard::compare(&stage)?;
            }
            report.finish()
        }
    }
}
