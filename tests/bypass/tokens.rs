//! A signed token that is only valid if an extension is understood (RFC 7515, 4.1.11).

use crate::common::{Backend, Gateway, limited};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey};

const SECRET: &str = "a-secret-that-is-long-enough-for-hs256";

fn token(crit: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256"{crit}}}"#));
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(r#"{"sub":"ada"}"#));
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
    format!("{message}.{signature}")
}

#[test]
fn a_token_with_an_unknown_crit_is_refused() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!(
        "identity: {{ user: {{ jwt: {{ secret: {SECRET} }} }} }}\n{}",
        limited(&backend, "[]")
    ));
    let status = |crit: &str| {
        let bearer = format!("Bearer {}", token(crit));
        gateway.get_with("/", &[("authorization", &bearer)]).status
    };
    assert_eq!(status(""), 200);
    for crit in [r#","crit":["only-once"],"only-once":true"#, r#","crit":[]"#, r#","crit":null"#] {
        assert_eq!(status(crit), 401, "{crit}");
    }
}
