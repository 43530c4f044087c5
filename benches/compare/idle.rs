//! Thousands of keep-alive connections that do nothing: what each of them holds, and whether it is
//! given back when they close.

use crate::contestants::{Contestant, Limits, Setup, Stage};
use crate::machine::Failure;
use crate::options::Options;
use crate::report::{Idle, Report};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

const CONNECTIONS: usize = 5000;
const CONTESTANTS: [Contestant; 5] = [
    Contestant::Nginx,
    Contestant::Sluice,
    Contestant::Haproxy,
    Contestant::Envoy,
    Contestant::Caddy,
];

/// How long a contestant may take to give memory back.
const SETTLE: Duration = Duration::from_secs(15);

pub(crate) fn run(options: &Options, stage: &Stage, report: &mut Report) -> Result<(), Failure> {
    if !options.wants("idle") {
        return Ok(());
    }
    for contestant in CONTESTANTS {
        let name = contestant.name();
        if !options.invites(name) || stage.find(contestant).is_err() {
            continue;
        }
        let mut idle =
            Idle { contestant: name, connections: CONNECTIONS, each_kib: vec![], kept: vec![] };
        // Memory does not depend on what else the machine does.
        for _ in 0..options.rounds.min(2) {
            let (each, kept) = measure(stage, contestant)?;
            println!("idle {name:<17}{each:>6.1} KiB each, {:.0}% kept", kept * 100.0);
            idle.each_kib.push(each);
            idle.kept.push(kept);
        }
        report.idle.push(idle);
    }
    Ok(())
}

/// KiB for each connection, and the share of it that is still held after all have closed.
fn measure(stage: &Stage, contestant: Contestant) -> Result<(f64, f64), Failure> {
    let limits = if contestant == Contestant::Caddy { Limits::None } else { Limits::Admit };
    let running = stage.start(contestant, &Setup::new(limits))?;
    // One connection after the other, so that one upstream connection serves them all.
    ask(&mut connect(running.port)?)?;
    sleep(Duration::from_millis(200));
    let before = running.process.memory() as f64;
    let mut open = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut stream = connect(running.port)?;
        ask(&mut stream)?;
        open.push(stream);
    }
    let during = running.process.memory() as f64;
    drop(open);
    sleep(SETTLE);
    let after = running.process.memory() as f64;
    Ok(((during - before) / CONNECTIONS as f64, (after - before) / (during - before)))
}

fn connect(port: u16) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

/// One request, and its answer to the end.
pub(crate) fn ask(stream: &mut TcpStream) -> Result<(), Failure> {
    stream.write_all(
        b"GET / HTTP/1.1\r\nHost: bench\r\nX-User-Id: ada\r\nX-Api-Key: bench-key\r\n\r\n",
    )?;
    let mut bytes = [0; 4096];
    let mut filled = 0;
    loop {
        match stream.read(&mut bytes[filled..])? {
            0 => return Err(Failure::said("a connection ended before its answer did")),
            count => filled += count,
        }
        if let Some(length) = answer_length(&bytes[..filled])
            && filled >= length
        {
            return Ok(());
        }
    }
}

/// Head and body together, once the head is there.
fn answer_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    Some(end + length.and_then(|length| length.trim().parse().ok()).unwrap_or(0))
}
