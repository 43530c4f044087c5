//! Who callers are: addresses, users, API keys. Nothing is believed unless it was proven.

use crate::common::{Backend, Gateway, START, limited};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use std::path::Path;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn key_of(text: &str) -> String {
    sluice::digest::sha256_hex(text.as_bytes())
}

#[test]
fn forwarding_headers_count_only_from_trusted_peers() {
    let backend = Backend::start();
    let limits = limited(&backend, "[{ by: ip, rate: 2/hour }]");
    let spoofed = |n: usize| format!("198.51.100.{n}");

    let untrusting = Gateway::start(&limits);
    for n in 0..4 {
        let address = spoofed(n);
        let forwarded = format!("for={address}");
        let headers = [
            ("x-forwarded-for", address.as_str()),
            ("forwarded", forwarded.as_str()),
            ("x-forwarded-host", "spoofed.test"),
            ("x-forwarded-proto", "https"),
        ];
        let reply = untrusting.get_with("/", &headers);
        assert_eq!(reply.status, if n < 2 { 200 } else { 429 }, "a spoofed header changes nothing");
    }
    let seen = backend.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"), "what was spoofed is dropped");
    assert_eq!(seen.header("forwarded"), None);
    assert_eq!(seen.header("x-forwarded-host"), Some("example.test"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));

    let trusting = Gateway::start(&format!(
        "identity: {{ trusted_proxies: [127.0.0.0/8, 10.0.0.0/8] }}\n{limits}"
    ));
    for n in 0..4 {
        assert_eq!(trusting.get_with("/", &[("x-forwarded-for", &spoofed(n))]).status, 200);
    }
    // From the right, past trusted proxies, and no further.
    let behind =
        [("x-forwarded-for", "6.6.6.6, 198.51.100.9, 10.1.2.3"), ("x-forwarded-proto", "https")];
    assert_eq!(trusting.statuses("/", &behind, 3), [200, 200, 429]);
    let other = [("x-forwarded-for", "7.7.7.7, 198.51.100.9")];
    assert_eq!(trusting.get_with("/", &other).status, 429, "the same caller");
    let seen = backend.seen();
    let last = seen.iter().rfind(|seen| seen.header("x-forwarded-proto") == Some("https")).unwrap();
    assert_eq!(last.header("x-forwarded-for"), Some("6.6.6.6, 198.51.100.9, 10.1.2.3, 127.0.0.1"));
}

#[test]
fn ipv6_callers_are_one_caller_per_prefix_and_mapped_addresses_are_ipv4() {
    let backend = Backend::start();
    let yaml = limited(&backend, "[{ by: ip, rate: 1/hour }]");
    let gateway = Gateway::start(&format!("identity: {{ trusted_proxies: [127.0.0.1] }}\n{yaml}"));
    let from = |address: &str| gateway.get_with("/", &[("x-forwarded-for", address)]).status;
    assert_eq!(
        [from("2001:db8:1:2::1"), from("2001:db8:1:2:ffff::9"), from("2001:db8:1:3::1")],
        [200, 429, 200]
    );
    assert_eq!([from("192.0.2.1"), from("::ffff:192.0.2.1")], [200, 429]);
    let yaml = format!("identity: {{ trusted_proxies: [127.0.0.1], ipv6_prefix: 128 }}\n{yaml}");
    gateway.reload(&yaml).unwrap();
    assert_eq!([from("2001:db8:1:2::5"), from("2001:db8:1:2::6")], [200, 200]);
}

#[test]
fn an_api_key_is_known_by_its_hash_and_required_where_the_route_says_so() {
    let backend = Backend::start();
    let yaml = format!(
        "identity: {{ api_key: {{ header: X-Key, keys: [{{ id: acme, sha256: {} }}] }} }}
limits: [{{ name: per-ip, by: ip, rate: 6/hour }}]
upstreams: {{ app: 'http://{}' }}
routes:
  - {{ path: /open, upstream: app }}
  - {{ path: /closed, upstream: app, require: api_key }}
",
        key_of("good"),
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let reply = gateway.get("/closed");
    assert_eq!(reply.status, 401);
    assert_eq!(reply.header("www-authenticate"), Some("ApiKey realm=\"sluice\", header=\"x-key\""));
    assert_eq!(reply.header("content-length"), Some("0"));
    assert_eq!(reply.number("x-ratelimit-remaining"), 5, "a 401 is charged to its address");
    assert_eq!(gateway.get_with("/closed", &[("x-key", "good")]).status, 200);
    assert_eq!(
        gateway.get_with("/open", &[("x-key", "guess")]).status,
        401,
        "wrong, though not required"
    );
    assert_eq!(gateway.get_with("/open", &[("x-other", "guess")]).status, 200, "not looked at");
    let twice = b"GET /open HTTP/1.1\r\nhost: a\r\nx-key: good\r\nx-key: bad\r\n\r\n";
    assert_eq!(gateway.raw(twice).status, 400);
    assert_eq!(
        gateway.statuses("/closed", &[("x-key", "guess")], 3),
        [401, 429, 429],
        "guessing is limited"
    );
}

fn token(claims: &Value, secret: &str) -> String {
    encode(&Header::default(), claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
}

#[test]
fn users_are_known_by_a_verified_token() {
    let backend = Backend::start();
    let secret = "a secret that is long enough for HS256";
    let yaml = format!(
        "identity:
  user:
    jwt: {{ secret: '{secret}', plan_claim: plan, issuer: 'https://id.test', audience: api, leeway: 0s }}
plans: {{ free: {{ rate: 1/hour }}, pro: {{ rate: 3/hour }} }}
default_plan: free
upstreams: {{ app: 'http://{}' }}
routes:
  - path: /
    upstream: app
    require: user
    limits: [{{ by: user, rate: plan }}]
",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let now = START / 1_000_000;
    let claims = |name: &str, plan: &str| json!({"sub": name, "plan": plan, "iss": "https://id.test", "aud": "api", "exp": now + 60});
    let asked = |token: &str, count: usize| {
        gateway.statuses("/", &[("authorization", &format!("Bearer {token}"))], count)
    };
    assert_eq!(asked(&token(&claims("ada", "pro"), secret), 4), [200, 200, 200, 429]);
    assert_eq!(asked(&token(&claims("bob", "free"), secret), 2), [200, 429]);
    assert_eq!(
        asked(&token(&claims("eve", "platinum"), secret), 2),
        [200, 429],
        "the default plan"
    );
    assert_eq!(gateway.server().gateway().metrics.unknown_plans.value(), 2);

    let mut expired = claims("ada", "pro");
    expired["exp"] = json!(now - 1);
    let mut early = claims("ada", "pro");
    early["nbf"] = json!(now + 1);
    let mut foreign = claims("ada", "pro");
    foreign["iss"] = json!("https://other.test");
    let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.";
    let bad = [
        token(&expired, secret),
        token(&early, secret),
        token(&foreign, secret),
        token(&claims("ada", "pro"), "another secret that is long enough"),
        none.to_owned(),
        "garbage".to_owned(),
    ];
    for bad in bad {
        let headers = [("authorization", format!("bearer {bad}"))];
        let reply = gateway.get_with("/", &[(headers[0].0, &headers[0].1)]);
        assert_eq!(reply.status, 401, "{bad}");
        let challenge = reply.header("www-authenticate").unwrap();
        assert!(
            challenge.starts_with("Bearer realm=\"sluice\", error=\"invalid_token\""),
            "{challenge}"
        );
    }
    let reply = gateway.get("/");
    assert_eq!(
        (reply.status, reply.header("www-authenticate")),
        (401, Some("Bearer realm=\"sluice\""))
    );
    for empty in ["Bearer", "bearer ", "Bearer\tx"] {
        let reply = gateway.get_with("/", &[("authorization", empty)]);
        assert!(reply.header("www-authenticate").unwrap().contains("invalid_token"), "{empty:?}");
    }
    let basic = gateway.get_with("/", &[("authorization", "Basic YWRhOnB3")]);
    assert_eq!(basic.header("www-authenticate"), Some("Bearer realm=\"sluice\""), "not our scheme");
}

#[test]
fn a_key_set_verifies_each_of_its_algorithms_and_no_other() {
    let backend = Backend::start();
    let yaml = format!(
        "identity: {{ user: {{ jwt: {{ jwks: keys.json }} }} }}\n{}",
        limited(&backend, "[{ by: user, rate: 1/hour }]")
    );
    let read = |name: &str| std::fs::read(Path::new(FIXTURES).join(name)).unwrap();
    let gateway = Gateway::start_with(&yaml, |folder| {
        std::fs::write(folder.join("keys.json"), read("keys.json")).unwrap();
    });
    let keys = [
        ("rsa", Algorithm::RS256, EncodingKey::from_rsa_der(&read("rsa.der"))),
        ("ec", Algorithm::ES256, EncodingKey::from_ec_der(&read("ec.der"))),
        ("ed", Algorithm::EdDSA, EncodingKey::from_ed_der(&read("ed.der"))),
    ];
    let sign = |kid: Option<&str>, algorithm, key: &EncodingKey, user: &str| {
        let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
        format!("Bearer {}", encode(&header, &json!({"sub": user}), key).unwrap())
    };
    let status = |token: &str| gateway.get_with("/", &[("authorization", token)]).status;
    for (kid, algorithm, key) in &keys {
        assert_eq!(status(&sign(Some(kid), *algorithm, key, kid)), 200, "{kid}");
        assert_eq!(
            status(&sign(None, *algorithm, key, kid)),
            429,
            "the same user, found without kid"
        );
        assert_eq!(
            status(&sign(Some("other"), *algorithm, key, kid)),
            401,
            "{kid} under a wrong name"
        );
    }
    let rsa = &keys[0].2;
    assert_eq!(status(&sign(Some("rsa"), Algorithm::RS512, rsa, "x")), 401, "the key says RS256");
    let hmac = EncodingKey::from_secret(&read("keys.json"));
    assert_eq!(status(&sign(Some("rsa"), Algorithm::HS256, &hmac, "x")), 401);
}

#[test]
fn a_users_header_is_believed_only_from_a_trusted_proxy() {
    let backend = Backend::start();
    let limits = limited(&backend, "[{ by: user, rate: 1/hour }]");
    let user = [("x-user-id", "ada")];
    let from = |trusted: &str| {
        Gateway::start(&format!(
            "identity: {{ trusted_proxies: [{trusted}], user: {{ header: X-User-Id }} }}\n{limits}"
        ))
    };
    let trusting = from("127.0.0.1");
    assert_eq!(trusting.statuses("/", &user, 2), [200, 429]);
    assert_eq!(backend.last().header("x-user-id"), Some("ada"));
    let untrusting = from("10.0.0.1");
    assert_eq!(untrusting.statuses("/", &user, 3), [200; 3]);
    assert_eq!(backend.last().header("x-user-id"), None, "the backend is not fooled either");
}

#[test]
fn an_exempt_ipv6_address_stands_for_itself() {
    let backend = Backend::start();
    let yaml = format!(
        "identity: {{ trusted_proxies: [127.0.0.1] }}\nexempt: {{ ips: ['2001:db8::5'] }}\n{}",
        limited(&backend, "[{ by: ip, rate: 1/hour }]")
    );
    let gateway = Gateway::start(&yaml);
    let from = |address: &str| gateway.statuses("/", &[("x-forwarded-for", address)], 3);
    assert_eq!(from("2001:db8::5"), [200; 3]);
    assert_eq!(from("2001:db8::6"), [200, 429, 429], "its neighbour in the /64 is not exempt");
}

#[test]
fn a_user_named_twice_is_refused() {
    let backend = Backend::start();
    let yaml = format!(
        "identity: {{ trusted_proxies: [127.0.0.1], user: {{ header: X-User }} }}\n{}",
        limited(&backend, "[]")
    );
    let gateway = Gateway::start(&yaml);
    let twice = b"GET / HTTP/1.1\r\nhost: a\r\nx-user: ada\r\nx-user: eve\r\n\r\n";
    assert_eq!(gateway.raw(twice).status, 400);
}

#[test]
fn either_credential_or_both_can_be_required() {
    let backend = Backend::start();
    let yaml = format!(
        "identity:
  trusted_proxies: [127.0.0.1]
  user: {{ header: X-User }}
  api_key: {{ keys: [{{ id: acme, sha256: {} }}] }}
upstreams: {{ app: 'http://{}' }}
routes:
  - {{ path: /any, upstream: app, require: any }}
  - {{ path: /both, upstream: app, require: [api_key, user] }}
",
        key_of("k"),
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    let (key, user) = (("x-api-key", "k"), ("x-user", "ada"));
    let cases = [
        (vec![], 401, 401),
        (vec![key], 200, 401),
        (vec![user], 200, 401),
        (vec![key, user], 200, 200),
    ];
    for (headers, any, both) in cases {
        assert_eq!(gateway.get_with("/any", &headers).status, any, "{headers:?}");
        let reply = gateway.get_with("/both", &headers);
        assert_eq!(reply.status, both, "{headers:?}");
        if both == 401 {
            assert!(reply.headers.iter().any(|(name, _)| name == "www-authenticate"));
        }
    }
}

#[test]
fn no_back_door_brings_in_what_the_gateway_itself_says() {
    let backend = Backend::start();
    let yaml = format!(
        "identity: {{ trusted_proxies: [10.0.0.1], user: {{ header: X-User-Id }} }}
upstreams: {{ app: 'http://{}' }}
routes: [{{ path: /, upstream: app, request_headers: {{ remove: [X-Internal] }} }}]
",
        backend.address()
    );
    let gateway = Gateway::start(&yaml);
    // Backends after CGI's fashion take the underscore for a dash.
    let aliases = ["x_user_id", "x_internal", "x_forwarded_for", "X_Forwarded-Host"];
    let mut headers: Vec<_> = aliases.map(|name| (name, "spoofed")).to_vec();
    headers.push(("my_own", "fine"));
    assert_eq!(gateway.get_with("/", &headers).status, 200);
    let seen = backend.last();
    assert!(!seen.head.contains("spoofed"), "{}", seen.head);
    assert_eq!(seen.header("my_own"), Some("fine"));
    // Trailers come after all that was checked.
    gateway.raw(
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\
          trailer: x-user-id, x-internal, x-forwarded-for, x-sum\r\n\r\n\
          0\r\nx-user-id: eve\r\nx-internal: 1\r\nx-forwarded-for: 6.6.6.6\r\nx-sum: 7\r\n\r\n",
    );
    assert_eq!(backend.last().trailers, "x-sum: 7\r\n");
}
