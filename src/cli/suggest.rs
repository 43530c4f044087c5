//! `sluice suggest`: how large limits should be, as YAML with its evidence.

use super::Outcome;
use super::logs::{LogArguments, keep, load};
use super::output::print;
use super::paint::{Paint, printable};
use super::progress::Bar;
use crate::simulate::Progress;
use crate::simulate::figures::{Times, counted, grouped, length, percent};
use crate::simulate::suggest::{Aim, Suggestions, suggest};
use std::fmt::Write as _;
use std::path::PathBuf;

/// What is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "For example:
  sluice suggest access.log
  sluice suggest -c gateway.yaml --percentile 99.9 --margin 50% access.log.*.gz > limits.yaml")]
pub(super) struct Arguments {
    /// The configuration whose limits are sized; if it has none, some to begin with are proposed
    #[arg(short, long, default_value = "gateway.yaml", value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    logs: LogArguments,
    /// How many of a limit's callers, in percent, are never rejected
    #[arg(long, value_name = "PERCENT", default_value = "99", value_parser = percentile)]
    percentile: f64,
    /// What is added to what was enough
    #[arg(long, value_name = "SHARE", default_value = "20%", value_parser = margin)]
    margin: f64,
    /// For machines
    #[arg(long)]
    json: bool,
}

fn percentile(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim_end_matches('%').parse().map_err(|_| "it looks like 99.9")?;
    if number > 0.0 && number <= 100.0 {
        Ok(number / 100.0)
    } else {
        Err("more than 0, and 100 at most".to_owned())
    }
}

/// `20%`; it may be more than all of it.
fn margin(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let number = number.ok_or("a margin looks like 20%")?;
    if (0.0..=10_000.0).contains(&number) {
        Ok(number / 100.0)
    } else {
        Err("between 0% and 10000%".to_owned())
    }
}

pub(super) fn run(arguments: Arguments) -> Outcome {
    let config = load(&arguments.config)?;
    let mut given = arguments.logs.read(&[&config])?;
    keep(&mut given.logs)?;
    let aim = Aim { spared: arguments.percentile, margin: arguments.margin };
    let file = arguments.config.display().to_string();
    let suggestions =
        watched(|watch| suggest(&given.logs, (&file, &config), &given.terms, aim, watch))?;
    let text = if arguments.json {
        serde_json::to_string_pretty(&suggestions)? + "\n"
    } else {
        text(&suggestions, &given.times, Paint::for_stdout())
    };
    Ok(print(&text)?)
}

/// Runs the replays, each behind a bar of its own.
fn watched<T>(run: impl FnOnce(&mut dyn FnMut(usize, Progress)) -> T) -> T {
    const STEPS: [&str; 3] = ["1 of 3: how much", "2 of 3: how suddenly", "3 of 3: the proof"];
    let mut shown: Option<(usize, Bar)> = None;
    let done = run(&mut |step, progress| {
        if shown.as_ref().is_none_or(|(of, _)| *of != step)
            && let Some((_, over)) = shown.replace((step, Bar::new(STEPS[step])))
        {
            over.end();
        }
        if let Some((_, bar)) = &mut shown {
            bar.show(progress);
        }
    });
    if let Some((_, bar)) = shown {
        bar.end();
    }
    done
}

/// YAML, with everything that is not for machines in comments.
fn text(suggestions: &Suggestions, times: &Times, paint: Paint) -> String {
    let Suggestions { logs, together, percentile, margin, .. } = suggestions;
    let mut head = Vec::new();
    let requests = logs.lines - logs.unreadable;
    let mut seen = format!("From {}", counted(requests, "request"));
    if let (Some(from), Some(to)) = (logs.from, logs.to) {
        let _ = write!(
            seen,
            ", {} to {} {} ({})",
            times.second(from.0),
            times.second(to.0),
            times.zone(),
            length((to.0 - from.0) / 1_000_000)
        );
    }
    head.push(format!("{seen}:"));
    head.push(format!(
        "the smallest limits that never reject {percentile}% of their callers, and {margin}% more."
    ));
    if suggestions.starters {
        head.push(format!(
            "{} has no limits: these are some to begin with.",
            printable(&suggestions.config)
        ));
    }
    head.push(format!(
        "All together they would have rejected {} of {} ({}), from {} ({}).",
        grouped(together.requests),
        counted(requests, "request"),
        percent(together.requests_share),
        counted(together.callers, "caller"),
        percent(together.callers_share)
    ));
    head.extend(suggestions.warnings.iter().map(|warning| format!("! {}", printable(warning))));
    let mut out = String::new();
    for line in head {
        let line = format!("# {line}");
        let _ = writeln!(
            out,
            "{}",
            if line.starts_with("# !") { paint.bad(&line) } else { paint.dim(&line) }
        );
    }
    out.push('\n');
    for line in suggestions.yaml.lines() {
        let trimmed = line.trim_start();
        let painted = match trimmed.strip_prefix("# ") {
            Some(comment) if comment.trim_start().starts_with("thin:") => paint.bad(line),
            Some(_) => paint.dim(line),
            None => line.to_owned(),
        };
        let _ = writeln!(out, "{painted}");
    }
    out
}
