//! What was measured: medians, ratios to nginx, a table, and files.

use crate::budget;
use crate::chart;
use crate::contestants::{Contestant, Stage};
use crate::load::Sample;
use crate::machine::Failure;
use crate::options::Options;
use crate::scenarios::Scenario;
use serde::Serialize;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: String,
    pub(crate) contestants: Vec<(&'static str, String)>,
    pub(crate) rounds: usize,
    pub(crate) seconds: u64,
    pub(crate) rows: Vec<Row>,
    pub(crate) idle: Vec<Idle>,
    pub(crate) growth: Vec<Growth>,
    pub(crate) replay: Vec<Replayed>,
    pub(crate) guard: Vec<Counted>,
    #[serde(skip)]
    out: PathBuf,
    /// Whether everything was measured: only then are files written.
    #[serde(skip)]
    complete: bool,
}

/// One contestant in one scenario.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    pub(crate) title: &'static str,
    pub(crate) contestant: &'static str,
    /// One a round.
    pub(crate) samples: Vec<Sample>,
}

/// Memory of idle connections.
#[derive(Debug, Serialize)]
pub(crate) struct Idle {
    pub(crate) contestant: &'static str,
    /// Through TLS.
    pub(crate) encrypted: bool,
    pub(crate) connections: usize,
    /// KiB for each, one a round.
    pub(crate) each_kib: Vec<f64>,
    /// What was still held a few seconds after all had closed, as a share of what they took.
    pub(crate) kept: Vec<f64>,
}

/// What one dimension costs: CPU per request in the small case and in the large one, a round each.
#[derive(Debug, Serialize)]
pub(crate) struct Growth {
    pub(crate) what: &'static str,
    pub(crate) small: String,
    pub(crate) large: String,
    pub(crate) small_micros: Vec<f64>,
    pub(crate) large_micros: Vec<f64>,
}

/// A log that was replayed on one core, a round each.
#[derive(Debug, Serialize)]
pub(crate) struct Replayed {
    pub(crate) what: &'static str,
    pub(crate) lines: u64,
    /// CPU time.
    pub(crate) micros_per_line: Vec<f64>,
    /// The most that there was.
    pub(crate) memory_mib: Vec<f64>,
}

/// Instructions of one kind of request, now and as recorded.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Counted {
    pub(crate) what: String,
    pub(crate) instructions: f64,
    pub(crate) recorded: Option<f64>,
}

impl Report {
    pub(crate) fn begin(options: &Options, stage: &Stage) -> Self {
        let versions = Contestant::ALL.into_iter().filter(|contestant| !contestant.is_variant());
        let versions = versions.filter_map(|c| Some((c.name(), stage.find(c).ok()?.1)));
        Self {
            machine: machine(),
            contestants: versions.collect(),
            rounds: options.rounds,
            seconds: options.seconds,
            rows: Vec::new(),
            idle: Vec::new(),
            growth: Vec::new(),
            replay: Vec::new(),
            guard: Vec::new(),
            out: options.out.clone(),
            complete: options.only.is_empty() && options.peers.is_empty(),
        }
    }

    pub(crate) fn add(&mut self, scenario: &Scenario, contestant: Contestant, sample: Sample) {
        let (key, name) = (scenario.key, contestant.name());
        match self.rows.iter_mut().find(|row| row.scenario == key && row.contestant == name) {
            Some(row) => row.samples.push(sample),
            None => self.rows.push(Row {
                scenario: key,
                title: scenario.title,
                contestant: name,
                samples: vec![sample],
            }),
        }
    }

    pub(crate) fn row(&self, scenario: &str, contestant: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.scenario == scenario && row.contestant == contestant)
    }

    /// The median over rounds of a figure as a ratio to a peer's in the same round.
    pub(crate) fn ratio(
        &self,
        row: &Row,
        peer: &str,
        figure: impl Fn(&Sample) -> f64,
    ) -> Option<f64> {
        let peer = self.row(row.scenario, peer)?;
        median(row.samples.iter().zip(&peer.samples).map(|(a, b)| figure(a) / figure(b)))
    }

    /// Prints everything, and writes it down if nothing was left out.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let text = self.text();
        println!("{text}");
        if !self.complete {
            println!("a part of the run: nothing is written to {}", self.out.display());
            return Ok(());
        }
        fs::create_dir_all(&self.out)?;
        let json = serde_json::to_string_pretty(self).map_err(|e| Failure::said(e.to_string()))?;
        fs::write(self.out.join("compare.json"), json + "\n")?;
        fs::write(self.out.join("compare.txt"), text)?;
        fs::write(self.out.join("compare.svg"), chart::draw(self))?;
        println!("written to {}", self.out.display());
        Ok(())
    }

    /// Everything as tables of text.
    fn text(&self) -> String {
        let mut out = format!("\n{}\n", self.machine);
        for (name, version) in &self.contestants {
            let _ = writeln!(out, "{name}: {version}");
        }
        let _ = writeln!(
            out,
            "medians of {} rounds of {} s; ratios to nginx within a round, then their median",
            self.rounds, self.seconds
        );
        let mut scenario = "";
        for row in &self.rows {
            if row.scenario != scenario {
                scenario = row.scenario;
                let _ = writeln!(out, "\n{scenario}: {}", row.title);
                let _ = writeln!(
                    out,
                    "  {:<17}{:>9}{:>9}{:>9}{:>10}{:>9}{:>8}{:>9}{:>8}{:>8}",
                    "",
                    "req/s",
                    "p50 µs",
                    "p99 µs",
                    "CPU µs",
                    "(system)",
                    "MiB",
                    "CPU ×",
                    "p50 ×",
                    "p99 ×"
                );
            }
            let middle = |figure: fn(&Sample) -> f64| {
                median(row.samples.iter().map(figure)).unwrap_or_default()
            };
            let ratio = |figure: fn(&Sample) -> f64| {
                self.ratio(row, "nginx", figure).map_or("-".into(), |r| format!("{r:.2}"))
            };
            let _ = writeln!(
                out,
                "  {:<17}{:>9.0}{:>9.0}{:>9.0}{:>10.2}{:>9.2}{:>8.1}{:>9}{:>8}{:>8}",
                row.contestant,
                middle(|s| s.requests_per_second),
                middle(|s| s.p50_micros),
                middle(|s| s.p99_micros),
                middle(|s| s.cpu_micros_per_request),
                middle(|s| s.system_micros_per_request),
                middle(|s| s.memory_kib / 1024.0),
                ratio(|s| s.cpu_micros_per_request),
                ratio(|s| s.p50_micros),
                ratio(|s| s.p99_micros),
            );
        }
        self.idle_text(&mut out);
        self.growth_text(&mut out);
        if !self.replay.is_empty() {
            let _ = writeln!(
                out,
                "\nreplay: sluice simulate, three limits a request unless it says otherwise, on one core, the quickest round"
            );
        }
        for replayed in &self.replay {
            let _ = writeln!(out, "  {}", replayed.text());
        }
        for counted in &self.guard {
            let _ = writeln!(out, "{}", counted.text());
        }
        let _ = writeln!(out, "\n{}", budget::text(&budget::verdicts(self)));
        out
    }

    fn idle_text(&self, out: &mut String) {
        if let Some(first) = self.idle.first() {
            let _ = writeln!(
                out,
                "\nidle: {} keep-alive connections after a request each",
                first.connections
            );
            let _ = writeln!(out, "  {:<17}{:>9}{:>22}", "", "KiB each", "kept after closing");
        }
        for idle in &self.idle {
            let (each, kept) = (idle.each(), median(idle.kept.iter().copied()).unwrap_or_default());
            let name = format!("{}{}", idle.contestant, if idle.encrypted { ", TLS" } else { "" });
            let _ = writeln!(out, "  {name:<17}{each:>9.1}{:>21.0}%", kept * 100.0);
        }
    }

    fn growth_text(&self, out: &mut String) {
        if !self.growth.is_empty() {
            let _ =
                writeln!(out, "\ngrowth: CPU µs per request of the gateway, small case and large");
        }
        for growth in &self.growth {
            let (small, large) = (
                median(growth.small_micros.iter().copied()).unwrap_or_default(),
                median(growth.large_micros.iter().copied()).unwrap_or_default(),
            );
            let _ = writeln!(
                out,
                "  {:<22}{:>10} {small:>6.2}   {:>10} {large:>6.2}   × {:.2}",
                growth.what,
                growth.small,
                growth.large,
                growth.ratio(),
            );
        }
    }
}

impl Idle {
    pub(crate) fn each(&self) -> f64 {
        median(self.each_kib.iter().copied()).unwrap_or_default()
    }
}

impl Replayed {
    pub(crate) fn new(what: &'static str, lines: u64) -> Self {
        Self { what, lines, micros_per_line: Vec::new(), memory_mib: Vec::new() }
    }

    /// Lines a second and core, in the round that was disturbed least: the work is the same in each,
    /// and there is no peer to share the noise with.
    pub(crate) fn rate(&self) -> f64 {
        1e6 / self.micros_per_line.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn memory(&self) -> f64 {
        median(self.memory_mib.iter().copied()).unwrap_or_default()
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "{:<36}{:>9} lines {:>9.0} a second and core {:>7.1} MiB",
            self.what,
            self.lines,
            self.rate(),
            self.memory()
        )
    }
}

impl Growth {
    pub(crate) fn ratio(&self) -> f64 {
        let rounds = self.small_micros.iter().zip(&self.large_micros);
        median(rounds.map(|(small, large)| large / small)).unwrap_or_default()
    }
}

impl Counted {
    /// How much more than recorded.
    pub(crate) fn change(&self) -> Option<f64> {
        self.recorded.map(|recorded| self.instructions / recorded - 1.0)
    }

    pub(crate) fn text(&self) -> String {
        let Self { what, instructions, .. } = self;
        let change = self.change().map_or("nothing recorded".into(), |change| {
            format!("{:+.1}% of what is recorded", change * 100.0)
        });
        format!("instructions per {what} request: {instructions:.0} ({change})")
    }
}

/// The middle one; of two in the middle, their mean.
pub(crate) fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.filter(|figure| figure.is_finite()).collect();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len().checked_sub(1)? / 2;
    Some(f64::midpoint(figures[middle], figures[figures.len() / 2]))
}

/// What it ran on: processor, cores, kernel.
fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<_> = cpus.lines().filter_map(|line| line.strip_prefix("model name")).collect();
    let model = models.first().map_or("unknown", |model| model.trim_matches([' ', '\t', ':']));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.split('-').next().unwrap_or_default().trim();
    format!("{model}, {} cores, Linux {kernel}", models.len())
}
