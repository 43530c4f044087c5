//! `gateway.yaml`: from text to [`Config`], or to everything that is wrong with it.
//!
//! ```text
//! text ──tree──► located nodes ──read──► one section after the other ──► Config (model)
//!                                  └─ errors are collected ─► Diagnostics, all in one go
//! ```
//!
//! `sections` has a table for each map of the file: `read` goes by it, `schema` tells editors, and
//! `shown` knows what to mask.

mod callers;
pub mod diagnostics;
mod edge;
mod failing;
pub mod files;
mod grammar;
pub(crate) mod limits;
mod listeners;
mod logging;
pub mod model;
mod overload;
mod read;
mod routes;
mod schema;
mod secrets;
mod section;
mod sections;
mod shown;
mod store;
mod telemetry;
mod tree;
mod upstreams;
pub mod watch;

use callers::Callers;
use diagnostics::{Diagnostics, Severity, Source};
use files::Files;
use limits::Names;
pub use model::Config;
use read::{Context, Fields};
pub use schema::schema;
use secrets::Secrets;
use section::Shape;
use sections::GATEWAY;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tree::Node;

/// Reads a length of time as the file writes it: `250ms`, `30s`, `5m`, `2h`, `7d`.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    grammar::duration(text)
}

/// Reads a share as the file writes it: `5%`.
pub fn share(text: &str) -> Result<f64, String> {
    grammar::share(text)
}

/// A configuration, with what should be said about it although it is valid.
#[derive(Debug)]
pub struct Loaded {
    /// What to run on.
    pub config: Config,
    /// What the user most likely did not mean.
    pub warnings: Diagnostics,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read at all.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is wrong.
    #[error("{diagnostics}")]
    Invalid {
        /// What is wrong.
        diagnostics: Diagnostics,
    },
}

/// Reads a file, environment variables included.
pub fn load(path: &Path) -> Result<Loaded, LoadError> {
    load_noting(path, &mut Files::default())
}

/// The same. `files` notes every file that was read and what it held, whatever the outcome.
pub(crate) fn load_noting(path: &Path, files: &mut Files) -> Result<Loaded, LoadError> {
    let text = files.read_text(path);
    let text = text.map_err(|error| LoadError::Unreadable { path: path.to_owned(), error })?;
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let env = |name: &str| std::env::var(name).ok();
    parse_noting(&path.display().to_string(), text, &folder, &env, files)
}

/// Reads a text that calls itself `name`; paths in it are relative to `folder`.
pub fn parse(
    name: &str,
    text: String,
    folder: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Loaded, LoadError> {
    parse_noting(name, text, folder, env, &mut Files::default())
}

fn parse_noting(
    name: &str,
    text: String,
    folder: &Path,
    env: &dyn Fn(&str) -> Option<String>,
    files: &mut Files,
) -> Result<Loaded, LoadError> {
    let source = Arc::new(Source::new(name.to_owned(), text));
    let mut cx = Context {
        source: Arc::clone(&source),
        folder: folder.to_owned(),
        env,
        problems: Vec::new(),
        files,
    };
    let config =
        root(&source, &Shape::Map(&GATEWAY), &mut cx).and_then(|node| read(&node, &mut cx));
    let problems = Diagnostics::new(cx.problems);
    match config {
        Some(config) if problems.errors() == 0 => {
            let files = cx.files.paths().map(Path::to_owned).collect();
            Ok(Loaded { config: Config { files, ..config }, warnings: problems })
        }
        _ => Err(LoadError::Invalid { diagnostics: problems }),
    }
}

/// The tree of one file; what is wrong with the file itself is reported.
fn root(source: &Source, shape: &Shape, cx: &mut Context<'_>) -> Option<Node> {
    match tree::parse(&source.text, cx.env) {
        Ok((node, faults)) => {
            source.secrets.get_or_init(|| Secrets::of(&node, shape));
            for fault in faults {
                cx.report(Severity::Error, fault.span, &fault.path, fault.message, None);
            }
            Some(node)
        }
        Err(fault) => {
            cx.report(Severity::Error, fault.span, &fault.path, fault.message, None);
            None
        }
    }
}

fn read(node: &Node, cx: &mut Context<'_>) -> Option<Config> {
    if node.is_null() {
        cx.error_with_help(node, "the file is empty", "see gateway.yaml for an example".to_owned());
        return None;
    }
    let fields = Fields::of(node, &GATEWAY, cx)?;
    let listen = fields.read("listen", cx).map(|listeners::Listen(all)| all);
    let admin: Option<model::Admin> = fields.read("admin", cx);
    let store: Option<store::Store> = fields.read("store", cx);
    let store_is_known = store.is_some() || fields.get("store").is_none();
    let store::Store { max_keys, saved, shared: shared_store } = store.unwrap_or_default();
    let callers = Callers::read(&fields, cx);
    if let (Some(saved), Some(node)) = (&saved, fields.get("store")) {
        store::check_written(&saved.path, "the snapshot", node, cx);
    }
    let overrides = admin.as_ref().and_then(|admin| admin.overrides.as_ref());
    if let (Some(path), Some(node)) = (overrides, fields.get("admin")) {
        store::check_written(path, "overrides", node, cx);
    }
    let mut names = Names::of(shared_store.as_ref());
    let limits = limits::read_all(fields.get("limits"), "all", &callers, &mut names, cx);
    let upstreams = upstreams::read_all(&fields, cx);
    if let Some(node) = fields.get("upstreams") {
        let listen = listen.as_deref().unwrap_or_default();
        edge::refuse_loops(admin.as_ref(), listen, &upstreams, node, cx);
    }
    let server: model::Server = fields.read("server", cx).unwrap_or_default();
    let shared = routes::Shared {
        callers: &callers,
        upstreams: &upstreams,
        max_body_bytes: server.max_body_bytes,
    };
    let routes = routes::read_all(&fields, &shared, &mut names, cx);
    if store_is_known && saved.is_none() && shared_store.is_none() {
        names.warn_of_forgotten_quotas(cx);
    }
    let headers = fields.read("headers", cx).unwrap_or_default();
    let logging::Logging(access_log) = fields.read("logging", cx).unwrap_or_default();
    let overload: model::Overload = fields.read("overload", cx).unwrap_or_default();
    if let Some(node) = fields.get("overload") {
        overload::check(&overload, &routes, &callers.plans, node, cx);
    }
    let telemetry = fields.read("telemetry", cx).unwrap_or_default();
    let Callers { identity, plans, default_plan, exempt, .. } = callers;
    Some(Config {
        listen: listen?,
        admin,
        max_keys,
        saved,
        shared: shared_store,
        identity,
        plans,
        default_plan,
        exempt,
        limits,
        upstreams,
        routes,
        headers,
        server,
        overload,
        access_log,
        telemetry,
        shown: shown::shown(node),
        files: Vec::new(),
    })
}

/// An upstream with every default, and without endpoints.
#[cfg(test)]
pub(crate) fn upstream_for_tests(name: &str) -> model::Upstream {
    upstreams::empty(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn parse_text(text: &str) -> Result<Loaded, LoadError> {
        parse("gateway.yaml", text.to_owned(), Path::new("."), &|_| None)
    }

    #[test]
    fn the_smallest_file_is_ten_lines() {
        let text = "\
listen: 0.0.0.0:8080
upstreams:
  app: http://127.0.0.1:3000
routes:
  - path: /
    upstream: app
    limits:
      - by: ip
        rate: 100/minute
";
        let config = parse_text(text).unwrap().config;
        assert_eq!(config.routes[0].limits[0].name, "//ip");
        assert_eq!(config.max_keys, 1_000_000);
    }

    #[test]
    fn a_quota_that_a_restart_would_give_anew_is_a_warning() {
        let warned = |limits: &str, store: &str| {
            let text = format!(
                "listen: 127.0.0.1:0\nupstreams: {{ a: http://127.0.0.1:1 }}\nroutes: []\n\
                 limits: {limits}\n{store}"
            );
            parse_text(&text).unwrap().warnings.to_string()
        };
        let month =
            "{ name: monthly, by: ip, rate: 5/month, algorithm: fixed_window, time_zone: UTC }";
        let one = warned(&format!("[{month}]"), "");
        assert!(
            one.starts_with("warning: the window of limit 'monthly' is a day or more,"),
            "{one}"
        );
        assert!(one.contains("store.memory.snapshot") && one.contains("yaml:4:10"), "{one}");
        let two = warned(&format!("[{month}, {{ name: daily, by: ip, rate: 5/24h }}]"), "");
        assert!(two.contains("a day or more ('daily' as well),"), "{two}");
        for store in ["memory: { snapshot: state/limits.bin }", "redis: { url: redis://h }"] {
            assert_eq!(warned(&format!("[{month}]"), &format!("store: {{ {store} }}\n")), "");
        }
        let short = "[{ by: ip, rate: 5/23h }, { by: global, concurrency: 5 }]";
        assert_eq!(warned(short, ""), "");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_file() {
        for start in ["", "---\n", "# a comment\n"] {
            let rest = "listen: 127.0.0.1:0\nupstreams: {}\nroutes: []\n";
            let loaded = parse_text(&format!("\u{feff}{start}{rest}"));
            assert!(loaded.is_ok(), "{start:?}: {}", loaded.unwrap_err());
        }
    }

    #[test]
    fn no_text_panics() {
        for text in [
            "",
            "\0",
            "[",
            "{a: b",
            "- - -",
            "a: &a *a",
            "? x",
            "%YAML 3.0\n---\n",
            "listen: !!binary x",
        ] {
            assert!(parse_text(text).is_err(), "{text:?}");
        }
    }
}
