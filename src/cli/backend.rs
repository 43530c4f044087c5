//! A small sample backend, for the demo and for docker-compose: says what it was asked.

use super::Outcome;
use super::output::print;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;

/// Runs until the process ends.
pub(super) fn run(address: SocketAddr) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| format!("cannot listen on {address}: {error}"))?;
        print(&format!("sample backend on http://{}\n", listener.local_addr()?))?;
        tokio::select! {
            never = serve(listener) => match never {},
            _ = tokio::signal::ctrl_c() => Ok(()),
            () = terminated() => Ok(()),
        }
    })
}

async fn terminated() {
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// Answers everybody, for ever.
pub(super) async fn serve(listener: TcpListener) -> Infallible {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let connection =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            let _ = connection.await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let mut status = StatusCode::OK;
    match path.rsplit('/').next().unwrap_or_default() {
        "slow" => tokio::time::sleep(Duration::from_secs(1)).await,
        "fail" => status = StatusCode::INTERNAL_SERVER_ERROR,
        _ => {}
    }
    let header = |name: &str| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        serde_json::Value::from(value)
    };
    let body = serde_json::json!({
        "backend": "sample",
        "method": request.method().as_str(),
        "path": path,
        "x-forwarded-for": header("x-forwarded-for"),
    });
    let mut response = Response::new(Full::new(Bytes::from(format!("{body}\n"))));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}
