//! A road to a server that can be made bad: slow, or broken off in the middle of a reply.

use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub struct Faulty {
    address: SocketAddr,
    road: Arc<Road>,
}

struct Road {
    target: SocketAddr,
    /// What every reply is late by, in microseconds.
    late: AtomicU64,
    /// The next reply is cut in half, and the connection with it.
    cut: AtomicBool,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Faulty {
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let road = Arc::new(Road {
            target,
            late: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&road);
        std::thread::spawn(move || accepting.accept(&listener));
        Self { address, road }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn late_by(&self, late: Duration) {
        self.road.late.store(late.as_micros() as u64, Ordering::SeqCst);
    }

    pub fn cut_next_reply(&self) {
        self.road.cut.store(true, Ordering::SeqCst);
    }

    pub fn was_cut(&self) -> bool {
        !self.road.cut.load(Ordering::SeqCst)
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.road.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        for stream in self.road.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Road {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for near in listener.incoming() {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            let Ok(near) = near else { continue };
            let Ok(far) = TcpStream::connect(self.target) else { continue };
            for stream in [&near, &far] {
                let _ = stream.set_nodelay(true);
                self.open.lock().extend(stream.try_clone());
            }
            let (Ok(from), Ok(to)) = (near.try_clone(), far.try_clone()) else { continue };
            let road = Arc::clone(&self);
            std::thread::spawn(move || road.carry(from, to, false));
            let road = Arc::clone(&self);
            std::thread::spawn(move || road.carry(far, near, true));
        }
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, replies: bool) {
        let mut buffer = vec![0; 65536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut piece = &buffer[..count];
            let mut goes_on = true;
            if replies {
                std::thread::sleep(Duration::from_micros(self.late.load(Ordering::SeqCst)));
                if count > 8 && self.cut.swap(false, Ordering::SeqCst) {
                    (piece, goes_on) = (&piece[..count / 2], false);
                }
            }
            if to.write_all(piece).is_err() || !goes_on {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
