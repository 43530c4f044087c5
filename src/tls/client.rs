//! TLS towards backends: verified, always.

use super::{TlsError, provider, roots};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, LazyLock};

/// How backends of one upstream are spoken to.
#[derive(Clone, Debug)]
pub struct Tls {
    /// For the handshakes.
    pub config: Arc<ClientConfig>,
    /// The name they must prove to have, where it is not the endpoint's.
    pub server_name: Option<ServerName<'static>>,
    /// Whose certificates are believed, as it was written.
    ca: Option<Arc<[u8]>>,
}

impl Tls {
    /// `ca`: whose certificates are believed, as PEM; otherwise those whom the system believes.
    pub fn new(
        ca: Option<Arc<[u8]>>,
        server_name: Option<ServerName<'static>>,
        http2: bool,
    ) -> Result<Self, TlsError> {
        let roots = match &ca {
            None => Arc::clone(&SYSTEM),
            Some(pem) => Arc::new(roots(pem)?),
        };
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(rustls::ALL_VERSIONS)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        Ok(Self { config: Arc::new(config), server_name, ca })
    }
}

/// Connections that were made by one could as well have been made by the other.
impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        (&self.server_name, &self.ca, &self.config.alpn_protocols)
            == (&other.server_name, &other.ca, &other.config.alpn_protocols)
    }
}

/// Whom the system believes, read once.
static SYSTEM: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!("the system believes no certificate: https upstreams need 'ca'");
    }
    Arc::new(roots)
});
