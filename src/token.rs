//! Users' tokens: which keys are believed, and what a token must say.
//!
//! A key decides which algorithms it verifies; a token's own `alg` only picks among them.

use crate::clock::{Micros, SECOND};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};

/// What a token must be to be believed.
pub struct Verifier {
    keys: Vec<Key>,
    rules: Rules,
}

/// What a token must say.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The claim that names the user.
    pub claim: String,
    /// The claim that names the user's plan.
    pub plan_claim: Option<String>,
    /// `iss` must be this.
    pub issuer: Option<String>,
    /// `aud` must name one of these.
    pub audience: Vec<String>,
    /// How far the clocks of issuer and gateway may differ.
    pub leeway: Micros,
}

struct Key {
    id: Option<String>,
    decoding: DecodingKey,
    validation: Validation,
}

/// Who a token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user.
    pub name: String,
    /// The plan that the token names.
    pub plan: Option<String>,
}

/// Why a token is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No token at all, or not signed by a key we believe.
    #[error("the token is malformed or its signature is not valid")]
    Invalid,
    /// Too late.
    #[error("the token has expired")]
    Expired,
    /// Too early.
    #[error("the token is not valid yet")]
    NotYet,
    /// From or for somebody else.
    #[error("the token has the wrong issuer or audience")]
    Misdirected,
    /// Names nobody.
    #[error("the token does not name the user")]
    Anonymous,
}

/// Why a key set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// No JSON, or not of that shape.
    #[error("this is not a JSON Web Key Set: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Nothing in it that could verify a token.
    #[error("the key set holds no RSA, EC P-256/P-384 or Ed25519 key")]
    NoUsableKey,
    /// A key whose parts do not fit.
    #[error("key {0} of the set cannot be read: {1}")]
    BadKey(usize, jsonwebtoken::errors::Error),
}

impl Verifier {
    /// Believes HS256 tokens signed with a shared secret.
    pub fn with_secret(secret: &[u8], rules: Rules) -> Self {
        let decoding = DecodingKey::from_secret(secret);
        let validation = validation(&[Algorithm::HS256]);
        Self { keys: vec![Key { id: None, decoding, validation }], rules }
    }

    /// Believes tokens signed by the keys of a JSON Web Key Set.
    pub fn with_key_set(json: &str, rules: Rules) -> Result<Self, KeySetError> {
        let set: JwkSet = serde_json::from_str(json)?;
        let mut keys = Vec::new();
        for (index, jwk) in set.keys.iter().enumerate() {
            let algorithms = algorithms(jwk);
            if algorithms.is_empty() {
                continue; // encryption keys, curves and key types we do not verify
            }
            let decoding = DecodingKey::from_jwk(jwk).map_err(|e| KeySetError::BadKey(index, e))?;
            keys.push(Key {
                id: jwk.common.key_id.clone(),
                decoding,
                validation: validation(&algorithms),
            });
        }
        if keys.is_empty() { Err(KeySetError::NoUsableKey) } else { Ok(Self { keys, rules }) }
    }

    /// Who the token stands for, if it is to be believed at `now`.
    pub fn verify(&self, token: &str, now: Micros) -> Result<User, TokenError> {
        let header = decode_header(token).map_err(|_| TokenError::Invalid)?;
        if has_critical_extensions(token) {
            return Err(TokenError::Invalid);
        }
        // A key without an id fits any token; one with an id fits tokens that name it or no key.
        let fits = |key: &&Key| match (&key.id, &header.kid) {
            (Some(id), Some(named)) => id == named,
            _ => true,
        };
        let believed = self.keys.iter().filter(fits).find_map(|key| {
            if !key.validation.algorithms.contains(&header.alg) {
                return None;
            }
            decode::<Map<String, Value>>(token, &key.decoding, &key.validation).ok()
        });
        self.rules.apply(&believed.ok_or(TokenError::Invalid)?.claims, now)
    }
}

impl Rules {
    fn apply(&self, claims: &Map<String, Value>, now: Micros) -> Result<User, TokenError> {
        let at = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(TokenError::Invalid),
        };
        let (now, leeway) = (now as f64 / SECOND as f64, self.leeway as f64 / SECOND as f64);
        if at("exp")?.is_some_and(|expiry| now >= expiry + leeway) {
            return Err(TokenError::Expired);
        }
        if at("nbf")?.is_some_and(|start| now < start - leeway) {
            return Err(TokenError::NotYet);
        }
        let issued_by_us = self
            .issuer
            .as_deref()
            .is_none_or(|issuer| claims.get("iss").and_then(Value::as_str) == Some(issuer));
        if !issued_by_us || !self.is_for_us(claims.get("aud")) {
            return Err(TokenError::Misdirected);
        }
        let name = claims.get(&self.claim).and_then(text).ok_or(TokenError::Anonymous)?;
        let plan = self.plan_claim.as_ref().and_then(|claim| claims.get(claim)).and_then(text);
        Ok(User { name, plan })
    }

    fn is_for_us(&self, audience: Option<&Value>) -> bool {
        let wanted =
            |value: &Value| value.as_str().is_some_and(|v| self.audience.iter().any(|a| a == v));
        self.audience.is_empty()
            || match audience {
                Some(Value::Array(values)) => values.iter().any(wanted),
                Some(value) => wanted(value),
                None => false,
            }
    }
}

/// A claim as text: names are strings, and some issuers use numbers.
fn text(claim: &Value) -> Option<String> {
    match claim {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Whether the token's header has a `crit`, of whatever type. The extensions it names must be
/// understood (RFC 7515, 4.1.11), none is known here, and an empty list is not allowed either.
fn has_critical_extensions(token: &str) -> bool {
    let header = token.split('.').next().unwrap_or_default();
    let header = URL_SAFE_NO_PAD.decode(header).ok();
    let fields = header.and_then(|json| serde_json::from_slice::<Map<String, Value>>(&json).ok());
    fields.is_none_or(|fields| fields.contains_key("crit"))
}

/// Signature only: what the claims must say is checked above, by our own clock.
fn validation(algorithms: &[Algorithm]) -> Validation {
    let mut validation = Validation::new(algorithms[0]);
    validation.algorithms = algorithms.to_vec();
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

/// What a key may verify: what it says itself, or what its type is for.
fn algorithms(jwk: &Jwk) -> Vec<Algorithm> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let by_type: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => &[RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[ES256],
            EllipticCurve::P384 => &[ES384],
            _ => &[],
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[EdDSA],
        _ => &[],
    };
    let Some(named) = jwk.common.key_algorithm else {
        return by_type.to_vec();
    };
    let named = match named {
        KeyAlgorithm::RS256 => RS256,
        KeyAlgorithm::RS384 => RS384,
        KeyAlgorithm::RS512 => RS512,
        KeyAlgorithm::PS256 => PS256,
        KeyAlgorithm::PS384 => PS384,
        KeyAlgorithm::PS512 => PS512,
        KeyAlgorithm::ES256 => ES256,
        KeyAlgorithm::ES384 => ES384,
        KeyAlgorithm::EdDSA => EdDSA,
        _ => return Vec::new(),
    };
    by_type.iter().copied().filter(|algorithm| *algorithm == named).collect()
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the secret.
        f.debug_struct("Verifier")
            .field("keys", &self.keys.len())
            .field("rules", &self.rules)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    const NOW: Micros = 1_700_000_000 * SECOND;

    fn rules() -> Rules {
        Rules { claim: "sub".into(), plan_claim: Some("plan".into()), ..Rules::default() }
    }

    fn sign(claims: &Value) -> String {
        encode(&Header::default(), claims, &EncodingKey::from_secret(b"secret")).unwrap()
    }

    fn verify(rules: Rules, claims: &Value) -> Result<User, TokenError> {
        Verifier::with_secret(b"secret", rules).verify(&sign(claims), NOW)
    }

    #[test]
    fn a_good_token_names_its_user_and_plan() {
        let user = verify(rules(), &json!({"sub": "ada", "plan": "pro", "exp": 1_700_000_060}));
        assert_eq!(user, Ok(User { name: "ada".into(), plan: Some("pro".into()) }));
        let numbered = verify(rules(), &json!({"sub": 17}));
        assert_eq!(numbered.unwrap().name, "17");
    }

    #[test]
    fn expiry_and_start_are_checked_with_the_leeway() {
        let lenient = || Rules { leeway: 5 * SECOND, ..rules() };
        let expired = json!({"sub": "ada", "exp": 1_699_999_997});
        assert_eq!(verify(rules(), &expired), Err(TokenError::Expired));
        assert!(verify(lenient(), &expired).is_ok());
        let early = json!({"sub": "ada", "nbf": 1_700_000_003});
        assert_eq!(verify(rules(), &early), Err(TokenError::NotYet));
        assert!(verify(lenient(), &early).is_ok());
        let odd = json!({"sub": "ada", "exp": "tomorrow"});
        assert_eq!(verify(rules(), &odd), Err(TokenError::Invalid));
    }

    #[test]
    fn issuer_and_audience_must_fit_when_asked_for() {
        let strict =
            || Rules { issuer: Some("id".into()), audience: vec!["api".into()], ..rules() };
        let good = json!({"sub": "ada", "iss": "id", "aud": ["web", "api"]});
        assert!(verify(strict(), &good).is_ok());
        for bad in [
            json!({"sub": "ada", "iss": "id"}),
            json!({"sub": "ada", "iss": "other", "aud": "api"}),
            json!({"sub": "ada", "aud": "api"}),
            json!({"sub": "ada", "iss": "id", "aud": "web"}),
        ] {
            assert_eq!(verify(strict(), &bad), Err(TokenError::Misdirected), "{bad}");
        }
    }

    #[test]
    fn unsigned_foreign_and_garbled_tokens_are_refused() {
        let verifier = Verifier::with_secret(b"secret", rules());
        let good = sign(&json!({"sub": "ada"}));
        let (signed, _) = good.rsplit_once('.').unwrap();
        let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.";
        let foreign =
            encode(&Header::default(), &json!({"sub": "ada"}), &EncodingKey::from_secret(b"other"));
        for bad in ["", "a.b.c", "....", none, signed, &format!("{good}x"), &foreign.unwrap()] {
            assert_eq!(verifier.verify(bad, NOW), Err(TokenError::Invalid), "{bad}");
        }
        assert_eq!(verifier.verify(&sign(&json!({})), NOW), Err(TokenError::Anonymous));
    }

    #[test]
    fn a_token_with_a_critical_extension_is_refused() {
        let verifier = Verifier::with_secret(b"secret", rules());
        let signed = |crit: &str| {
            let encoded = |json: &str| URL_SAFE_NO_PAD.encode(json);
            let header = encoded(&format!(r#"{{"alg":"HS256"{crit}}}"#));
            let message = format!("{header}.{}", encoded(r#"{"sub":"ada"}"#));
            let key = EncodingKey::from_secret(b"secret");
            let signature =
                jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
            format!("{message}.{signature}")
        };
        assert_eq!(verifier.verify(&signed(""), NOW).unwrap().name, "ada");
        for crit in [r#"["exp-by"]"#, r#"["b64"]"#, "[]", "null", r#""exp""#, "{}", "[1]"] {
            let token = signed(&format!(r#","crit":{crit},"exp-by":1"#));
            assert_eq!(verifier.verify(&token, NOW), Err(TokenError::Invalid), "{crit}");
        }
        let twice = signed(r#","crit":["a"],"crit":null"#);
        assert_eq!(verifier.verify(&twice, NOW), Err(TokenError::Invalid));
    }

    #[test]
    fn a_token_cannot_choose_an_algorithm_its_key_is_not_for() {
        // The classic: sign with HMAC, using the public key's bytes as the secret.
        let set = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
        let verifier = Verifier::with_key_set(set, rules()).unwrap();
        let public = b"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        let forged =
            encode(&Header::default(), &json!({"sub": "ada"}), &EncodingKey::from_secret(public));
        assert_eq!(verifier.verify(&forged.unwrap(), NOW), Err(TokenError::Invalid));
    }

    #[test]
    fn key_sets_that_cannot_verify_are_refused() {
        for bad in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#] {
            assert!(Verifier::with_key_set(bad, rules()).is_err(), "{bad}");
        }
    }
}
