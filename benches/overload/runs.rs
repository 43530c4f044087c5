//! What is tried, and what came of it.

use crate::backend::{Backend, Service};
use crate::callers::{Asked, Traffic, ask};
use crate::machine::{Failure, Process, held_port};
use crate::plot;
use serde::Serialize;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The backend of most runs: 800 requests a second.
const WORKERS: usize = 16;
const SERVICE: Service = Service::Exponential(Duration::from_millis(20));

const LOADS: [f64; 5] = [0.5, 1.0, 2.0, 5.0, 10.0];

/// The part of the capacity that critical requests ask for, whatever the others do.
const CRITICAL: f64 = 0.3;

/// What is not counted at the beginning of a run, and what is.
const WARM: Duration = Duration::from_secs(6);
const COUNTED: Duration = Duration::from_secs(12);

/// With adaptive concurrency, and without.
const ADAPTIVE: &str = "concurrency: { adaptive: { min: 2, max: 1000 } }";
const NONE: &str = "";

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) steps: Vec<Step>,
    pub(crate) halved: Vec<Moment>,
    pub(crate) neighbours: Vec<Neighbours>,
}

/// One load, with the gate or without it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) adaptive: bool,
    /// In terms of the capacity.
    pub(crate) load: f64,
    /// Answered in time, in terms of the capacity.
    pub(crate) goodput: f64,
    /// Of those that were answered at all.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Which shares were answered in time, and how long critical ones took.
    pub(crate) critical: f64,
    pub(crate) normal: f64,
    pub(crate) sheddable: f64,
    pub(crate) critical_p99_ms: f64,
}

/// A tenth of a second of the run in which the capacity changes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Moment {
    pub(crate) seconds: f64,
    pub(crate) places: f64,
    pub(crate) workers: f64,
    /// Answered in time in the second around it, in terms of the capacity at that time.
    pub(crate) goodput: f64,
}

/// Fifty callers at half of their limit, with and without one at a hundred times of its own.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Neighbours {
    pub(crate) noisy: bool,
    pub(crate) asked: usize,
    pub(crate) refused: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Of the one: how many were let through, of how many.
    pub(crate) passed: usize,
    pub(crate) flood: usize,
}

impl Report {
    pub(crate) fn make(binary: &Path) -> Result<Self, Failure> {
        let mut steps = Vec::new();
        for load in LOADS {
            for concurrency in [NONE, ADAPTIVE] {
                let step = step(binary, load, concurrency)?;
                println!("{step:?}");
                steps.push(step);
            }
        }
        let halved = halved(binary)?;
        let mut neighbours = Vec::new();
        for _ in 0..3 {
            for noisy in [false, true] {
                let found = self::neighbours(binary, noisy)?;
                println!("{found:?}");
                neighbours.push(found);
            }
        }
        Ok(Self { steps, halved, neighbours })
    }

    pub(crate) fn print(&self) {
        println!("\n  load  gate      goodput   p50 ms   p99 ms  critical   normal  sheddable");
        for step in &self.steps {
            println!(
                "{:>6.1}  {:<9}{:>7.0}% {:>8.0} {:>8.0} {:>8.2}% {:>7.1}% {:>9.1}%",
                step.load,
                if step.adaptive { "adaptive" } else { "none" },
                step.goodput * 100.0,
                step.p50_ms,
                step.p99_ms,
                step.critical * 100.0,
                step.normal * 100.0,
                step.sheddable * 100.0,
            );
        }
        let of = |load: f64| self.steps.iter().find(move |s| s.adaptive && s.load >= load);
        if let (Some(calm), Some(worst)) = (of(0.5), of(10.0)) {
            let adaptive = self.steps.iter().filter(|step| step.adaptive);
            let best = adaptive.map(|step| step.goodput).fold(0.0, f64::max);
            println!(
                "\nat ten times the capacity: goodput {:.0}% of the best (asked: 90), p99 {:.2} x calm (asked: 3), critical {:.2}% (asked: 99.9)",
                worst.goodput / best * 100.0,
                worst.p99_ms / calm.p99_ms,
                worst.critical * 100.0,
            );
        }
        for (name, from, to) in
            [("before", 5.0, 10.0), ("halved", 13.0, 20.0), ("after", 23.0, 30.0)]
        {
            let moments = self.halved.iter().filter(|m| (from..to).contains(&m.seconds));
            let (places, goodput, count) = moments.fold((0.0, 0.0, 0.0), |(p, g, n), moment| {
                (p + moment.places, g + moment.goodput, n + 1.0)
            });
            println!(
                "capacity {name}: {:.0} places, goodput {:.0}% of the capacity",
                places / count,
                goodput / count * 100.0
            );
        }
        let p99 = |noisy: bool| {
            let mut all: Vec<f64> =
                self.neighbours.iter().filter(|n| n.noisy == noisy).map(|n| n.p99_ms).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let refused: usize = self.neighbours.iter().map(|n| n.refused).sum();
        println!(
            "neighbours: p99 {:.1} ms alone, {:.1} ms beside a flood ({:+.1}%, asked: +10), {refused} refused",
            p99(false),
            p99(true),
            (p99(true) / p99(false) - 1.0) * 100.0
        );
    }

    pub(crate) fn write(&self) -> Result<(), Failure> {
        let json = serde_json::to_string_pretty(self).map_err(|e| Failure::said(e.to_string()))?;
        fs::write("benches/results/overload.json", json + "\n")?;
        fs::create_dir_all("docs/overload")?;
        for (name, picture) in plot::draw(self) {
            fs::write(format!("docs/overload/{name}.svg"), picture)?;
        }
        println!("\nbenches/results/overload.json and docs/overload/*.svg are written");
        Ok(())
    }
}

/// A gateway that runs, and its files.
struct Gateway {
    address: SocketAddr,
    admin: SocketAddr,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Gateway {
    fn start(
        binary: &Path,
        backend: &Backend,
        upstream: &str,
        rest: &str,
    ) -> Result<Self, Failure> {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (address, admin) = (local(held_port()?), local(held_port()?));
        let yaml = format!(
            "listen: {address}
admin: {admin}
logging: {{ access: off }}
identity: {{ trusted_proxies: [127.0.0.1] }}
server: {{ max_connections_per_ip: none }}
upstreams: {{ app: {{ endpoints: ['http://{}'], eject: off, {upstream} }} }}
{rest}",
            backend.address
        );
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("gateway.yaml");
        fs::write(&file, yaml)?;
        let mut command = Command::new(binary);
        command.args(["run".as_ref(), "-c".as_ref(), file.as_os_str()]);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let all = format!("0-{}", cores - 1);
        let mut process = Process::start(&all, &command, Stdio::null(), Stdio::inherit())?;
        process.listens(address.port())?;
        Ok(Self { address, admin, _process: process, _folder: folder })
    }

    /// What the gauge stands at.
    fn reading(&self, gauge: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(self.admin).ok()?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            .ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        let line = page.lines().find(|line| line.starts_with(gauge))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

const ROUTES: &str = "
overload: { reserve: { critical: 20% } }
routes:
  - { path: /, upstream: app }
  - { path: /critical, upstream: app, priority: critical }
  - { path: /sheddable, upstream: app, priority: sheddable }";

fn step(binary: &Path, load: f64, concurrency: &str) -> Result<Step, Failure> {
    let backend = Backend::start(WORKERS, SERVICE)?;
    let gateway = Gateway::start(binary, &backend, concurrency, ROUTES)?;
    let capacity = backend.capacity();
    let rest = (load - CRITICAL) * capacity / 2.0;
    let traffic = [
        Traffic::new("/critical", CRITICAL * capacity),
        Traffic::new("/", rest),
        Traffic::new("/sheddable", rest),
    ];
    let asked = ask(gateway.address, &traffic, WARM + COUNTED, |_| {})?;
    let asked: Vec<Asked> = asked.into_iter().filter(|asked| asked.at >= WARM).collect();
    let good = |asked: &&Asked| asked.status == Some(200);
    let answered = asked.iter().filter(good).count();
    let share = |traffic: usize| {
        let all = asked.iter().filter(|asked| asked.traffic == traffic);
        all.clone().filter(good).count() as f64 / all.count().max(1) as f64
    };
    // Whoever gave up waited at least that long.
    let waited = |asked: &&Asked| asked.status.is_none_or(|status| status == 200);
    let admitted: Vec<Asked> = asked.iter().filter(waited).copied().collect();
    let critical: Vec<Asked> = admitted.iter().filter(|a| a.traffic == 0).copied().collect();
    Ok(Step {
        adaptive: !concurrency.is_empty(),
        load,
        goodput: answered as f64 / COUNTED.as_secs_f64() / capacity,
        p50_ms: percentile(&admitted, 0.5),
        p99_ms: percentile(&admitted, 0.99),
        critical: share(0),
        normal: share(1),
        sheddable: share(2),
        critical_p99_ms: percentile(&critical, 0.99),
    })
}

#[expect(clippy::cast_sign_loss, reason = "a share of a count")]
fn percentile(asked: &[Asked], share: f64) -> f64 {
    let mut took: Vec<Duration> = asked.iter().map(|asked| asked.took).collect();
    took.sort_unstable();
    let at = (took.len().saturating_sub(1) as f64 * share) as usize;
    took.get(at).map_or(0.0, |took| took.as_secs_f64() * 1e3)
}

/// Three times the capacity for thirty seconds, in the middle third of which half of it is gone.
fn halved(binary: &Path) -> Result<Vec<Moment>, Failure> {
    let backend = Backend::start(WORKERS, SERVICE)?;
    let routes = "routes: [{ path: /, upstream: app }]";
    let gateway = Gateway::start(binary, &backend, ADAPTIVE, routes)?;
    let (whole, mut moments) = (backend.capacity(), Vec::new());
    let traffic = [Traffic::new("/", 3.0 * whole)];
    let asked = ask(gateway.address, &traffic, Duration::from_secs(30), |elapsed| {
        let seconds = elapsed.as_secs_f64();
        let workers = if (10.0..20.0).contains(&seconds) { WORKERS / 2 } else { WORKERS };
        backend.set_workers(workers);
        let places = gateway.reading("sluice_upstream_places{").unwrap_or_default();
        moments.push(Moment { seconds, places, workers: workers as f64, goodput: 0.0 });
    })?;
    smooth(&mut moments);
    for moment in &mut moments {
        let ended = |asked: &&Asked| {
            let end = (asked.at + asked.took).as_secs_f64();
            asked.status == Some(200) && (end - moment.seconds).abs() < 0.5
        };
        let capacity = whole * moment.workers / WORKERS as f64;
        moment.goodput = asked.iter().filter(ended).count() as f64 / capacity;
    }
    Ok(moments)
}

/// The number moves with every window: what counts is around which it does.
fn smooth(moments: &mut [Moment]) {
    let places: Vec<f64> = moments.iter().map(|moment| moment.places).collect();
    for (index, moment) in moments.iter_mut().enumerate() {
        let around = &places[index.saturating_sub(2)..(index + 3).min(places.len())];
        moment.places = around.iter().sum::<f64>() / around.len() as f64;
    }
}

/// Everybody may ask twenty times a second. The backend has room for twice as much as all of them.
fn neighbours(binary: &Path, noisy: bool) -> Result<Neighbours, Failure> {
    const LIMIT: f64 = 20.0;
    let backend = Backend::start(40, Service::Even(Duration::from_millis(20)))?;
    let limits = format!("limits: [{{ by: ip, rate: {LIMIT}/s }}]{ROUTES}");
    let gateway = Gateway::start(binary, &backend, ADAPTIVE, &limits)?;
    let quiet = (1..=50).map(|caller| Traffic {
        ip: format!("10.0.1.{caller}"),
        even: true,
        ..Traffic::new("/", LIMIT / 2.0)
    });
    let flood = Traffic { ip: "10.0.2.1".to_owned(), ..Traffic::new("/", LIMIT * 100.0) };
    let traffic: Vec<Traffic> = quiet.chain(noisy.then_some(flood)).collect();
    let asked = ask(gateway.address, &traffic, WARM + COUNTED, |_| {})?;
    let asked = asked.into_iter().filter(|asked| asked.at >= WARM);
    let (quiet, flood): (Vec<Asked>, Vec<Asked>) = asked.partition(|asked| asked.traffic < 50);
    let passed = |asked: &&Asked| asked.status == Some(200);
    Ok(Neighbours {
        noisy,
        asked: quiet.len(),
        refused: quiet.len() - quiet.iter().filter(passed).count(),
        p50_ms: percentile(&quiet, 0.5),
        p99_ms: percentile(&quiet, 0.99),
        passed: flood.iter().filter(passed).count(),
        flood: flood.len(),
    })
}
