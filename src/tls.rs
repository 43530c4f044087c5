//! TLS at both ends: certificates that callers are shown, and whom backends must prove to be.
//!
//! ```text
//! PEM files ──Certificate::load──► key and chain, checked against each other and the date
//!   certificates by name + client_ca ──Identity──► rustls::ServerConfig of one listener
//!   ca, or the system's roots ──client──► rustls::ClientConfig of one upstream
//! ```
//!
//! Files are read with the configuration and watched like it, so a renewed certificate is a reload:
//! connections that stand go on, new ones see the new certificate.

pub mod certificate;
pub mod client;
pub mod listener;
mod x509;

pub use certificate::{Certificate, CertificateError};

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::cipher_suite as suite;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::sync::{Arc, LazyLock};

/// The one crypto provider of the process: what it would rather use comes first, and listeners hold
/// to that.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        let cipher_suites = vec![
            suite::TLS13_AES_128_GCM_SHA256,
            suite::TLS13_AES_256_GCM_SHA384,
            suite::TLS13_CHACHA20_POLY1305_SHA256,
            suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ];
        Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() })
    });
    Arc::clone(&PROVIDER)
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates cannot be read.
    #[error("it is not PEM: {0}")]
    NotPem(String),
    /// A file of certificates holds none.
    #[error("there is no certificate in it")]
    Empty,
    /// It is not for verifying others.
    #[error("{0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// rustls does not take it.
    #[error("{0}")]
    Rustls(#[from] rustls::Error),
}

/// Certificates that are believed, from PEM.
pub fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|error| TlsError::NotPem(error.to_string()))?)?;
    }
    if roots.is_empty() { Err(TlsError::Empty) } else { Ok(roots) }
}
