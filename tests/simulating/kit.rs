//! A folder with logs and configurations, and the command line that reads them.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// 2024-02-08T22:50:00Z, in milliseconds.
pub const START: u64 = 1_707_432_600_000;

static ONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// A folder.
pub struct Lab {
    pub folder: TempDir,
}

impl Lab {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a configuration; what every one has is put in front.
    pub fn config(&self, name: &str, yaml: &str) {
        let rest = "listen: 127.0.0.1:0\nupstreams: { app: 'http://127.0.0.1:9' }\n";
        self.write(name, format!("{rest}{yaml}"));
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Runs the program in the folder.
    pub fn sluice(&self, arguments: &[&str]) -> Output {
        self.sluice_with(arguments, b"")
    }

    /// The same with something on standard input.
    pub fn sluice_with(&self, arguments: &[&str], input: &[u8]) -> Output {
        // One at a time: each wants all cores, and other tests go by the clock.
        let _one = ONE.lock();
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }

    /// What comes of it, for machines.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.sluice(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Lines that `simulate` rejects, and by which limit.
    pub fn rejected(&self, arguments: &[&str]) -> BTreeSet<(u64, String)> {
        self.json(&[&["simulate", "--rejected", "rejected.jsonl"], arguments].concat());
        let text = self.read("rejected.jsonl");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let one = |line: Value| {
            (line["line"].as_u64().unwrap(), line["limit"].as_str().unwrap().to_owned())
        };
        lines.map(one).collect()
    }
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A request that a log tells of.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Milliseconds since 1970.
    pub time: u64,
    pub ip: String,
    pub path: String,
    pub user: Option<String>,
    pub milliseconds: u64,
}

impl Asked {
    pub fn new(time: u64, ip: &str, path: &str) -> Self {
        Self { time, ip: ip.to_owned(), path: path.to_owned(), user: None, milliseconds: 0 }
    }

    /// The moment by a clock that is so many hours east.
    fn written(&self, how: &str, hours: i64) -> String {
        let millis = i64::try_from(self.time).unwrap() + hours * 3_600_000;
        let moment = jiff::Timestamp::from_millisecond(millis).unwrap();
        moment.strftime(how).to_string()
    }

    /// As our own log has it.
    pub fn own(&self) -> String {
        let mut line = json!({
            "time": self.written("%Y-%m-%dT%H:%M:%S.%3fZ", 0),
            "method": "GET",
            "path": self.path,
            "status": 200,
            "ip": self.ip,
            "host": "example.test",
        });
        if let Some(user) = &self.user {
            line["user"] = user.as_str().into();
        }
        for (name, value) in [
            ("route", json!("r")),
            ("upstream", json!("127.0.0.1:3000")),
            ("request_id", json!("0123456789abcdef0123456789abcdef")),
            ("bytes", json!(12)),
            ("duration_ms", json!(self.milliseconds)),
            ("overhead_ms", json!(0.1)),
        ] {
            line[name] = value;
        }
        format!("{line}\n")
    }

    /// As nginx has it, by the clocks of a place two hours east.
    pub fn combined(&self) -> String {
        format!(
            "{} - {} [{} +0200] \"GET {} HTTP/1.1\" 200 12 \"-\" \"agent \\\"7\\\"\"\n",
            self.ip,
            self.user.as_deref().unwrap_or("-"),
            self.written("%d/%b/%Y:%H:%M:%S", 2),
            self.path,
        )
    }

    /// As somebody else's JSON has it.
    pub fn json(&self) -> String {
        let line = json!({
            "ts": self.time as f64 / 1000.0,
            "level": "info",
            "request": { "remote": format!("{}:4711", self.ip), "uri": self.path, "method": "GET" },
            "who": self.user,
            "nested": { "deep": [1, { "ts": "no" }] },
        });
        format!("{line}\n")
    }

    /// As a spreadsheet has it.
    pub fn csv(&self) -> String {
        format!(
            "{};\"{}\";{};\"says \"\"hi; there\"\"\";{}\n",
            self.written("%Y-%m-%d %H:%M:%S.%3f", 1),
            self.ip,
            self.path,
            self.user.as_deref().unwrap_or_default()
        )
    }
}

pub fn log(all: &[Asked], line: impl Fn(&Asked) -> String) -> String {
    all.iter().map(line).collect()
}

/// Traffic that is the same each time: some callers who ask much, and others.
pub fn traffic(seed: u64, requests: usize, gap: u64) -> Vec<Asked> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut time = START;
    let paths = ["/", "/a/1", "/a/2", "/b", "/b/c/d"];
    (0..requests)
        .map(|_| {
            // Now and then nobody comes for a while.
            time += if random.u8(..) == 0 { gap * 60 } else { random.u64(0..gap * 2) };
            let ip = format!("10.0.0.{}", random.u8(0..4) * random.u8(0..6));
            let user = (random.u8(0..3) > 0).then(|| format!("u{}", random.u8(0..5)));
            let path = *random.choice(&paths).unwrap();
            let milliseconds = random.u64(0..900);
            Asked { user, milliseconds, ..Asked::new(time, &ip, path) }
        })
        .collect()
}
