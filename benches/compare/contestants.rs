//! Who is measured, and how each is set up: by a file in `peers/`, with the scenario filled in.

use crate::machine::{Failure, Process, held_port};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Everybody that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contestant {
    Sluice,
    Nginx,
    /// nginx that passes bodies on as they come.
    NginxUnbuffered,
    /// nginx that writes every reject to its error log, as it does unless told otherwise.
    NginxErrorLog,
    /// nginx with its limits in Redis, by Lua.
    NginxRedis,
    /// Ours, sharing its limits through Redis: every decision, or blocks of them.
    SluiceRedis,
    SluiceLeased,
    /// Ours with everything against overload: places in the process and at the upstream, found out.
    SluiceOverload,
    /// With the dashboard open, and scraped every second.
    SluiceWatched,
    Haproxy,
    Envoy,
    Caddy,
}

impl Contestant {
    pub(crate) const ALL: [Self; 6] =
        [Self::Nginx, Self::Sluice, Self::NginxUnbuffered, Self::Haproxy, Self::Envoy, Self::Caddy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sluice => "sluice",
            Self::Nginx => "nginx",
            Self::NginxUnbuffered => "nginx-unbuffered",
            Self::NginxErrorLog => "nginx-error-log",
            Self::NginxRedis => "nginx-redis",
            Self::SluiceRedis => "sluice-redis",
            Self::SluiceLeased => "sluice-leased",
            Self::SluiceOverload => "sluice-overload",
            Self::SluiceWatched => "sluice-watched",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Caddy => "caddy",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::NginxUnbuffered | Self::NginxErrorLog | Self::NginxRedis => "nginx",
            other => other.name(),
        }
    }

    fn version_flag(self) -> &'static str {
        match self {
            Self::Envoy => "--version",
            _ if self.is_ours() => "--version",
            Self::Caddy => "version",
            _ => "-v",
        }
    }

    /// Whether it is another way to set up a program that takes part anyway.
    pub(crate) fn is_variant(self) -> bool {
        !Self::ALL.contains(&self) || self == Self::NginxUnbuffered
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(
            self,
            Self::Sluice
                | Self::SluiceRedis
                | Self::SluiceLeased
                | Self::SluiceOverload
                | Self::SluiceWatched
        )
    }

    fn needs_redis(self) -> bool {
        matches!(self, Self::NginxRedis | Self::SluiceRedis | Self::SluiceLeased)
    }
}

/// What limits a contestant has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Limits {
    None,
    /// They admit everything.
    Admit,
    /// They reject everything.
    Reject,
    /// Ours alone: the routes of the file as they are to be.
    Routes(String),
}

/// How a contestant is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) limits: Limits,
    pub(crate) log: bool,
    /// Ours alone: how many workers, on how many cores.
    pub(crate) workers: usize,
    pub(crate) edge: Edge,
}

/// What is spoken with callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Edge {
    #[default]
    Http1,
    /// HTTP/2 by prior knowledge.
    Http2,
    /// Either of them through TLS.
    Tls,
}

impl Setup {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, log: false, workers: 1, edge: Edge::Http1 }
    }

    /// The same, spoken to otherwise.
    pub(crate) fn on(self, edge: Edge) -> Self {
        Self { edge, ..self }
    }
}

/// A certificate as most have it: ECDSA, P-256.
fn certify(folder: &Path) -> Result<(), Failure> {
    let said = |error: rcgen::Error| Failure::said(error.to_string());
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(said)?;
    let params = rcgen::CertificateParams::new(names).map_err(said)?;
    let (cert, key) = (params.self_signed(&key).map_err(said)?.pem(), key.serialize_pem());
    fs::write(folder.join("cert.pem"), &cert)?;
    fs::write(folder.join("key.pem"), &key)?;
    Ok(fs::write(folder.join("both.pem"), cert + &key)?)
}

/// What nginx needs for limits in Redis.
const LUA_MODULE: &str = "/usr/lib/nginx/modules/ngx_http_lua_module.so";

/// A redis-server that keeps nothing, if there is one.
fn redis(core: &str, folder: &Path) -> Result<Option<(u16, Process)>, Failure> {
    if Command::new("redis-server").arg("--version").output().is_err() {
        return Ok(None);
    }
    let port = held_port()?;
    let mut command = Command::new("redis-server");
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .arg("--dir")
        .arg(folder);
    let mut process = Process::start(core, &command, Stdio::null(), Stdio::null())?;
    process.listens(port)?;
    Ok(Some((port, process)))
}

/// Where it all happens.
#[derive(Debug)]
pub(crate) struct Stage {
    folder: tempfile::TempDir,
    binary: PathBuf,
    cores: (usize, usize),
    pub(crate) backend: u16,
    _backend: Process,
    /// Beside wrk and the backend, if it is installed.
    redis: Option<(u16, Process)>,
}

/// A contestant that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

impl Stage {
    /// Starts the backend.
    pub(crate) fn new(binary: &Path, cores: (usize, usize)) -> Result<Self, Failure> {
        let backend = held_port()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["backend", &backend.to_string()]);
        let mut process =
            Process::start(&cores.1.to_string(), &command, Stdio::null(), Stdio::inherit())?;
        process.listens(backend)?;
        let binary = binary.canonicalize().map_err(|_| {
            Failure::said(format!("{} is not there: make release", binary.display()))
        })?;
        let folder = tempfile::tempdir()?;
        certify(folder.path())?;
        let redis = redis(&cores.1.to_string(), folder.path())?;
        Ok(Self { folder, binary, cores, backend, _backend: process, redis })
    }

    /// The core for wrk.
    pub(crate) fn load_core(&self) -> String {
        self.cores.1.to_string()
    }

    /// Both cores.
    pub(crate) fn own_core(&self) -> String {
        self.cores.0.to_string()
    }

    /// The contestant's, and that of the load.
    pub(crate) fn all_cores(&self) -> String {
        format!("{},{}", self.cores.0, self.cores.1)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A contestant's program and what it says of its version, or why there is none.
    pub(crate) fn find(&self, contestant: Contestant) -> Result<(PathBuf, String), String> {
        let program = match contestant {
            ours if ours.is_ours() => self.binary.clone(),
            other => PathBuf::from(other.program()),
        };
        if contestant.needs_redis() && self.redis.is_none() {
            return Err("redis-server is not installed; `make bench-peers` installs it".to_owned());
        }
        if contestant == Contestant::NginxRedis && !Path::new(LUA_MODULE).exists() {
            return Err("nginx has no Lua; `make bench-peers` installs it".to_owned());
        }
        let output = Command::new(&program).arg(contestant.version_flag()).output();
        let output = output.map_err(|_| {
            format!("{} is not installed; `make bench-peers` installs it", program.display())
        })?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find(|line| line.chars().any(|c| c.is_ascii_digit()));
        Ok((program, line.unwrap_or_default().trim().to_owned()))
    }

    /// Starts a contestant and waits until it listens.
    pub(crate) fn start(&self, contestant: Contestant, setup: &Setup) -> Result<Running, Failure> {
        let port = held_port()?;
        let mut command = self.command(contestant, setup, port)?;
        if contestant == Contestant::Caddy {
            command.env("GOMAXPROCS", "1").env("HOME", self.folder());
        }
        let cores = if setup.workers > 1 { self.all_cores() } else { self.cores.0.to_string() };
        let output = fs::File::create(self.folder().join("output"))?;
        let errors = self.folder().join("errors");
        let mut process = Process::start(&cores, &command, output, fs::File::create(&errors)?)?;
        process.listens(port).map_err(|failure| {
            let said = fs::read_to_string(&errors).unwrap_or_default();
            Failure::said(format!("{failure}\n{said}"))
        })?;
        Ok(Running { process, port })
    }

    /// A gateway whose instructions are counted, and its port.
    pub(crate) fn counted(
        &self,
        binary: &Path,
        log: &Path,
        setup: &Setup,
    ) -> Result<(Command, u16), Failure> {
        let port = held_port()?;
        let file = self.write("gateway.yaml", &self.sluice(setup, port, Contestant::Sluice)?)?;
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(format!("--log-file={}", log.display()))
            .arg(binary)
            .args(["run", "--workers", "1", "-c"])
            .arg(file);
        Ok((command, port))
    }

    fn command(
        &self,
        contestant: Contestant,
        setup: &Setup,
        port: u16,
    ) -> Result<Command, Failure> {
        let (program, _) = self.find(contestant).map_err(Failure::Said)?;
        let mut command = Command::new(program);
        match contestant {
            Contestant::Sluice
            | Contestant::SluiceRedis
            | Contestant::SluiceLeased
            | Contestant::SluiceOverload
            | Contestant::SluiceWatched => {
                let text = self.sluice(setup, port, contestant)?;
                let file = self.write("gateway.yaml", &text)?;
                let workers = setup.workers.to_string();
                command.args(["run", "--workers", &workers, "-c"]).arg(file);
            }
            Contestant::Nginx | Contestant::NginxUnbuffered | Contestant::NginxErrorLog => {
                let file = self.write("nginx.conf", &self.nginx(setup, port, contestant))?;
                command.args(["-e", "stderr", "-c"]).arg(file);
            }
            Contestant::NginxRedis => {
                let most = if setup.limits == Limits::Reject { "0" } else { "1000000000" };
                let redis = self.redis_port();
                let fields = [("@REDIS", redis.as_str()), ("@MOST", most)];
                let text = self.fill(include_str!("peers/nginx-redis.conf"), port, &fields);
                let file = self.write("nginx-redis.conf", &text)?;
                command.args(["-e", "stderr", "-c"]).arg(file);
            }
            Contestant::Haproxy => {
                let file = self.write("haproxy.cfg", &self.haproxy(setup, port))?;
                command.args(["-db", "-q", "-f"]).arg(file);
            }
            Contestant::Envoy => {
                let file = self.write("envoy.yaml", &self.envoy(setup, port))?;
                let flags = ["--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c"];
                command.args(flags).arg(file);
            }
            Contestant::Caddy => {
                let file = self.write("Caddyfile", &self.caddy(setup, port))?;
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
            }
        }
        Ok(command)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.folder().join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Fills in what every file needs.
    fn fill(&self, text: &str, port: u16, fields: &[(&str, &str)]) -> String {
        let folder = self.folder().to_string_lossy();
        let ends = [
            ("@PORT", port.to_string()),
            ("@BACKEND", self.backend.to_string()),
            ("@FOLDER", folder.into_owned()),
        ];
        let filled = fields.iter().fold(text.to_owned(), |text, (at, with)| text.replace(at, with));
        ends.iter().fold(filled, |text, (at, with)| text.replace(at, with))
    }

    fn redis_port(&self) -> String {
        self.redis.as_ref().map(|(port, _)| port.to_string()).unwrap_or_default()
    }

    fn sluice(&self, setup: &Setup, port: u16, contestant: Contestant) -> Result<String, Failure> {
        let leased = contestant == Contestant::SluiceLeased;
        let how = if leased { ", consistency: leased" } else { "" };
        let limits = |per_ip: &str| {
            format!(
                "limits:
      - {{ name: per-ip, by: ip, rate: {per_ip}{how} }}
      - {{ name: per-user, by: user, rate: 1000000/second{how} }}
      - {{ name: per-key, by: api_key, rate: 1000000/second{how} }}"
            )
        };
        let store = if contestant.needs_redis() {
            // Counters of their own: a limit that is used up is no other scenario's.
            let url = format!("redis://127.0.0.1:{}", self.redis_port());
            format!("{{ redis: {{ url: '{url}', prefix: b{port} }} }}")
        } else {
            "memory".to_owned()
        };
        let (limits, routes) = match &setup.limits {
            Limits::None => (String::new(), None),
            Limits::Admit => (limits("1000000/second"), None),
            Limits::Reject => (limits("1/day"), None),
            Limits::Routes(routes) => (String::new(), Some(routes)),
        };
        let sample = "{ format: json, sample: { allowed: 100%, rejected: 100% } }";
        let log = if setup.log { sample } else { "off" };
        let admin = held_port()?.to_string();
        let listen = match setup.edge {
            Edge::Http1 | Edge::Http2 => "127.0.0.1:@PORT",
            Edge::Tls => {
                "{ address: 127.0.0.1:@PORT, tls: { certificates: [{ cert: cert.pem, key: key.pem }] } }"
            }
        };
        let fields = [
            ("@LISTEN", listen),
            ("@LIMITS", limits.as_str()),
            ("@LOG", log),
            ("@ADMIN", &admin),
            ("@STORE", &store),
        ];
        let text = include_str!("peers/sluice.yaml");
        let text = match (routes, text.split_once("routes:"), text.split_once("logging:")) {
            (Some(routes), Some((before, _)), Some((_, after))) => {
                // They may say where counters live.
                let own = routes.contains("store:");
                let before =
                    if own { before.replace("store: @STORE\n", "") } else { before.into() };
                format!("{before}{routes}\nlogging:{after}")
            }
            _ => text.to_owned(),
        };
        let text = self.fill(&text, port, &fields);
        Ok(if contestant == Contestant::SluiceOverload { guarded(&text) } else { text })
    }

    fn nginx(&self, setup: &Setup, port: u16, variant: Contestant) -> String {
        let rate = if setup.limits == Limits::Reject { "1r/m" } else { "1000000r/s" };
        let limits = match setup.limits {
            Limits::Admit => "limit_req zone=per_ip burst=1000000 nodelay;",
            Limits::Reject => "limit_req zone=per_ip;",
            _ => "",
        };
        let buffering = if variant == Contestant::NginxUnbuffered {
            "proxy_buffering off; proxy_request_buffering off;"
        } else {
            // A body is held in memory, not in a file.
            "client_body_buffer_size 1m; proxy_max_temp_file_size 0;"
        };
        let errors = match variant {
            Contestant::NginxErrorLog => "@FOLDER/error.log error",
            _ => "stderr crit",
        };
        let log = if setup.log { "@FOLDER/access.log combined buffer=64k flush=1s" } else { "off" };
        let edge = match setup.edge {
            Edge::Http1 => "",
            Edge::Http2 => "http2",
            Edge::Tls => "ssl http2",
        };
        let fields = [
            ("@EDGE", edge),
            ("@LIMITS", limits),
            ("@RATE", rate),
            ("@BUFFERING", buffering),
            ("@ERRORS", errors),
            ("@LOG", log),
        ];
        self.fill(include_str!("peers/nginx.conf"), port, &fields)
    }

    fn haproxy(&self, setup: &Setup, port: u16) -> String {
        let limit = |most| {
            format!(
                "stick-table type ip size 1m expire 1m store http_req_rate(10s)
    http-request track-sc0 src
    http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {most} }}"
            )
        };
        let limits = match setup.limits {
            Limits::Admit => limit(2_000_000_000),
            Limits::Reject => limit(0),
            _ => String::new(),
        };
        let (log, lines) = if setup.log {
            ("log stdout format raw local0", "log global\n    option httplog")
        } else {
            ("", "")
        };
        // The longer name first: the shorter is a part of it.
        let edge = match setup.edge {
            Edge::Http1 => "",
            Edge::Http2 => "proto h2",
            Edge::Tls => "ssl crt @FOLDER/both.pem alpn h2,http/1.1",
        };
        let fields =
            [("@EDGE", edge), ("@LIMITS", limits.as_str()), ("@LOG_LINES", lines), ("@LOG", log)];
        self.fill(include_str!("peers/haproxy.cfg"), port, &fields)
    }

    fn envoy(&self, setup: &Setup, port: u16) -> String {
        let limit = |tokens: &str, every: &str| {
            format!(
                "- name: envoy.filters.http.local_ratelimit
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
                      stat_prefix: limit
                      token_bucket: {{ max_tokens: {tokens}, tokens_per_fill: {tokens}, fill_interval: {every} }}
                      filter_enabled: {{ default_value: {{ numerator: 100 }} }}
                      filter_enforced: {{ default_value: {{ numerator: 100 }} }}"
            )
        };
        let limits = match setup.limits {
            Limits::Admit => limit("1000000", "1s"),
            Limits::Reject => limit("1", "86400s"),
            _ => String::new(),
        };
        let log = if setup.log {
            "access_log:
                  - name: envoy.access_loggers.file
                    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: @FOLDER/access.log }"
        } else {
            ""
        };
        let edge = match setup.edge {
            Edge::Http1 | Edge::Http2 => "",
            Edge::Tls => {
                "transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              common_tls_context:
                alpn_protocols: [h2, http/1.1]
                tls_certificates: [{ certificate_chain: { filename: @FOLDER/cert.pem }, private_key: { filename: @FOLDER/key.pem } }]"
            }
        };
        let fields = [("@EDGE", edge), ("@LIMITS", limits.as_str()), ("@LOG", log)];
        self.fill(include_str!("peers/envoy.yaml"), port, &fields)
    }

    fn caddy(&self, setup: &Setup, port: u16) -> String {
        let log = "log {\n\t\toutput file @FOLDER/access.log\n\t}";
        let fields = [("@LOG", if setup.log { log } else { "" })];
        self.fill(include_str!("peers/Caddyfile"), port, &fields)
    }
}

/// The same with everything against overload.
fn guarded(yaml: &str) -> String {
    let adaptive = "app: { endpoints: [http://$1], adaptive: { min: 10, max: 1000 } }";
    let endpoint = yaml.split_once("app: http://").and_then(|(_, rest)| rest.split_once(" }"));
    let endpoint = endpoint.map_or("", |(endpoint, _)| endpoint);
    let yaml = yaml.replace(&format!("app: http://{endpoint}"), &adaptive.replace("$1", endpoint));
    let yaml = yaml.replace("    upstream: app\n", "    upstream: app\n    priority: critical\n");
    format!("{yaml}overload: {{ max_in_flight: 10000, reserve: {{ critical: 20% }} }}\n")
}
