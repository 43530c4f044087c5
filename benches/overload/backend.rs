//! A backend of known capacity: so many workers, a queue without end, and service times from a
//! distribution. Whoever has left is worked for all the same.

use crate::machine::Failure;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{cell::RefCell, thread};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// How long a worker takes for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Service {
    /// Exponentially distributed around this mean.
    Exponential(Duration),
    /// Anything between three quarters and five quarters of this.
    Even(Duration),
}

impl Service {
    pub(crate) fn mean(self) -> Duration {
        match self {
            Self::Exponential(mean) | Self::Even(mean) => mean,
        }
    }

    fn draw(self) -> Duration {
        match self {
            Self::Exponential(mean) => mean.mul_f64(-fastrand::f64().max(1e-9).ln()),
            Self::Even(mean) => mean.mul_f64(0.75 + fastrand::f64() / 2.0),
        }
    }
}

/// A backend that runs; its thread ends with the process.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    service: Service,
    workers: Arc<AtomicUsize>,
}

impl Backend {
    pub(crate) fn start(workers: usize, service: Service) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let workers = Arc::new(AtomicUsize::new(workers));
        let shop = Shop { workers: Arc::clone(&workers), service, busy: 0, queue: VecDeque::new() };
        thread::spawn(move || serve(listener, shop));
        Ok(Self { address, service, workers })
    }

    /// Requests a second.
    pub(crate) fn capacity(&self) -> f64 {
        self.workers.load(Ordering::Relaxed) as f64 / self.service.mean().as_secs_f64()
    }

    pub(crate) fn set_workers(&self, workers: usize) {
        self.workers.store(workers, Ordering::Relaxed);
    }
}

/// Where requests wait and are worked on.
#[derive(Debug)]
struct Shop {
    workers: Arc<AtomicUsize>,
    service: Service,
    busy: usize,
    queue: VecDeque<oneshot::Sender<()>>,
}

fn serve(listener: TcpListener, shop: Shop) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let options = tokio::runtime::LocalOptions::default();
    let Ok(runtime) = runtime.enable_all().build_local(options) else { return };
    runtime.block_on(async {
        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
        let shop = Rc::new(RefCell::new(shop));
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                spawn_local(converse(stream, Rc::clone(&shop)));
            }
        }
    });
}

async fn converse(mut stream: TcpStream, shop: Rc<RefCell<Shop>>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut bytes = Vec::with_capacity(1024);
    loop {
        while !bytes.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
        bytes.clear();
        // The work goes on whether or not anybody waits for it.
        let (done, on_done) = oneshot::channel();
        shop.borrow_mut().queue.push_back(done);
        work(&shop);
        on_done.await.ok()?;
        stream.write_all(ANSWER).await.ok()?;
    }
}

/// Workers that have nothing to do take what waits.
fn work(shop: &Rc<RefCell<Shop>>) {
    let mut inner = shop.borrow_mut();
    while inner.busy < inner.workers.load(Ordering::Relaxed)
        && let Some(done) = inner.queue.pop_front()
    {
        inner.busy += 1;
        let (shop, takes) = (Rc::clone(shop), inner.service.draw());
        spawn_local(async move {
            tokio::time::sleep(takes).await;
            let _ = done.send(());
            shop.borrow_mut().busy -= 1;
            work(&shop);
        });
    }
}
