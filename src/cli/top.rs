//! `sluice top`: a running gateway in a terminal, by what its admin listener tells.

mod frame;

use super::client::Admin;
use super::output::{Unprinted, print};
use super::paint::Paint;
use super::{Outcome, client::AdminError};
use frame::Frame;
use rustix::termios::tcgetwinsize;
use serde_json::Value;
use std::io::IsTerminal;
use std::time::Duration;

/// What is asked.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The gateway's admin listener
    #[arg(long, default_value = "http://127.0.0.1:9901", value_name = "URL")]
    admin: String,
    /// Its token [default: `SLUICE_ADMIN_TOKEN` of the environment]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    every: f64,
    /// Print one picture and end
    #[arg(long)]
    once: bool,
}

/// A terminal whose size is not known.
const WIDTH: usize = 100;
const HEIGHT: usize = 40;

/// Another page for the pictures, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let admin = Admin::at(&arguments.admin, arguments.token.clone())?;
    let every = Duration::try_from_secs_f64(arguments.every)
        .ok()
        .filter(|every| (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(every))
        .ok_or("'--every' is between 0.1 and 3600 seconds")?;
    // Whoever cannot be asked now is an error; whoever cannot later may come back.
    let first = admin.get("/api/v1/live")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if arguments.once || !std::io::stdout().is_terminal() {
            tokio::time::sleep(every).await;
            let frame = Frame { before: &first, now: &admin.get("/api/v1/live")? };
            return Ok(print(&frame.draw(WIDTH, usize::MAX, Paint::for_stdout()))?);
        }
        let screen = Screen::new()?;
        let outcome = watch(&admin, first, every).await;
        drop(screen);
        outcome
    })
}

/// Draws again and again, until Ctrl-C.
async fn watch(admin: &Admin, first: Value, every: Duration) -> Outcome {
    let (mut before, mut interval) = (first, tokio::time::interval(every));
    interval.tick().await;
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            _ = interval.tick() => {}
        }
        match admin.get("/api/v1/live") {
            Ok(now) => {
                show(&Frame { before: &before, now: &now })?;
                before = now;
            }
            Err(error @ AdminError::Refused(..)) => return Err(error.into()),
            Err(error) => print(&format!("\x1b[H\x1b[2K{error}"))?,
        }
    }
}

fn show(frame: &Frame<'_>) -> Result<(), Unprinted> {
    let size = tcgetwinsize(std::io::stdout()).ok();
    let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    let (width, height) =
        size.map_or((WIDTH, HEIGHT), |size| (size.ws_col.into(), size.ws_row.into()));
    let text = frame.draw(width, height, Paint::for_stdout());
    // Line by line over what is there, so that nothing flickers.
    let lines = text.lines().map(|line| format!("{line}\x1b[K"));
    print(&format!("\x1b[H{}\x1b[J", lines.collect::<Vec<_>>().join("\r\n")))
}

/// The terminal is given back as it was, however this ends.
struct Screen;

impl Screen {
    fn new() -> Result<Self, Unprinted> {
        print(ENTER)?;
        Ok(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = print(LEAVE);
    }
}
