//! The gateway's limits inside a service of your own, without a gateway in front:
//!
//! ```sh
//! cargo run --example tower_service
//! curl -i -H 'X-Tenant: acme' http://127.0.0.1:3000/      # the sixth within a minute is 429
//! ```

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use sluice::layer::LimitLayer;
use sluice::limit::{Quota, Rate};
use std::convert::Infallible;
use tower::{Layer, service_fn};

async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = format!("hello from {}\n", request.uri().path());
    Ok(Response::new(Full::new(Bytes::from(text))))
}

fn tenant(request: &Request<Incoming>) -> Option<String> {
    Some(request.headers().get("x-tenant")?.to_str().ok()?.to_owned())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let five_a_minute = Quota::token_bucket(Rate { count: 5, window: 60_000_000 }, None)?;
    let ten_at_once = Quota::concurrency(10)?;
    let limits = LimitLayer::new().limit("per-tenant", five_a_minute, tenant).limit(
        "in-flight",
        ten_at_once,
        |_| Some(String::new()),
    );
    let service = limits.layer(service_fn(hello));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _ = connection.await;
        });
    }
}
