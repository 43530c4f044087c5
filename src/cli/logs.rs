//! Which logs are replayed, and how they are read: what `simulate` and `suggest` have in common.

use super::output::remark;
use super::progress::Bar;
use crate::config::{self, Config, Loaded};
use crate::simulate::figures::Times;
use crate::simulate::{Failure, Intake, Logs, Progress, Terms};
use crate::traffic::{Fields, Format, How, Input};
use jiff::tz::TimeZone;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What is given of logs.
#[derive(Debug, clap::Args)]
pub(super) struct LogArguments {
    /// The logs, plain or compressed with gzip or zstd; `-` is standard input
    #[arg(value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Their format [default: what their first lines look like]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Which field tells what, in JSON or CSV: `time=ts,ip=client`; of a CSV without names, their
    /// numbers. Fields: time, ip, `forwarded_for`, method, path, request, host, user, plan,
    /// `api_key`, status, bytes, `request_bytes`, `duration_ms` (or _s, _us, _ns), header:NAME
    #[arg(long, value_name = "FIELD=NAME", value_delimiter = ',', verbatim_doc_comment)]
    fields: Vec<String>,
    /// Where times are from that do not say so, and by whose clocks times are shown
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = zone)]
    time_zone: TimeZone,
    /// For which host requests are whose lines do not tell it
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Take API keys that the file does not know for good, with the default plan
    #[arg(long)]
    accept_any_key: bool,
    /// The share of lines that may be unreadable; beyond it nothing is told
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = config::share)]
    tolerate: f64,
    /// How late lines may come and still be put in order
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = config::duration)]
    late: Duration,
}

fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name)
        .map_err(|_| format!("there is no time zone '{name}'; it looks like Europe/Berlin"))
}

/// What is replayed, through which configurations.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) logs: Logs,
    pub(super) terms: Arc<Terms>,
    pub(super) times: Times,
}

impl LogArguments {
    /// Files that are read.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.logs.iter().map(PathBuf::as_path)
    }

    /// What these configurations want to know of the logs.
    pub(super) fn read(self, configs: &[&Config]) -> Result<Given, Box<dyn Error>> {
        let host = match self.host {
            Some(host) => Some(
                crate::proxy::destination::host_name(&host)
                    .map_err(|_| format!("'{host}' is no host"))?,
            ),
            None => None,
        };
        let mut terms = Terms { host, accept_any_key: self.accept_any_key, ..Terms::default() };
        for config in configs {
            terms.want(config);
        }
        let mut fields = Fields {
            headers: terms.headers.clone(),
            costs: terms.costs.clone(),
            lengths: terms.lengths,
            sizes: terms.sizes,
            said: Vec::new(),
        };
        for said in &self.fields {
            fields.say(said.trim())?;
        }
        let how = How { format: self.format, fields, zone: self.time_zone.clone() };
        let logs = Logs {
            inputs: inputs(self.logs)?,
            how,
            wait: self.late,
            tolerate: self.tolerate,
            threads: 2,
        };
        Ok(Given { logs, terms: Arc::new(terms), times: Times::new(self.time_zone) })
    }
}

/// Nothing named is standard input, unless somebody sits there.
fn inputs(named: Vec<PathBuf>) -> Result<Vec<Input>, Box<dyn Error>> {
    let named = if named.is_empty() {
        if std::io::stdin().is_terminal() {
            return Err("which log? name files, or - for standard input".into());
        }
        vec![PathBuf::from("-")]
    } else {
        named
    };
    let input = |path: PathBuf| {
        if path.as_os_str() == "-" { Input::Stdin } else { Input::File(path) }
    };
    let inputs: Vec<Input> = named.into_iter().map(input).collect();
    if inputs.iter().filter(|input| matches!(input, Input::Stdin)).count() > 1 {
        return Err("standard input can be read once".into());
    }
    Ok(inputs)
}

fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir())
}

/// Keeps what comes from standard input or a pipe, so that it can be read again. The file has no
/// name any more, and is gone with the process.
pub(super) fn keep(logs: &mut Logs) -> Result<(), Box<dyn Error>> {
    for input in &mut logs.inputs {
        let mut pipe: Box<dyn Read> = match input {
            Input::Stdin => Box::new(std::io::stdin()),
            Input::File(path) if is_pipe(path) => Box::new(File::open(path)?),
            Input::File(_) | Input::Kept(_) => continue,
        };
        let name = format!("sluice-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        std::io::copy(&mut pipe, &mut file)?;
        *input = Input::Kept(Arc::new(file));
    }
    Ok(())
}

/// Reads a configuration; what should be said about it goes to stderr.
pub(super) fn load(path: &Path) -> Result<Config, Box<dyn Error>> {
    let Loaded { config, warnings } = config::load(path)?;
    remark(&warnings.to_string());
    Ok(config)
}

/// Runs a replay behind a bar.
pub(super) fn watched(
    what: &str,
    run: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<Intake, Failure>,
) -> Result<Intake, Failure> {
    let mut bar = Bar::new(what);
    let done = run(&mut |progress| bar.show(progress));
    bar.end();
    done
}
