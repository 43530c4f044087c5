//! Certificates for a test: an authority of its own, what it issues, and clients that believe it.

use super::client::{Connection, socket};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Issued {
    pub cert: String,
    pub key: String,
}

impl Issued {
    /// Writes `NAME.pem` and `NAME.key`.
    pub fn write(&self, folder: &Path, name: &str) {
        std::fs::write(folder.join(format!("{name}.pem")), &self.cert).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), &self.key).unwrap();
    }
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub fn issue(&self, names: &[&str]) -> Issued {
        self.issue_until(names, 2100)
    }

    /// Valid until April of that year.
    pub fn issue_until(&self, names: &[&str], year: i32) -> Issued {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(year, 4, 5);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued { cert, key: key.serialize_pem() }
    }

    /// A client that believes this authority, and shows `own`.
    pub fn client(&self, own: Option<&Issued>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match own {
            None => builder.with_no_client_auth(),
            Some(Issued { cert, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        }
    }
}

/// An encrypted connection.
pub type Encrypted = Connection<StreamOwned<ClientConnection, TcpStream>>;

/// Connects to whoever calls themselves `name`; the handshake happens with the first byte.
pub fn connect(address: SocketAddr, name: &str, config: ClientConfig) -> Encrypted {
    let name = name.to_owned().try_into().unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    Connection::over(StreamOwned::new(client, socket(address)))
}
