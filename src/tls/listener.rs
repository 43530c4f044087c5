//! The TLS of one listener: certificates by name, callers' own certificates, and sessions that are
//! taken up again.

use super::{Certificate, TlsError, provider, roots};
use rustls::ServerConfig;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// Certificates of one name: of several kinds of keys, perhaps.
type Keys = SmallVec<[Arc<CertifiedKey>; 1]>;

/// What a listener answers TLS with.
#[derive(Clone, Debug)]
pub struct Tls {
    /// For the handshakes.
    pub config: Arc<ServerConfig>,
    /// Whose callers' certificates are believed, as it was written.
    client_ca: Option<Arc<[u8]>>,
}

impl Tls {
    /// Sessions that began before a reload are taken up again after it, unless other callers are
    /// believed now: a session stands for the certificate that was shown when it began.
    pub fn new(
        certificates: &[Certificate],
        client_ca: Option<Arc<[u8]>>,
        before: Option<&Self>,
    ) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(rustls::ALL_VERSIONS)?;
        let builder = match &client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let roots = Arc::new(roots(pem)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                builder.with_client_cert_verifier(verifier.build()?)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(ByName::new(certificates)));
        config.ignore_client_order = true;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let before = before.filter(|before| before.client_ca == client_ca);
        config.ticketer = match before {
            Some(before) => Arc::clone(&before.config.ticketer),
            None => tickets()?,
        };
        // Tickets carry the session, and callers keep them: nothing to remember here.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 1;
        Ok(Self { config: Arc::new(config), client_ca })
    }
}

fn tickets() -> Result<Arc<dyn ProducesTickets>, rustls::Error> {
    rustls::crypto::aws_lc_rs::Ticketer::new()
}

/// Certificates by the name that callers ask for.
#[derive(Debug)]
struct ByName {
    exact: HashMap<String, Keys>,
    /// By what follows `*.`.
    wildcard: HashMap<String, Keys>,
    /// For callers who name nobody, or nobody who is here: the first certificate of the file.
    default: Keys,
}

impl ByName {
    fn new(certificates: &[Certificate]) -> Self {
        let (mut exact, mut wildcard) = (HashMap::new(), HashMap::new());
        for Certificate { key, names, .. } in certificates {
            for name in names {
                let keys: &mut Keys = match name.strip_prefix("*.") {
                    Some(parent) => wildcard.entry(parent.to_owned()).or_default(),
                    None => exact.entry(name.clone()).or_default(),
                };
                keys.push(Arc::clone(key));
            }
        }
        let default = certificates.iter().take(1).map(|first| Arc::clone(&first.key)).collect();
        Self { exact, wildcard, default }
    }

    fn of(&self, name: Option<&str>) -> &Keys {
        let Some(name) = name else { return &self.default };
        let exact = self.exact.get(name);
        let wild = || self.wildcard.get(name.split_once('.')?.1);
        exact.or_else(wild).unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let keys = self.of(name.as_deref());
        let schemes = hello.signature_schemes();
        let usable = keys.iter().find(|key| key.key.choose_scheme(schemes).is_some());
        usable.or(keys.first()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn made(names: &[&str]) -> (Certificate, String) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let (chain, key) = (certificate.pem(), key.serialize_pem());
        (Certificate::load(chain.as_bytes(), key.as_bytes(), 1_700_000_000).unwrap(), chain)
    }

    fn certificate(names: &[&str]) -> Certificate {
        made(names).0
    }

    #[test]
    fn the_most_specific_certificate_of_a_name_is_shown() {
        let all = [
            certificate(&["default.test"]),
            certificate(&["*.example.test"]),
            certificate(&["api.example.test", "example.test"]),
        ];
        let by_name = ByName::new(&all);
        for (name, expected) in [
            (None, 0),
            (Some("elsewhere.test"), 0),
            (Some("www.example.test"), 1),
            (Some("a.b.example.test"), 0), // a wildcard stands for one label
            (Some("api.example.test"), 2),
            (Some("example.test"), 2),
        ] {
            assert!(Arc::ptr_eq(&by_name.of(name)[0], &all[expected].key), "{name:?}");
        }
    }

    #[test]
    fn sessions_outlive_a_reload_unless_other_callers_are_believed() {
        let (certificate, pem) = made(&["default.test"]);
        let all = [certificate];
        let first = Tls::new(&all, None, None).unwrap();
        let second = Tls::new(&all, None, Some(&first)).unwrap();
        assert!(Arc::ptr_eq(&first.config.ticketer, &second.config.ticketer));
        let third = Tls::new(&all, Some(pem.into_bytes().into()), Some(&second)).unwrap();
        assert!(!Arc::ptr_eq(&second.config.ticketer, &third.config.ticketer));
    }
}
