//! Thousands of keep-alive connections that do nothing: what each of them holds, and whether it is
//! given back when they close.

use crate::contestants::{Contestant, Edge, Limits, Setup, Stage};
use crate::machine::Failure;
use crate::options::Options;
use crate::report::{Idle, Report};
use rustls::client::Resumption;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
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

/// The same through TLS.
const ENCRYPTED: [(Contestant, Edge); 4] = [
    (Contestant::Nginx, Edge::Tls),
    (Contestant::Sluice, Edge::Tls),
    (Contestant::Haproxy, Edge::Tls),
    (Contestant::Envoy, Edge::Tls),
];

/// How long a contestant may take to give memory back.
const SETTLE: Duration = Duration::from_secs(15);

pub(crate) fn run(options: &Options, stage: &Stage, report: &mut Report) -> Result<(), Failure> {
    if !options.wants("idle") {
        return Ok(());
    }
    for (contestant, edge) in CONTESTANTS.map(|c| (c, Edge::Http1)).into_iter().chain(ENCRYPTED) {
        let name = contestant.name();
        if !options.invites(name) || stage.find(contestant).is_err() {
            continue;
        }
        let encrypted = edge == Edge::Tls;
        let (each_kib, kept) = (vec![], vec![]);
        let mut idle =
            Idle { contestant: name, encrypted, connections: CONNECTIONS, each_kib, kept };
        // Memory does not depend on what else the machine does.
        for _ in 0..options.rounds.min(2) {
            let (each, kept) = measure(stage, contestant, edge)?;
            let how = if encrypted { "TLS " } else { "" };
            println!("idle {how}{name:<17}{each:>6.1} KiB each, {:.0}% kept", kept * 100.0);
            idle.each_kib.push(each);
            idle.kept.push(kept);
        }
        report.idle.push(idle);
    }
    Ok(())
}

/// KiB for each connection, and the share of it that is still held after all have closed.
fn measure(stage: &Stage, contestant: Contestant, edge: Edge) -> Result<(f64, f64), Failure> {
    let limits = if contestant == Contestant::Caddy { Limits::None } else { Limits::Admit };
    let running = stage.start(contestant, &Setup::new(limits).on(edge))?;
    let tls = (edge == Edge::Tls).then(|| client(stage)).transpose()?;
    let open = || -> Result<Open, Failure> {
        let stream = connect(running.port)?;
        let Some(config) = &tls else { return Ok(Open::Plain(stream)) };
        let name = "localhost".try_into().map_err(|_| Failure::said("no name"))?;
        let client = ClientConnection::new(Arc::clone(config), name);
        let client = client.map_err(|error| Failure::said(error.to_string()))?;
        Ok(Open::Tls(Box::new(StreamOwned::new(client, stream))))
    };
    // One connection after the other, so that one upstream connection serves them all.
    open()?.ask()?;
    sleep(Duration::from_millis(200));
    let before = running.process.memory() as f64;
    let mut all = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut stream = open()?;
        stream.ask()?;
        all.push(stream);
    }
    let during = running.process.memory() as f64;
    drop(all);
    sleep(SETTLE);
    let after = running.process.memory() as f64;
    Ok(((during - before) / CONNECTIONS as f64, (after - before) / (during - before)))
}

/// A connection that stays open.
enum Open {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Open {
    fn ask(&mut self) -> Result<(), Failure> {
        match self {
            Self::Plain(stream) => ask(stream),
            Self::Tls(stream) => ask(stream),
        }
    }
}

/// A client that believes the run's certificate, and takes no session up again.
fn client(stage: &Stage) -> Result<Arc<ClientConfig>, Failure> {
    let pem = std::fs::read(stage.folder().join("cert.pem"))?;
    let roots = sluice::tls::roots(&pem).map_err(|error| Failure::said(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Failure::said(error.to_string()))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn connect(port: u16) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

/// One request, and its answer to the end.
pub(crate) fn ask(stream: &mut (impl Read + Write)) -> Result<(), Failure> {
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
