//! `sluice demo`: a gateway with layered limits in front of a built-in backend, and lines to try.

use super::{Outcome, backend};
use crate::server::{Options, Server};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const TEMPLATE: &str = include_str!("demo.yaml");

pub(super) fn run(listen: SocketAddr) -> Outcome {
    let backend = start_backend()?;
    let folder = Folder::new()?;
    let path = folder.0.join("gateway.yaml");
    let yaml =
        TEMPLATE.replace("LISTEN", &listen.to_string()).replace("BACKEND", &backend.to_string());
    std::fs::write(&path, yaml)?;
    let server = Server::start(Options { signals: true, ..Options::new(&path) });
    let server = server.map_err(|error| {
        format!("{error}\nanother address: sluice demo --listen 127.0.0.1:8081")
    })?;
    let gateway = server.addresses().first().copied().unwrap_or(listen);
    let introduction = introduction(gateway, backend, server.admin_address(), &path);
    let _ = write!(std::io::stderr(), "{introduction}");
    Ok(server.wait()?)
}

/// The backend runs on a thread of its own until the process ends.
fn start_backend() -> Result<SocketAddr, Box<dyn std::error::Error>> {
    let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            if let Ok(listener) = tokio::net::TcpListener::from_std(socket) {
                backend::serve(listener).await;
            }
        });
    });
    Ok(address)
}

fn introduction(
    gateway: SocketAddr,
    backend: SocketAddr,
    admin: Option<SocketAddr>,
    path: &Path,
) -> String {
    let admin = admin.map(|admin| format!("http://{admin}/")).unwrap_or_default();
    format!(
        "
Sluice stands on http://{gateway} in front of a sample backend on http://{backend}.

Look at the headers: 30 requests a minute for your address, and how many are left
  curl -i http://{gateway}/

Use them up: the last ones are 429, a head and nothing else
  for i in $(seq 35); do curl -s -o /dev/null -w '%{{http_code}} ' http://{gateway}/; done; echo

Layers: logins have a limit of their own on top, 5 a minute
  curl -i -X POST http://{gateway}/login

Callers: /api needs a key, and the key's plan decides (free: 10 a minute, pro: 120)
  curl -i http://{gateway}/api/hello
  curl -i -H 'X-Api-Key: demo-free-key' http://{gateway}/api/hello
  curl -i -H 'X-Api-Key: demo-pro-key' http://{gateway}/api/hello

Change a rate and save; it holds from the next request on
  {}

Watch it: the dashboard, in a browser
  {admin}

Ctrl-C ends it. The access log follows.

",
        path.display()
    )
}

/// A folder that is gone when the demo ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        // A name nobody can foresee, in a folder nobody else can read.
        let name = format!("sluice-demo-{:016x}", fastrand::u64(..));
        let folder = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
