//! `listen`: where callers connect, and what they speak there.

use super::model::{Listener, ListenerTls};
use super::read::{Context, Fields, Read, text};
use super::sections::edge::{CERTIFICATE, LISTENER, LISTENER_TLS};
use super::tree::{Kind, Node};
use crate::clock::{Clock, SECOND};
use crate::tls::certificate::day;
use crate::tls::{Certificate, roots};
use std::sync::Arc;

/// `listen`: one address, or a list.
pub(super) struct Listen(pub(super) Vec<Listener>);

/// A certificate that expires so soon is worth a word.
const SOON: i64 = 14 * 86_400;

impl Read for Listen {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let listeners: Vec<Listener> = Vec::read(node, cx)?;
        for (index, Listener { address, .. }) in listeners.iter().enumerate() {
            let twice = listeners[..index].iter().any(|before| before.address == *address);
            if address.port() != 0 && twice {
                cx.error(node, format!("{address} is listened on twice"));
            }
        }
        if matches!(&node.kind, Kind::List(items) if items.is_empty()) {
            cx.error(node, "at least one address to listen on is needed");
        }
        Some(Self(listeners))
    }
}

impl Read for Listener {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let Kind::Map(_) = node.kind else {
            let address = Read::read(node, cx)?;
            return Some(Self { address, tls: None, proxy_protocol: false });
        };
        let fields = Fields::of(node, &LISTENER, cx)?;
        let address = fields.read("address", cx);
        let tls = fields.get("tls").map(|node| ListenerTls::read(node, cx));
        let proxy_protocol = fields.read("proxy_protocol", cx).unwrap_or(false);
        // A listener whose TLS cannot be read is none, rather than one in the clear.
        let tls = tls.map_or(Some(None), |tls| tls.map(Some))?;
        Some(Self { address: address?, tls, proxy_protocol })
    }
}

impl Read for ListenerTls {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &LISTENER_TLS, cx)?;
        let certificates: Option<Vec<Certificate>> = fields.read("certificates", cx);
        if let Some(Kind::List(items)) = fields.get("certificates").map(|node| &node.kind)
            && items.is_empty()
        {
            cx.error(node, "TLS needs at least one certificate");
        }
        let client_ca = fields.get("client_ca").and_then(|node| {
            let pem = file(node, cx)?;
            match roots(&pem) {
                Ok(_) => Some(Arc::from(pem)),
                Err(error) => {
                    cx.error(node, format!("callers cannot be verified by it: {error}"));
                    None
                }
            }
        });
        Some(Self { certificates: certificates?, client_ca })
    }
}

impl Read for Certificate {
    fn read(node: &Node, cx: &mut Context<'_>) -> Option<Self> {
        let fields = Fields::of(node, &CERTIFICATE, cx)?;
        let named = |name: &'static str, cx: &mut Context<'_>| file(fields.get(name)?, cx);
        let (chain, key) = (named("cert", cx), named("key", cx));
        let now = (Clock::system().now() / SECOND).cast_signed();
        match Self::load(&chain?, &key?, now) {
            Ok(certificate) => {
                if certificate.until < now + SOON {
                    let until = day(certificate.until);
                    cx.warn(node, format!("the certificate expires on {until}"));
                }
                Some(certificate)
            }
            Err(error) => {
                cx.error(node, error.to_string());
                None
            }
        }
    }
}

/// What is in a file that the configuration names. It is watched from now on.
pub(super) fn file(node: &Node, cx: &mut Context<'_>) -> Option<Vec<u8>> {
    let name = text(node, cx, "a file")?;
    let path = cx.resolve(name);
    match cx.files.read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            cx.error(node, format!("cannot read {}: {error}", path.display()));
            None
        }
    }
}
