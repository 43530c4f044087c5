//! Having a reload forget something.

use crate::common::{Backend, Gateway, eventually, limited, open};

#[test]
fn a_concurrency_limit_that_a_reload_removes_and_restores_knows_what_is_in_flight() {
    let (release, hold) = std::sync::mpsc::channel::<()>();
    let hold = parking_lot::Mutex::new(hold);
    let backend = Backend::answering(move |seen| {
        if seen.target == "/held" {
            let _ = hold.lock().recv();
        }
        crate::common::backend::ok("done")
    });
    let yaml = limited(&backend, "[{ name: slots, by: ip, concurrency: 2 }]");
    let gateway = Gateway::start(&yaml);
    let mut held: Vec<_> = (0..2).map(|_| gateway.connect()).collect();
    for connection in &mut held {
        connection.write(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    eventually("both to be at the backend", || (backend.count() == 2).then_some(()));
    assert_eq!(gateway.get("/").status, 429);
    gateway.reload(&open(&backend)).unwrap();
    assert_eq!(gateway.get("/").status, 200, "no limit");
    // Long enough for everything that no limit needs to be forgotten.
    (0..40).for_each(|_| gateway.server().gateway().tick());
    gateway.reload(&yaml).unwrap();
    assert_eq!(gateway.get("/").status, 429, "two are still in flight");
    drop(release);
    for connection in &mut held {
        assert_eq!(connection.read_reply("GET").status, 200);
    }
    eventually("the places to be free", || (gateway.get("/").status == 200).then_some(()));
}
