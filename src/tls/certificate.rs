//! A certificate that callers can be shown: its chain, its key, and that the two belong together.

use super::x509;
use rustls::Error;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::sync::Arc;

/// A certificate and its key, fit to be used.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The chain and the key.
    pub key: Arc<CertifiedKey>,
    /// Names it is for, in lower case; some may be wildcards.
    pub names: Vec<String>,
    /// Until when it is valid, in seconds since 1970.
    pub until: i64,
}

/// Why a certificate cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The file holds none.
    #[error("there is no certificate in it (PEM, the server's own first)")]
    NoCertificate,
    /// The file holds none that can be read.
    #[error("there is no private key in it (PEM, not encrypted)")]
    NoKey,
    /// Neither RSA, nor ECDSA, nor Ed25519.
    #[error("the key is of a kind that TLS does not use")]
    UnknownKey,
    /// They do not belong together.
    #[error("the certificate does not match its key")]
    Mismatch,
    /// It cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    /// Its time is over.
    #[error("the certificate has expired on {0}")]
    Expired(jiff::civil::Date),
    /// Its time has not come.
    #[error("the certificate is not valid before {0}")]
    NotYet(jiff::civil::Date),
}

impl Certificate {
    /// Reads a chain and its key from PEM. `now` is in seconds since 1970.
    pub fn load(chain: &[u8], key: &[u8], now: i64) -> Result<Self, CertificateError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|error| CertificateError::Unreadable(error.to_string()))?;
        let first = chain.first().ok_or(CertificateError::NoCertificate)?.clone();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| CertificateError::NoKey)?;
        let unreadable =
            |error: &dyn std::fmt::Display| CertificateError::Unreadable(error.to_string());
        let parsed = webpki::EndEntityCert::try_from(&first).map_err(|error| unreadable(&error))?;
        let (from, until) =
            x509::validity(&first).ok_or_else(|| unreadable(&"its dates make no sense"))?;
        let names = parsed.valid_dns_names().map(str::to_ascii_lowercase).collect();
        let certified = CertifiedKey::from_der(chain, key, &super::provider());
        let key = Arc::new(certified.map_err(|error| match error {
            Error::InconsistentKeys(_) => CertificateError::Mismatch,
            Error::General(_) => CertificateError::UnknownKey,
            error => unreadable(&error),
        })?);
        match now {
            _ if now > until => Err(CertificateError::Expired(day(until))),
            _ if now < from => Err(CertificateError::NotYet(day(from))),
            _ => Ok(Self { key, names, until }),
        }
    }
}

/// The day of a moment, in UTC.
pub(crate) fn day(seconds: i64) -> jiff::civil::Date {
    let moment = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    moment.to_zoned(jiff::tz::TimeZone::UTC).date()
}
