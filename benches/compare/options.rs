//! The command line.

use std::path::PathBuf;

pub(crate) const HELP: &str = "\
cargo bench --bench compare -- [OPTIONS]

  --rounds N        how often everything is measured, in turns (5)
  --seconds N       how long each measurement lasts (2)
  --only A,B        only these scenarios, growth:…, replay, idle or guard
  --peers A,B       only these contestants
  --binary FILE     the gateway to measure (dist/sluice if it is there, else target/release/sluice)
  --cores P,L       the contestant's core, and the one for wrk and the backend (1,0)
  --out FOLDER      where results are written (benches/results)
  guard [--update]  only count instructions, and compare or record them
  train             only put the load on the gateway that profile-guided optimisation learns from";

/// What to do.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) part: Part,
    pub(crate) rounds: usize,
    pub(crate) seconds: u64,
    pub(crate) only: Vec<String>,
    pub(crate) peers: Vec<String>,
    pub(crate) binary: PathBuf,
    pub(crate) cores: (usize, usize),
    pub(crate) out: PathBuf,
}

/// Which part of it.
#[derive(Debug)]
pub(crate) enum Part {
    Compare,
    Guard {
        update: bool,
    },
    Train,
    /// The backend that every contestant stands in front of, as a process of its own.
    Backend(u16),
}

impl Options {
    /// `None`: help was asked for.
    pub(crate) fn parse(
        mut arguments: impl Iterator<Item = String>,
    ) -> Result<Option<Self>, String> {
        let dist = PathBuf::from("dist/sluice");
        let binary = if dist.exists() { dist } else { PathBuf::from("target/release/sluice") };
        let mut options = Self {
            part: Part::Compare,
            rounds: 5,
            seconds: 2,
            only: Vec::new(),
            peers: Vec::new(),
            binary,
            cores: (1, 0),
            out: PathBuf::from("benches/results"),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            let number = |text: String| {
                text.parse::<usize>().ok().filter(|n| *n > 0).ok_or(format!("{text}: no number"))
            };
            match argument.as_str() {
                "--help" | "-h" => return Ok(None),
                "--bench" => {} // cargo's own
                "--rounds" => options.rounds = number(value()?)?,
                "--seconds" => options.seconds = number(value()?)? as u64,
                "--only" => options.only = list(&value()?),
                "--peers" => options.peers = list(&value()?),
                "--binary" => options.binary = value()?.into(),
                "--out" => options.out = value()?.into(),
                "--cores" => options.cores = cores(&value()?)?,
                "guard" => options.part = Part::Guard { update: false },
                "--update" => options.part = Part::Guard { update: true },
                "train" => options.part = Part::Train,
                "backend" => {
                    let port = value()?;
                    let port = port.parse().map_err(|_| format!("{port}: no port"))?;
                    options.part = Part::Backend(port);
                }
                other => return Err(format!("what is {other}?")),
            }
        }
        Ok(Some(options))
    }

    /// Whether a scenario is to be run: all, unless some are named.
    pub(crate) fn wants(&self, scenario: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| scenario.starts_with(only.as_str()))
    }

    /// Whether a contestant takes part.
    pub(crate) fn invites(&self, contestant: &str) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|peer| contestant == peer)
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(|item| item.trim().to_owned()).collect()
}

fn cores(text: &str) -> Result<(usize, usize), String> {
    let pair = text.split_once(',').and_then(|(p, l)| Some((p.parse().ok()?, l.parse().ok()?)));
    pair.ok_or(format!("{text}: two numbers with a comma between them are wanted"))
}
