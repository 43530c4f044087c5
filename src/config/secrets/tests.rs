//! Whatever is wrong with a file, nothing that is said about it holds a secret of it.

use crate::config::{LoadError, parse};
use std::path::Path;

const SECRET: &str = "s3cr3t";

/// What is said about a file.
fn said(text: &str) -> String {
    let env = |name: &str| (name == "SECRET").then(|| format!("from-env-{SECRET}"));
    match parse("gateway.yaml", text.to_owned(), Path::new("tests/fixtures"), &env) {
        Ok(loaded) => loaded.warnings.to_string(),
        Err(LoadError::Invalid { diagnostics }) => diagnostics.to_string(),
        Err(error) => error.to_string(),
    }
}

const NEEDED: &str = "listen: 127.0.0.1:0\nupstreams: { app: http://127.0.0.1:3000 }\nroutes: []\n";

#[test]
fn no_error_shows_a_secret() {
    for mistake in [
        "admin: { address: nowhere, token: s3cr3t }\n",
        "admin: { address: 127.0.0.1:1, token: 's3cr3t, and } more', tokn: x }\n",
        "admin: { address: 127.0.0.1:1, tokn: s3cr3t }\n",
        "admin: { address: 127.0.0.1:1, token: [s3cr3t] }\n",
        "admin: { address: 127.0.0.1:1, token: !s3cr3t x }\n",
        "admin: { address: 127.0.0.1:1, token: 's3cr3t${NOWHERE}' }\n",
        "admin: { address: 127.0.0.1:1, token: '${s3cr3t!}' }\n",
        "admin: { address: 127.0.0.1:1, token: \"${NOWHERE}\", tokn: '${SECRET}' }\n",
        "admin: { address: 127.0.0.1:1, token: a, token: s3cr3t }\n",
        "admin: 127.0.0.1:1\nadmin: { address: 127.0.0.1:1, token: s3cr3t }\n",
        "admin: token:s3cr3t\n",
        "admin:\n  address: 127.0.0.1:1\n  token:\n    s3cr3t\n  tokn: 1\n",
        "identity: { user: { jwt: { secret: s3cr3t, jwks: a } } }\n",
        "identity: { user: { jwt: { secret: s3cr3t } } }\n",
        "identity: { user: { jwt: { secret: { a: s3cr3t } } } }\n",
        "identity:\n  user:\n    jwt: { secret: s3cr3t, leeway: s3cr3t }\n",
        "identity: { user: { jwt: { scret: s3cr3t } } }\n",
        "identity: { user: { jwt: { secret: '${SECRET}', claim: [] } } }\n",
        "identity: { api_key: { keys: [{ id: a, sha256: s3cr3t-which-is-the-key-itself-and-quite-long-as-keys-are }] } }\n",
        "store: { redis: { url: 'redis://:s3cr3t@h:bad' } }\n",
        "store: { redis: { url: 'reds://ada:s3cr3t@h' } }\n",
        "store: { redis: { url: 'ada:s3cr3t@h' } }\n",
        "store: { redis: { url: 'redis://h/?password=s3cr3t', prefix: '{' } }\n",
        "store: { redis: { url: 'redis://:${SECRET}@h:bad' } }\n",
        "store: { redis: { cluster: ['redis://:s3cr3t@a', 'redis://b:s3cr3t@'], prefix: '{' } }\n",
        "store: { redis: { sentinel: { master: m, nodes: [], password: s3cr3t } } }\n",
        "telemetry: { otlp: 'nothing', headers: { X-Team: s3cr3t } }\n",
        "telemetry: { otlp: 'http://a', headers: { 'X Team': s3cr3t, X: [s3cr3t] } }\n",
        "upstreams: { a: 'http://ada:s3cr3t@h' }\n",
    ] {
        let said = said(&format!("{NEEDED}{mistake}"));
        assert!(!said.contains(SECRET), "{mistake}{said}");
        assert!(!said.is_empty(), "{mistake}");
    }
}

#[test]
fn a_file_that_is_no_yaml_shows_no_secret_either() {
    for mistake in [
        "admin: { address: a, token: s3cr3t, [\n",
        "admin:\n  token: s3cr3t: x\n",
        "admin:\n  token: \"s3cr3t\n",
        "admin:\n  token: |\n    abc\n   s3cr3t\n  x\n",
        "admin:\n  token: 's3cr3t' 's3cr3t'\n",
        "admin:\n  \"token\": @s3cr3t\n",
        "admin:\n\ttoken: s3cr3t\n",
        "admin:\n  token: *s3cr3t\n",
        "identity: { user: { jwt: { secret: `s3cr3t } } }\n",
        "store: { redis: { url: redis://:s3cr3t@h, ] }\n",
        "telemetry:\n  headers:\n    X-Team: @s3cr3t\n",
        "telemetry:\n  headers: { X-Team: s3cr3t, ]\n",
    ] {
        let said = said(&format!("{NEEDED}{mistake}"));
        assert!(!said.contains(SECRET), "{mistake}{said}");
        assert!(said.contains("error"), "{mistake}{said}");
    }
}

#[test]
fn what_is_no_secret_is_shown_with_the_caret_where_it_was() {
    let text = format!("{NEEDED}admin: {{ token: s3cr3t-long-enough, address: nowhere }}\n");
    let expected = "\
error: 'nowhere' is not an address
 --> gateway.yaml:4:46
  |
4 | admin: { token: •••, address: nowhere }
  |                               ^^^^^^^ ";
    let said = said(&text);
    assert!(said.starts_with(expected), "{said}");
    let variable = super::super::tests::parse_text(&format!(
        "{NEEDED}admin: {{ address: 127.0.0.1:1, token: '${{NOWHERE}}' }}\n"
    ));
    let said = variable.unwrap_err().to_string();
    assert!(said.contains("variable NOWHERE is not set"), "{said}");
    assert!(said.contains("token: '${NOWHERE}' }"), "{said}");
}

#[test]
fn a_secret_that_became_a_field_is_not_shown() {
    for mistake in [
        "identity: { user: { jwt: { secret: ,s3cr3t-which-is-long-enough-for-hs256 } } }\n",
        "admin: { address: 127.0.0.1:1, token: , s3cr3t: }\n",
        "identity: { user: { jwt: { secret \"s3cr3t-which-is-long-enough-for-hs256\" } } }\n",
    ] {
        let said = said(&format!("{NEEDED}{mistake}"));
        assert!(!said.contains(SECRET), "{mistake}{said}");
        assert!(said.contains("has no field '•••'"), "{mistake}{said}");
    }
}

#[test]
fn everyday_mistakes_show_no_secret() {
    for mistake in [
        "store: { redis: { url: 'redis://user:s3cr3tRED%40127.0.0.1:6379' } }\n",
        "store: { redis: { url: 'redis://user:s3cr3tRED' } }\n",
        "identity: { user: { jwt: s3cr3t-which-is-long-enough-for-hs256 } }\n",
        "identity:\n  user:\n    jwt: { secret \"s3cr3t-which-is-long-enough\" }\n",
    ] {
        let said = said(&format!("{NEEDED}{mistake}"));
        assert!(!said.contains(SECRET), "{mistake}{said}");
        assert!(said.contains("error"), "{mistake}{said}");
    }
}

/// A character is put in, or taken away, anywhere in a file with secrets: every one of them, everywhere.
#[test]
fn no_slip_of_the_finger_shows_a_secret() {
    let text = "\
listen: 127.0.0.1:0
upstreams: { app: http://127.0.0.1:3000 }
routes: []
admin:
  address: 127.0.0.1:1
  token: zq9xw-token
identity:
  user: { jwt: { secret: zq9xw-which-is-long-enough-for-hs256-ok } }
store:
  redis:
    url: redis://ada:zq9xw@127.0.0.1
";
    // Not in the secret itself, nor in the name that says that it is one.
    let is_kept = |at: usize| {
        ["token:", "secret:", "zq9xw", "redis://ada:zq9xw@"].into_iter().any(|word| {
            text.match_indices(word).any(|(start, word)| at > start && at < start + word.len())
        })
    };
    let slips = "[]{}:,'\"|>&*!@%# \n\t-".split("").filter(|slip| !slip.is_empty()).chain([""]);
    let mut shown = Vec::new();
    for with in slips {
        for at in (0..text.len()).filter(|at| !is_kept(*at)) {
            let rest = &text[at + usize::from(with.is_empty())..];
            let text = format!("{}{with}{rest}", &text[..at]);
            let said = said(&text);
            if said.contains("zq9xw") {
                shown.push(format!("{text}\n{said}"));
            }
        }
    }
    assert!(shown.is_empty(), "{} of them, the first:\n{}", shown.len(), shown[0]);
}
