//! `sluice simulate`: who would be rejected if these limits had been in force.

mod text;

use super::Outcome;
use super::logs::{Given, LogArguments, load, watched};
use super::output::{self, remark};
use super::paint::Paint;
use crate::config::Config;
use crate::simulate::figures::{counted, exactly, percent};
use crate::simulate::report::{Moment, Named, Report, report};
use crate::simulate::{Arrival, Intake, Logged, Outcome as Came, Tally, Trial, replay};
use serde::Serialize;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "For example:
  sluice simulate -c new.yaml access.log access.log.1.gz
  sluice simulate -c new.yaml --baseline gateway.yaml access.log --html report.html
  zcat old.gz | sluice simulate --format csv --fields time=ts,ip=client,path=url -")]
pub(super) struct Arguments {
    /// The configuration that is tried
    #[arg(short, long, default_value = "gateway.yaml", value_name = "FILE")]
    config: PathBuf,
    /// Another one, to compare it with: who is newly rejected, who is not any more
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    #[command(flatten)]
    logs: LogArguments,
    /// How many callers are listed
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=100_000))]
    top: u32,
    /// For machines
    #[arg(long)]
    json: bool,
    /// Write a report for browsers as well: one file, charts included
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write every request that is rejected as well, a line of JSON each
    #[arg(long, value_name = "FILE")]
    rejected: Option<PathBuf>,
    /// Fail (exit status 3) if more than this share of requests is rejected, or if there are none
    #[arg(long, value_name = "SHARE", value_parser = crate::config::share)]
    fail_above: Option<f64>,
}

/// More is rejected than may be.
const TOO_MANY: i32 = 3;

pub(super) fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let read = [&arguments.config].into_iter().chain(&arguments.baseline);
    let read: Vec<&Path> = read.map(PathBuf::as_path).chain(arguments.logs.files()).collect();
    let written = [&arguments.html, &arguments.rejected];
    for (index, path) in written.into_iter().flatten().enumerate() {
        let others = written.into_iter().flatten().take(index).map(PathBuf::as_path);
        keep_apart(path, read.iter().copied().chain(others))?;
    }
    let new = load(&arguments.config)?;
    let old = arguments.baseline.as_deref().map(load).transpose()?;
    let configs: Vec<&Config> = [&new].into_iter().chain(&old).collect();
    let given = arguments.logs.read(&configs)?;
    let mut rejects = arguments.rejected.map(Rejects::create).transpose()?;
    // Whatever cannot be written is known before the work is done.
    let html = arguments.html.map(|path| Ok::<_, String>((create(&path)?, path))).transpose()?;
    let file = arguments.config.display().to_string();
    let baseline = arguments.baseline.map(|path| path.display().to_string());
    let top = arguments.top as usize;
    let report = match old {
        None => {
            let mut trials = [new].map(|config| Trial::new(config, Arc::clone(&given.terms)));
            let (intake, tally) = replayed(&given, &mut trials, rejects.as_mut())?;
            report(&intake, tally, Named { file: &file, trial: &trials[0] }, None, top)
        }
        Some(old) => {
            let mut trials = [new, old].map(|config| Trial::new(config, Arc::clone(&given.terms)));
            let (intake, tally) = replayed(&given, &mut trials, rejects.as_mut())?;
            let [new, old] = &trials;
            let old = Named { file: baseline.as_deref().unwrap_or_default(), trial: old };
            report(&intake, tally, Named { file: &file, trial: new }, Some(old), top)
        }
    };
    if let Some(rejects) = rejects {
        rejects.finish()?;
    }
    // A reader that has gone changes neither the page nor the verdict.
    let printed = print(&report, &given, arguments.json);
    if let Some((mut file, path)) = html {
        file.write_all(crate::simulate::html::page(&report, &given.times).as_bytes())
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    match arguments.fail_above {
        Some(most) if report.requests.share > most || report.requests.all == 0 => {
            let (is, most) = (percent(report.requests.share), exactly(most));
            remark(&format!(
                "{is} of {} rejected; at most {most}% may be (--fail-above)\n",
                counted(report.requests.all, "request")
            ));
            std::process::exit(TOO_MANY)
        }
        _ => printed,
    }
}

/// Refuses to write over what is read, or twice to one file.
fn keep_apart<'p>(path: &Path, others: impl Iterator<Item = &'p Path>) -> Result<(), String> {
    if path.as_os_str() == "-" {
        return Err("reports are written to files; '-' is none".to_owned());
    }
    let file = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    for other in others {
        if path == other || file(path).is_some_and(|own| Some(own) == file(other)) {
            let (path, other) = (path.display(), other.display());
            return Err(format!("{path} would be written over {other}"));
        }
    }
    Ok(())
}

fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn print(report: &Report, given: &Given, json: bool) -> Outcome {
    let text = if json {
        serde_json::to_string_pretty(report)? + "\n"
    } else {
        text::text(report, &given.times, Paint::for_stdout())
    };
    Ok(output::print(&text)?)
}

/// Replays the logs, and counts what comes of it.
fn replayed<const N: usize>(
    given: &Given,
    trials: &mut [Trial; N],
    mut rejects: Option<&mut Rejects>,
) -> Result<(Intake, Tally), Box<dyn Error>> {
    let mut tally = Tally::default();
    let names = &given.logs.inputs;
    let mut each =
        |logged: Logged, trials: &[Trial; N], arrived: &[Arrival; N], came: [Came; N]| {
            let baseline = came.get(1).copied();
            tally.count(&trials[0].callers, logged, &arrived[0], came[0], baseline);
            if let (Some(rejects), true) = (&mut rejects, came[0].is_rejection()) {
                rejects.note(&names[logged.log].name(), logged, &trials[0], &arrived[0], came[0]);
            }
        };
    let intake = watched("replaying", |watch| replay(&given.logs, trials, watch, &mut each))?;
    Ok((intake, tally))
}

/// Requests that are rejected, one by one.
struct Rejects {
    path: PathBuf,
    out: BufWriter<File>,
    failed: Option<std::io::Error>,
}

/// One of them.
#[derive(Serialize)]
struct Reject<'r> {
    log: &'r str,
    line: u64,
    time: Moment,
    caller: String,
    route: Option<&'r str>,
    limit: &'r str,
    banned: bool,
}

impl Rejects {
    fn create(path: PathBuf) -> Result<Self, String> {
        let out = BufWriter::new(create(&path)?);
        Ok(Self { path, out, failed: None })
    }

    fn note(&mut self, log: &str, logged: Logged, trial: &Trial, arrived: &Arrival, came: Came) {
        let Some(limit) = came.limit().filter(|_| self.failed.is_none()) else { return };
        let reject = Reject {
            log,
            line: logged.line,
            time: Moment(logged.time),
            caller: trial.callers.name(arrived.principal(&trial.callers)),
            route: trial.snapshot().routes.get(arrived.way as usize).map(|route| &*route.name),
            limit: &trial.limits[limit as usize].limit.name,
            banned: matches!(came, Came::Banned(_)),
        };
        let written = serde_json::to_writer(&mut self.out, &reject).map_err(Into::into);
        self.failed = written.and_then(|()| self.out.write_all(b"\n")).err();
    }

    fn finish(mut self) -> Result<(), String> {
        let failed = self.failed.take().or_else(|| self.out.flush().err());
        failed.map_or(Ok(()), |error| Err(format!("cannot write {}: {error}", self.path.display())))
    }
}
