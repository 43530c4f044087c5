//! Encrypted connections of callers, and to backends.

use crate::common::pki::{Authority, Encrypted, Issued, connect};
use crate::common::{Backend, Gateway, eventually, open};
use rustls::{ClientConfig, HandshakeKind};
use std::io::Write;

fn yaml(backend: &Backend, tls: &str) -> String {
    format!("listen: {{ address: 127.0.0.1:0, tls: {{ {tls} }} }}\n{}", open(backend))
}

const ONE: &str = "certificates: [{ cert: a.pem, key: a.key }]";

/// Whose certificate a connection was shown.
fn shown(connection: &Encrypted) -> Vec<u8> {
    connection.stream.conn.peer_certificates().expect("a handshake")[0].to_vec()
}

#[test]
fn certificates_are_chosen_by_name() {
    let (backend, authority) = (Backend::start(), Authority::new());
    let tls = "certificates: [{ cert: a.pem, key: a.key }, { cert: b.pem, key: b.key }]";
    let gateway = Gateway::start_with(&yaml(&backend, tls), |folder| {
        authority.issue(&["a.test"]).write(folder, "a");
        authority.issue(&["*.b.test", "b.test"]).write(folder, "b");
    });
    let mut seen = Vec::new();
    for name in ["a.test", "b.test", "x.b.test"] {
        let mut connection = connect(gateway.address(), name, authority.client(None));
        assert_eq!(connection.get("/").text(), "hello", "{name}");
        seen.push(shown(&connection));
    }
    assert_ne!(seen[0], seen[1]);
    assert_eq!(seen[1], seen[2]);
    assert_eq!(backend.last().header("x-forwarded-proto"), Some("https"));
    // A wildcard stands for one label: the first certificate is shown, and does not fit.
    let mut wrong = connect(gateway.address(), "x.y.b.test", authority.client(None));
    assert!(wrong.stream.flush().is_err());
}

#[test]
fn a_renewed_certificate_is_shown_to_new_connections_and_drops_none() {
    let (backend, authority) = (Backend::start(), Authority::new());
    let gateway = Gateway::start_with(&yaml(&backend, ONE), |folder| {
        authority.issue(&["a.test"]).write(folder, "a");
    });
    let open = || connect(gateway.address(), "a.test", authority.client(None));
    let mut old = open();
    assert_eq!(old.get("/").status, 200);
    let first = shown(&old);
    // A certificate that does not fit its key changes nothing.
    std::fs::write(gateway.folder.path().join("a.pem"), &authority.issue(&["a.test"]).cert)
        .unwrap();
    let error = gateway.server().reload().unwrap_err().to_string();
    assert!(error.contains("the certificate does not match its key"), "{error}");
    // Both files are replaced, and the watcher notices.
    authority.issue(&["a.test"]).write(gateway.folder.path(), "a");
    eventually("the new certificate", || {
        let mut new = open();
        assert_eq!(new.get("/").status, 200);
        Some(()).filter(|()| shown(&new) != first)
    });
    assert_eq!(old.get("/").status, 200, "the old connection goes on");
}

#[test]
fn certificates_that_nobody_could_use_are_refused_with_their_reason() {
    let (backend, authority) = (Backend::start(), Authority::new());
    let good = authority.issue(&["a.test"]);
    let gateway = Gateway::start_with(&yaml(&backend, ONE), |folder| good.write(folder, "a"));
    let other = Issued { key: authority.issue(&["a.test"]).key, ..good.clone() };
    let broken = Issued {
        cert: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(),
        ..good.clone()
    };
    for (issued, reason) in [
        (authority.issue_until(&["a.test"], 2020), "the certificate has expired on 2020-04-05"),
        (other, "the certificate does not match its key"),
        (broken, "the certificate cannot be read"),
        (Issued { key: String::new(), ..good.clone() }, "there is no private key in it"),
        (Issued { cert: String::new(), ..good.clone() }, "there is no certificate in it"),
    ] {
        issued.write(gateway.folder.path(), "a");
        let error = gateway.server().reload().unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
        assert!(error.contains("listen.tls.certificates[0]") || error.contains("1:48"), "{error}");
    }
    let mut connection = connect(gateway.address(), "a.test", authority.client(None));
    assert_eq!(connection.get("/").status, 200, "what was good before still is");
}

#[test]
fn sessions_are_taken_up_again_over_a_reload_too() {
    let (backend, authority) = (Backend::start(), Authority::new());
    for versions in [[&rustls::version::TLS12], [&rustls::version::TLS13]] {
        let gateway = Gateway::start_with(&yaml(&backend, ONE), |folder| {
            authority.issue(&["a.test"]).write(folder, "a");
        });
        let believing = authority.client(None);
        let mut config = ClientConfig::builder_with_provider(believing.crypto_provider().clone())
            .with_protocol_versions(&versions)
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        config.dangerous().set_certificate_verifier(std::sync::Arc::new(Anybody));
        let mut kinds = Vec::new();
        for round in 0..3 {
            let mut connection = connect(gateway.address(), "a.test", config.clone());
            assert_eq!(connection.get("/").status, 200);
            kinds.push(connection.stream.conn.handshake_kind().unwrap());
            if round == 1 {
                gateway.server().reload().unwrap();
            }
        }
        assert_eq!(kinds, [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed]);
    }
}

/// Who is there does not matter to a test about sessions.
#[derive(Debug)]
struct Anybody;

impl rustls::client::danger::ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

#[test]
fn callers_show_a_certificate_where_one_is_asked_for() {
    let (backend, authority, stranger) = (Backend::start(), Authority::new(), Authority::new());
    let tls = format!("{ONE}, client_ca: clients.pem");
    let gateway = Gateway::start_with(&yaml(&backend, &tls), |folder| {
        authority.issue(&["a.test"]).write(folder, "a");
        std::fs::write(folder.join("clients.pem"), &authority.pem).unwrap();
    });
    let status = |own: Option<&Issued>| {
        let mut connection = connect(gateway.address(), "a.test", authority.client(own));
        connection.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        connection.try_reply("GET").map(|reply| reply.status)
    };
    assert_eq!(status(Some(&authority.issue(&["me"]))), Some(200));
    assert_eq!(status(None), None);
    assert_eq!(status(Some(&stranger.issue(&["me"]))), None);
    assert_eq!(status(Some(&authority.issue_until(&["me"], 2020))), None);
    assert_eq!(backend.count(), 1);
}

#[test]
fn backends_over_https_must_prove_who_they_are() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let inner = Backend::start();
    // A gateway is as good an https backend as any.
    let backend = Gateway::start_with(&yaml(&inner, ONE), |folder| {
        authority.issue(&["localhost", "backend.test"]).write(folder, "a");
    });
    let port = backend.address().port();
    let at = |upstream: &str| {
        format!("upstreams: {{ app: {{ {upstream} }} }}\nroutes: [{{ path: /, upstream: app }}]\n")
    };
    let gateway = Gateway::start_with(
        &at(&format!("endpoints: ['https://localhost:{port}'], ca: ca.pem")),
        |folder| {
            std::fs::write(folder.join("ca.pem"), &authority.pem).unwrap();
            std::fs::write(folder.join("stranger.pem"), &stranger.pem).unwrap();
        },
    );
    let mut connection = gateway.connect();
    for _ in 0..3 {
        assert_eq!(connection.get("/").text(), "hello");
    }
    assert_eq!(inner.last().header("x-forwarded-proto"), Some("https"), "the inner one's word");
    let body = vec![7; 3_000_000];
    assert_eq!(connection.send("POST", "/", &[], &body).text(), "hello");
    assert_eq!(inner.last().body, body);
    for (upstream, status) in [
        // Not who it says it is.
        (format!("endpoints: ['https://127.0.0.1:{port}'], ca: ca.pem"), 502),
        (
            format!(
                "endpoints: ['https://127.0.0.1:{port}'], ca: ca.pem, server_name: backend.test"
            ),
            200,
        ),
        (format!("endpoints: ['https://localhost:{port}'], ca: stranger.pem"), 502),
        // The system believes nobody's test authority.
        (format!("endpoints: ['https://localhost:{port}']"), 502),
        (format!("endpoints: ['https://localhost:{port}'], ca: ca.pem, http2: true"), 200),
    ] {
        gateway.reload(&at(&upstream)).unwrap();
        assert_eq!(gateway.get("/").status, status, "{upstream}");
    }
}

/// A caller who reads slowly, and what has been written for them already, when the gateway stops.
#[test]
fn a_stop_loses_nothing_that_was_written_for_a_slow_caller() {
    // More than sockets hold, so that a part waits in the gateway.
    const LENGTH: usize = 24 << 20;
    let backend = Backend::answering(|_| crate::common::backend::ok(&"x".repeat(LENGTH)));
    let authority = Authority::new();
    let gateway = Gateway::start_with(&yaml(&backend, ONE), |folder| {
        authority.issue(&["a.test"]).write(folder, "a");
    });
    let address = gateway.address();
    let mut config = authority.client(None);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let stream = connector.connect("a.test".try_into().unwrap(), stream).await.unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(32 << 20).initial_connection_window_size(32 << 20);
        let (mut send, connection) =
            builder.handshake::<_, bytes::Bytes>(Slowly::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::get("https://a.test/").body(()).unwrap();
        let (response, _) = send.send_request(request, true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let stopping = std::thread::spawn(move || gateway.stop());
        let mut read = 0;
        while let Some(Ok(data)) = body.data().await {
            body.flow_control().release_capacity(data.len()).unwrap();
            read += data.len();
        }
        drop((body, send));
        stopping.join().unwrap();
        read
    });
    assert_eq!(read, LENGTH);
}

/// Reads a part, and then nothing for longer than a goodbye takes.
struct Slowly<S> {
    socket: S,
    read: usize,
    pause: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

impl<S> Slowly<S> {
    fn new(socket: S) -> Self {
        Self { socket, read: 0, pause: None }
    }
}

impl<S: tokio::io::AsyncRead + Unpin> tokio::io::AsyncRead for Slowly<S> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        if self.read > 1 << 20 {
            let pause = || Box::pin(tokio::time::sleep(std::time::Duration::from_secs(3)));
            std::task::ready!(self.pause.get_or_insert_with(pause).as_mut().poll(cx));
        }
        let before = buffer.filled().len();
        std::task::ready!(std::pin::Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        self.read += buffer.filled().len() - before;
        std::task::Poll::Ready(Ok(()))
    }
}

impl<S: tokio::io::AsyncWrite + Unpin> tokio::io::AsyncWrite for Slowly<S> {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
