//! Tokens: only what was signed with the key is believed.
//!
//! Input: a line with numbers (which key signs, how a good token is changed), a line with a token or
//! its header, a line with claims; the rest is a key set.

#![no_main]

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};
use sluice::token::{Rules, TokenError, User, Verifier};
use sluice_fuzz::line;
use std::sync::LazyLock;

const SECRET: &[u8] = b"a secret that the fuzzer does not know by heart";
const KEYS: &str = include_str!("../../tests/fixtures/keys.json");
const NOW: u64 = 1_700_000_000_000_000;

/// Those who know the keys.
struct Signers {
    ec: EcdsaKeyPair,
    ed: Ed25519KeyPair,
    rsa: RsaKeyPair,
    hmac: hmac::Key,
}

static SIGNERS: LazyLock<Signers> = LazyLock::new(|| Signers {
    ec: EcdsaKeyPair::from_pkcs8(
        &ECDSA_P256_SHA256_FIXED_SIGNING,
        include_bytes!("../../tests/fixtures/ec.der"),
    )
    .expect("a key"),
    ed: Ed25519KeyPair::from_pkcs8_maybe_unchecked(include_bytes!("../../tests/fixtures/ed.der"))
        .expect("a key"),
    rsa: RsaKeyPair::from_der(include_bytes!("../../tests/fixtures/rsa.der")).expect("a key"),
    hmac: hmac::Key::new(hmac::HMAC_SHA256, SECRET),
});

fn rules() -> Rules {
    Rules { claim: "sub".into(), plan_claim: Some("plan".into()), ..Rules::default() }
}

static BY_SECRET: LazyLock<Verifier> = LazyLock::new(|| Verifier::with_secret(SECRET, rules()));
static BY_SET: LazyLock<Verifier> =
    LazyLock::new(|| Verifier::with_key_set(KEYS, rules()).expect("a key set"));
static STRICT: LazyLock<Verifier> = LazyLock::new(|| {
    let (issuer, audience) = (Some("id".to_owned()), vec!["api".to_owned(), "web".to_owned()]);
    Verifier::with_secret(SECRET, Rules { issuer, audience, leeway: 5_000_000, ..rules() })
});

fuzz_target!(|data: &[u8]| {
    let (how, rest) = line(data);
    let (written, rest) = line(rest);
    let (claims, set) = line(rest);
    if let Ok(token) = str::from_utf8(written) {
        // Nobody has signed it.
        for verifier in [&*BY_SECRET, &BY_SET, &STRICT] {
            assert_eq!(verifier.verify(token, NOW), Err(TokenError::Invalid), "{token}");
        }
    }
    if let Ok(set) = str::from_utf8(set) {
        foreign(set, claims);
    }
    let &[signer, change, at, by, ..] = how else { return };
    let (verifier, alg, kid) = match signer % 8 {
        0..=2 => (&BY_SECRET, "HS256", ""),
        3 | 4 => (&BY_SET, "EdDSA", "ed"),
        5 | 6 => (&BY_SET, "ES256", "ec"),
        _ => (&BY_SET, "RS256", "rsa"),
    };
    let header = match signer / 8 % 4 {
        0 => format!(r#"{{"alg":"{alg}","typ":"JWT"}}"#).into_bytes(),
        1 => format!(r#"{{"kid":"{kid}","alg":"{alg}"}}"#).into_bytes(),
        2 => format!(r#"{{"alg":"none","kid":"{kid}"}}"#).into_bytes(),
        _ => written.to_vec(),
    };
    let signed = format!("{}.{}", BASE64.encode(&header), BASE64.encode(claims));
    let good = format!("{signed}.{}", BASE64.encode(sign(alg, signed.as_bytes())));
    let result = verifier.verify(&good, NOW);
    check(&header, claims, alg, kid, &result);

    // Changed in one place it is no token any more.
    let Some(bad) = changed(&good, change, usize::from(at) << 8 | usize::from(by)) else { return };
    if bad != good {
        assert_eq!(verifier.verify(&bad, NOW), Err(TokenError::Invalid), "{bad} for {good}");
    }
    // And the other keys never made it.
    let other = if alg == "HS256" { &BY_SET } else { &BY_SECRET };
    assert_eq!(other.verify(&good, NOW), Err(TokenError::Invalid), "{good}");
});

/// A key set that somebody wrote believes nothing that it did not sign.
fn foreign(set: &str, claims: &[u8]) {
    let Ok(verifier) = Verifier::with_key_set(set, rules()) else { return };
    let same = [r#""ed""#, "VD2S85C", "jRPPTv2", "r42E8rO"].iter().any(|part| set.contains(part));
    for alg in ["HS256", "EdDSA", "ES256", "RS256", "none", "PS256", "ES384", "HS512"] {
        let header = BASE64.encode(format!(r#"{{"alg":"{alg}"}}"#));
        let signed = format!("{header}.{}", BASE64.encode(claims));
        let signature = sign(if alg == "RS256" { "EdDSA" } else { alg }, signed.as_bytes());
        for token in [format!("{signed}.{}", BASE64.encode(signature)), format!("{signed}.")] {
            let result = verifier.verify(&token, NOW);
            assert!(same || result == Err(TokenError::Invalid), "{token} by {set}");
        }
    }
}

fn sign(alg: &str, message: &[u8]) -> Vec<u8> {
    let random = SystemRandom::new();
    match alg {
        "EdDSA" => SIGNERS.ed.sign(message).as_ref().to_vec(),
        "ES256" => SIGNERS.ec.sign(&random, message).expect("a signature").as_ref().to_vec(),
        "RS256" => {
            let mut signature = vec![0; SIGNERS.rsa.public_modulus_len()];
            SIGNERS.rsa.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).expect("one");
            signature
        }
        _ => hmac::sign(&SIGNERS.hmac, message).as_ref().to_vec(),
    }
}

/// What a token that is signed well must come to.
fn check(header: &[u8], claims: &[u8], alg: &str, kid: &str, result: &Result<User, TokenError>) {
    let header: Option<Map<String, Value>> = serde_json::from_slice(header).ok();
    let said = header.as_ref().and_then(|header| header.get("alg")).and_then(Value::as_str);
    let named = header.as_ref().and_then(|header| header.get("kid"));
    let fits =
        named.is_none_or(|named| kid.is_empty() || named.is_null() || named.as_str() == Some(kid));
    if said != Some(alg) || !fits {
        assert_eq!(*result, Err(TokenError::Invalid), "{said:?} for a key of {alg}");
        return;
    }
    let claims: Option<Map<String, Value>> = serde_json::from_slice(claims).ok();
    let Some(claims) = claims else {
        assert_eq!(*result, Err(TokenError::Invalid));
        return;
    };
    let Ok(user) = result else { return };
    let now = (NOW / 1_000_000) as f64;
    let moment = |name: &str| claims.get(name).map(|value| value.as_f64().expect("a number"));
    assert!(moment("exp").is_none_or(|end| now < end), "expired");
    assert!(moment("nbf").is_none_or(|start| now >= start), "too early");
    let text = |name: &str| match claims.get(name) {
        Some(Value::String(text)) => Some(text.clone()).filter(|text| !text.is_empty()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    assert_eq!((Some(user.name.clone()), user.plan.clone()), (text("sub"), text("plan")));
}

/// The token with one change.
fn changed(token: &str, how: u8, at: usize) -> Option<String> {
    let mut bytes = token.as_bytes().to_vec();
    let place = at / 64 % bytes.len();
    let parts: Vec<&str> = token.split('.').collect();
    match how % 8 {
        0 => bytes[place] = b"AZaz09-_"[at % 8],
        1 => drop(bytes.remove(place)),
        2 => bytes.insert(place, b"A_-=."[at % 5]),
        3 => bytes.truncate(place),
        4 => bytes.extend(b"=A.\n ".get(at % 5)),
        // Bits that base64 has left over.
        5 => {
            let last = bytes.last_mut()?;
            *last = last.wrapping_add(1 + (at % 3) as u8);
        }
        6 => return Some(format!("{}.{}.", parts[0], parts[1])),
        _ => return Some(format!("{}.{}.{}", parts[0], parts[1], parts[at % 3])),
    }
    String::from_utf8(bytes).ok()
}
