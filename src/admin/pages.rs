//! What there is: every method and path, and the pages that never change.

use super::Answer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method, Response};
use http_body_util::Full;
use serde_json::Value;
use std::sync::OnceLock;

const DASHBOARD: &str = include_str!("dashboard.html");
const OPENAPI: &str = include_str!("openapi.json");

/// A page, or something that can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The dashboard.
    Dashboard,
    /// Whether the process lives.
    Livez,
    /// Whether it wants requests.
    Readyz,
    /// For Prometheus.
    Metrics,
    /// How it is doing.
    Status,
    /// The configuration in force.
    Config,
    /// The limits in force.
    Limits,
    /// Everything that moves.
    Live,
    /// The busiest and the most rejected callers.
    Top,
    /// What there is, for machines.
    OpenApi,
    /// One caller's limits.
    Caller,
    /// Forgets what a caller has used.
    ResetCaller,
    /// Who is banned.
    Bans,
    /// Bans somebody.
    Ban,
    /// Lifts a ban.
    LiftBan,
    /// Who has other rates.
    Grants,
    /// Gives somebody another rate.
    Grant,
    /// Takes it back.
    WithdrawGrant,
    /// Reads the configuration again.
    Reload,
    /// Wants no more requests.
    Drain,
    /// Wants them again.
    Undrain,
}

/// All of them.
pub const ALL: &[(Method, &str, Page)] = &[
    (Method::GET, "/", Page::Dashboard),
    (Method::GET, "/livez", Page::Livez),
    (Method::GET, "/readyz", Page::Readyz),
    (Method::GET, "/metrics", Page::Metrics),
    (Method::GET, "/api/v1/status", Page::Status),
    (Method::GET, "/api/v1/config", Page::Config),
    (Method::GET, "/api/v1/limits", Page::Limits),
    (Method::GET, "/api/v1/live", Page::Live),
    (Method::GET, "/api/v1/top", Page::Top),
    (Method::GET, "/api/v1/openapi.json", Page::OpenApi),
    (Method::GET, "/api/v1/callers", Page::Caller),
    (Method::POST, "/api/v1/callers/reset", Page::ResetCaller),
    (Method::GET, "/api/v1/bans", Page::Bans),
    (Method::POST, "/api/v1/bans", Page::Ban),
    (Method::DELETE, "/api/v1/bans", Page::LiftBan),
    (Method::GET, "/api/v1/grants", Page::Grants),
    (Method::POST, "/api/v1/grants", Page::Grant),
    (Method::DELETE, "/api/v1/grants", Page::WithdrawGrant),
    (Method::POST, "/api/v1/reload", Page::Reload),
    (Method::POST, "/api/v1/drain", Page::Drain),
    (Method::DELETE, "/api/v1/drain", Page::Undrain),
];

/// The page that is asked for, or the methods by which there is one.
pub(super) fn find(method: &Method, path: &str) -> Result<Page, Vec<Method>> {
    let here = ALL.iter().filter(|(_, known, _)| *known == path);
    let asked = if *method == Method::HEAD { &Method::GET } else { method };
    let page = here.clone().find(|(method, _, _)| method == asked);
    page.map(|(_, _, page)| *page)
        .ok_or_else(|| here.map(|(method, _, _)| method.clone()).collect())
}

/// What there is, for machines.
pub(super) fn openapi() -> Value {
    static PARSED: OnceLock<Value> = OnceLock::new();
    let parsed = PARSED.get_or_init(|| serde_json::from_str(OPENAPI).unwrap_or_default());
    let mut api = parsed.clone();
    api["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    api
}

/// The page may run its own script and ask its own server, and nothing else.
pub(super) fn dashboard() -> Answer {
    static POLICY: OnceLock<HeaderValue> = OnceLock::new();
    let policy = POLICY.get_or_init(|| {
        let hash = STANDARD.encode(crate::digest::sha256(script(DASHBOARD).as_bytes()));
        let text = format!(
            "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; \
             script-src 'sha256-{hash}'; img-src data:; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'"
        );
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("default-src 'none'"))
    });
    let mut answer = Response::new(Full::new(Bytes::from_static(DASHBOARD.as_bytes())));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    answer
}

/// What stands in the page's one script.
fn script(page: &str) -> &str {
    let begun = page.split_once("<script>").map_or("", |(_, rest)| rest);
    begun.split_once("</script>").map_or("", |(script, _)| script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_description_lists_what_there_is_and_nothing_else() {
        let api = openapi();
        let paths = api["paths"].as_object().unwrap();
        let described: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(move |method| (path.clone(), method.to_uppercase()))
            })
            .collect();
        let there: BTreeSet<(String, String)> =
            ALL.iter().map(|(m, path, _)| ((*path).to_owned(), m.to_string())).collect();
        assert_eq!(described, there);
    }

    #[test]
    fn a_path_is_known_by_its_methods() {
        assert_eq!(find(&Method::HEAD, "/livez"), Ok(Page::Livez));
        assert_eq!(find(&Method::PUT, "/api/v1/bans").unwrap_err().len(), 3);
        assert_eq!(find(&Method::GET, "/api/v2"), Err(vec![]));
    }

    #[test]
    fn the_page_has_one_script_and_asks_nobody_else() {
        assert_eq!(DASHBOARD.matches("<script").count(), 1);
        assert!(script(DASHBOARD).len() > 1000);
        // The browser tests see what it asks for; here is what it would ask for at once.
        for outside in ["src=\"http", "href=\"http", "src=\"//", "@import", "url(http", "url(//"] {
            assert!(!DASHBOARD.contains(outside), "{outside}");
        }
    }
}
