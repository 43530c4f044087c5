//! The configuration as it may be shown: the file as JSON, as it is written, without its secrets.
//!
//! Aliases and merges are resolved; environment variables are not put in. The tables say which
//! fields are secret; headers whose name says so are, too, and so are credentials in URLs.

use super::section::Shape;
use super::sections::GATEWAY;
use super::tree::{Kind, Node, Scalar, Style};
use serde_json::Value;

/// What stands for a secret.
pub(super) const MASK: &str = "•••";

/// A name with one of these in it is that of a secret.
const SECRET: [&str; 7] = ["auth", "cookie", "credential", "key", "pass", "secret", "token"];

/// The whole file.
pub(super) fn shown(file: &Node) -> Value {
    value(file, &Shape::Map(&GATEWAY))
}

fn value(node: &Node, shape: &Shape) -> Value {
    match &node.kind {
        Kind::Scalar(_) if node.is_null() => Value::Null,
        Kind::Scalar(scalar) => plain(scalar),
        Kind::List(items) => {
            let item = item(shape).unwrap_or(&Shape::Text);
            items.iter().map(|node| value(node, item)).collect()
        }
        Kind::Map(entries) => {
            let map = map(shape).unwrap_or(&Shape::Text);
            let field = |name: &str, node| match field(name, map) {
                (_, true) => hidden(node),
                (shape, false) => value(node, &shape),
            };
            let fields = entries.iter().map(|(key, node)| (&*key.name, node));
            Value::Object(fields.map(|(name, node)| (name.to_owned(), field(name, node))).collect())
        }
    }
}

/// What a field of a map is, and whether it is secret.
pub(super) fn field(name: &str, map: &Shape) -> (Shape, bool) {
    match map {
        Shape::Map(section) => {
            section.field(name).map_or((Shape::Text, false), |field| (field.shape, field.secret))
        }
        Shape::ByName(item) => (**item, false),
        Shape::Headers => (Shape::Text, is_secret(name)),
        _ => (Shape::Text, false),
    }
}

/// What a map is, where one may stand.
pub(super) fn map(shape: &Shape) -> Option<&Shape> {
    match shape {
        Shape::Map(_) | Shape::ByName(_) | Shape::Headers => Some(shape),
        Shape::OneOrList(item, _) => map(item),
        Shape::Either(shapes) => shapes.iter().find_map(map),
        _ => None,
    }
}

/// What items of a list are, where one may stand.
pub(super) fn item(shape: &Shape) -> Option<&Shape> {
    match shape {
        Shape::List(item, _) | Shape::OneOrList(item, _) => Some(item),
        Shape::Either(shapes) => shapes.iter().find_map(item),
        _ => None,
    }
}

/// A number or a boolean, if it would be written the same way again; otherwise text.
fn plain(scalar: &Scalar) -> Value {
    let typed = match scalar.style {
        Style::Plain => serde_yaml::from_str(&scalar.written).ok(),
        _ => None,
    };
    let same = |value: &Value| {
        let again = value.to_string();
        (value.is_number() || value.is_boolean()) && again == scalar.written
    };
    typed.filter(same).unwrap_or_else(|| Value::String(without_credentials(&scalar.written)))
}

/// Where a secret comes from may be known: the variable is shown, its default is not.
fn hidden(node: &Node) -> Value {
    let Kind::Scalar(scalar) = &node.kind else { return Value::from(MASK) };
    let inner = scalar.written.strip_prefix("${").and_then(|text| text.strip_suffix('}'));
    match inner.filter(|text| !text.contains(['{', '}'])) {
        _ if node.is_null() => Value::Null,
        None => Value::from(MASK),
        Some(variable) => Value::from(match variable.split_once(":-") {
            Some((name, _)) => format!("${{{name}:-{MASK}}}"),
            None => scalar.written.clone(),
        }),
    }
}

pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET.iter().any(|word| name.contains(word))
}

/// `redis://user:password@host` → `redis://•••@host`. Takes away too much rather than too little:
/// a password may hold what should not be in it.
fn without_credentials(text: &str) -> String {
    let Some((before, url)) = text.split_once("://") else { return text.to_owned() };
    let url = match url.rsplit_once('@') {
        Some((_, host)) => format!("{MASK}@{host}"),
        None => url.to_owned(),
    };
    // A socket's password stands in its query.
    let parameters = url.split_inclusive(['?', '&']).map(|part| match part.split_once('=') {
        Some((name, value)) if is_secret(name) => {
            let next = if value.ends_with('&') { "&" } else { "" };
            format!("{name}={MASK}{next}")
        }
        _ => part.to_owned(),
    });
    format!("{before}://{}", parameters.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn file(rest: &str) -> Value {
        let needed = "listen: 127.0.0.1:0\nupstreams: { app: http://127.0.0.1:3000 }\n";
        let routes = if rest.contains("routes:") { "" } else { "routes: []\n" };
        let env = |_: &str| Some("from-the-environment".to_owned());
        let text = format!("{needed}{routes}{rest}");
        match parse("gateway.yaml", text, Path::new("tests/fixtures"), &env) {
            Ok(loaded) => loaded.config.shown,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_file_is_shown_as_it_is_written() {
        let shown = file(
            "\
plans: { free: { rate: 60/minute, burst: 10 }, pro: { rate: 10/s, burst: 7 } }
default_plan: free
server: { max_headers: 50, max_connections: 0x10, idle_timeout: ~ }
logging: { access: off }
telemetry: { otlp: 'http://a', service_name: 1.10, sample: 10%, headers: { X-A: b } }
routes: [{ path: /, upstream: app, request_headers: { set: { X-B: '${A:-b}' } } }]
",
        );
        assert_eq!(shown["plans"]["pro"], json!({ "rate": "10/s", "burst": 7 }));
        assert_eq!(shown["listen"], "127.0.0.1:0");
        assert_eq!(
            shown["server"],
            json!({ "max_headers": 50, "max_connections": "0x10", "idle_timeout": null })
        );
        assert_eq!(shown["logging"]["access"], "off");
        assert_eq!(shown["telemetry"]["service_name"], "1.10");
        assert_eq!(shown["telemetry"]["headers"], "•••", "each of them may be a key");
        assert_eq!(shown["routes"][0]["request_headers"]["set"]["X-B"], "${A:-b}");
    }

    #[test]
    fn aliases_and_merges_are_resolved() {
        let shown = file(
            "\
routes:
  - { path: /a, upstream: app, limits: [{ by: ip, rate: 1/s }] }
  - &b { path: /b, upstream: app, methods: GET }
  - { <<: *b, methods: POST, max_body_bytes: 5 }
",
        );
        let third =
            json!({ "methods": "POST", "max_body_bytes": 5, "path": "/b", "upstream": "app" });
        assert_eq!(shown["routes"][2], third);
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = file(
            "\
admin: { address: 127.0.0.1:1, token: '${ADMIN_TOKEN:-s3cret-token}' }
identity:
  user: { jwt: { secret: s3cret-of-the-issuer-which-is-long-enough } }
  api_key:
    keys: [{ id: a, sha256: 53c2e7aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa }]
store:
  redis:
    sentinel:
      master: m
      nodes: ['redis://:s3cret@a', 'redis://ada:s3c@r et s3c@b/0', 'unix:///x?db=1&pass=s3cret&user=u']
      password: 5e0s3cret
telemetry:
  otlp: https://a/v1?api-key=s3cret
  headers: { Authorization: Bearer s3cret, X-Team: s3cret }
routes:
  - path: /
    upstream: app
    request_headers:
      set: { cookie: s3cret=1, X-Api-Key: s3cret, My-Secret: s3cret, X-Password: s3cret, X-A: b,
             X-Other: 'see ftp://u:s3cret@h/ and more' }
",
        );
        let text = shown.to_string();
        for secret in ["s3c", "53c2e7", "from-the-environment"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert_eq!(shown["admin"]["token"], "${ADMIN_TOKEN:-•••}");
        assert_eq!(shown["identity"]["user"]["jwt"]["secret"], "•••");
        let nodes = json!(["redis://•••@a", "redis://•••@b/0", "unix:///x?db=1&pass=•••&user=u"]);
        assert_eq!(shown["store"]["redis"]["sentinel"]["nodes"], nodes);
        let set = &shown["routes"][0]["request_headers"]["set"];
        assert_eq!(set["X-Other"], "see ftp://•••@h/ and more");
        assert_eq!(set["X-A"], "b");
    }

    #[test]
    fn of_a_secret_only_the_variable_is_shown() {
        let token = |written: &str| {
            let shown = file(&format!("admin: {{ address: '127.0.0.1:1', token: {written} }}\n"));
            shown["admin"]["token"].as_str().unwrap().to_owned()
        };
        assert_eq!(token("'${ADMIN_TOKEN}'"), "${ADMIN_TOKEN}");
        assert_eq!(token("'${ADMIN_TOKEN:-abc}'"), "${ADMIN_TOKEN:-•••}");
        for mixed in ["'a${ADMIN_TOKEN}'", "'${A}b${C}'", "'$${A}'", "5", "abc"] {
            assert_eq!(token(mixed), "•••");
        }
    }
}
