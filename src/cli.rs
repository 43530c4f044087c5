//! The command line. Each command is a file of its own.

mod backend;
mod check;
mod client;
mod demo;
mod explain;
mod key;
mod logs;
mod output;
mod paint;
mod progress;
mod run;
mod schema;
mod simulate;
mod suggest;
mod table;
mod top;

use crate::lines::Lines;
use clap::{Parser, Subcommand};
use output::{Unprinted, remark};
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

/// A reverse-proxy API gateway with rate limiting built in: one binary, one gateway.yaml.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway
    Run {
        /// The configuration; saving it, or SIGHUP, reloads it
        #[arg(short, long, default_value = "gateway.yaml", value_name = "FILE")]
        config: PathBuf,
        /// How many workers [default: one per core]
        #[arg(long, value_name = "N")]
        workers: Option<usize>,
    },
    /// Say whether a configuration is good, or everything that is wrong with it
    Check {
        /// The configuration
        #[arg(default_value = "gateway.yaml", value_name = "FILE")]
        config: PathBuf,
    },
    /// Try it: a gateway with layered limits in front of a built-in backend
    Demo {
        /// Where the gateway listens
        #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
        listen: SocketAddr,
        /// Run the sample backend alone, on this address
        #[arg(long, value_name = "ADDRESS", conflicts_with = "listen")]
        only_backend: Option<SocketAddr>,
    },
    /// Print a JSON Schema of gateway.yaml, for editors
    Schema,
    /// Say what would happen to a request, and why; nothing is charged
    Explain(explain::Arguments),
    /// Try limits on the traffic of logs: who would be rejected, when, and by which
    Simulate(simulate::Arguments),
    /// Propose how large limits should be, from what logs say callers use
    Suggest(suggest::Arguments),
    /// Watch a running gateway: traffic, limits, callers, health
    Top(top::Arguments),
    /// Make API keys
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Print a fresh key, once, and the line for gateway.yaml
    New {
        /// What the key is called in limits, logs and metrics [default: a random name]
        #[arg(long)]
        id: Option<String>,
        /// The key's plan
        #[arg(long, value_name = "PLAN")]
        plan: Option<String>,
    },
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let diagnostics = log_to_stderr();
    let outcome = match arguments.command {
        Command::Run { config, workers } => run::run(&config, workers),
        Command::Check { config } => check::check(&config),
        Command::Demo { only_backend: Some(address), .. } => backend::run(address),
        Command::Demo { listen, .. } => demo::run(listen),
        Command::Schema => schema::print(),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Simulate(arguments) => simulate::run(arguments),
        Command::Suggest(arguments) => suggest::run(arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Key { command: KeyCommand::New { id, plan } } => key::new(id, plan.as_deref()),
    };
    diagnostics.close();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if matches!(error.downcast_ref(), Some(Unprinted::ReaderGone)) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            remark(&format!("{error}\n"));
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Diagnostics go to stderr; stdout belongs to the access log. `SLUICE_LOG` sets the level. A
/// stderr that is full, stuck or gone holds up nobody.
fn log_to_stderr() -> Arc<Lines> {
    let level = std::env::var("SLUICE_LOG").ok().and_then(|level| level.parse().ok());
    let lines = Arc::new(Lines::new(1, Box::new(std::io::stderr()), Arc::default()));
    let writer = Arc::clone(&lines);
    tracing_subscriber::fmt()
        .with_writer(move || Diagnostic(Arc::clone(&writer)))
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .log_internal_errors(false)
        .init();
    lines
}

/// Passes one event on; tracing writes an event in one piece.
struct Diagnostic(Arc<Lines>);

impl Write for Diagnostic {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.append(0, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
