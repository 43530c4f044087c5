//! Upgrades: only what was asked for, only once the backend agrees, and held as long as they live.

use crate::common::client::find;
use crate::common::{Backend, Connection, Gateway, HeldPort, eventually, limited, open};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const ASK: &[u8] =
    b"GET /chat HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: echo/1\r\n\r\n";
const AGREE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo/1\r\nx-more: 1\r\n\r\n";

/// Agrees to every upgrade, and then says back what it hears.
fn echo() -> Backend {
    Backend::with(|seen, stream| {
        if seen.header("upgrade").is_none() {
            return stream.write_all(&crate::common::backend::ok("plain")).is_ok();
        }
        stream.write_all(AGREE).unwrap();
        let mut bytes = vec![0; 65536];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            if stream.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        false
    })
}

fn switched(gateway: &Gateway) -> Connection {
    let mut connection = gateway.connect();
    connection.write(ASK);
    assert_eq!(connection.head().unwrap().status, 101);
    connection
}

#[test]
fn bytes_go_both_ways_once_both_sides_agree() {
    let backend = echo();
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    // What comes ahead is kept until then.
    connection.write(&[ASK, b"ahead"].concat());
    let head = connection.head().unwrap();
    assert_eq!((head.status, head.header("upgrade")), (101, Some("echo/1")));
    assert_eq!((head.header("connection"), head.header("x-more")), (Some("upgrade"), Some("1")));
    assert_eq!(connection.exactly(5).unwrap(), b"ahead");
    assert_eq!(backend.last().header("connection"), Some("upgrade"));
    let much: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
    let mut writer = connection.stream.try_clone().unwrap();
    let sent = much.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    assert_eq!(connection.exactly(much.len()).unwrap(), much);
    writing.join().unwrap();
    assert!(connection.is_closed(), "both ends are done");
    let lines = gateway.log.wait_for(1);
    assert_eq!((&lines[0]["status"], &lines[0]["bytes"]), (&101.into(), &3_000_005.into()));
}

#[test]
fn no_byte_is_forwarded_before_the_backend_agrees() {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = parking_lot::Mutex::new(tell);
    let backend = Backend::with(move |_, stream: &mut TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let early = stream.read(&mut [0; 10]);
        tell.lock().send(early.is_err()).unwrap();
        stream.write_all(AGREE).unwrap();
        let mut bytes = [0; 5];
        stream.set_read_timeout(None).unwrap();
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
        false
    });
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    connection.write(&[ASK, b"ahead"].concat());
    assert!(told.recv().unwrap(), "nothing came before the backend agreed");
    assert_eq!(connection.head().unwrap().status, 101);
    assert_eq!(connection.exactly(5).unwrap(), b"ahead");
}

#[test]
fn only_what_was_asked_for_is_switched_to() {
    let unasked = Backend::answering(|_| AGREE.to_vec());
    let gateway = Gateway::start(&open(&unasked));
    assert_eq!(gateway.get("/").status, 502, "nobody asked");
    let other = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n";
    assert_eq!(gateway.raw(other).status, 502, "somebody asked for something else");
    // Whoever does not say what a WebSocket's key demands is no WebSocket.
    let liar = Backend::answering(|_| {
        b"HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n\r\n".to_vec()
    });
    let gateway = Gateway::start(&open(&liar));
    let ask = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    assert_eq!(gateway.raw(ask).status, 502);
}

#[test]
fn wishes_that_are_none_are_not_passed_on() {
    let backend = echo();
    let gateway = Gateway::start(&open(&backend));
    for ask in [
        "GET / HTTP/1.1\r\nhost: a\r\nupgrade: echo/1\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo/1, other\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo/1\r\ncontent-length: 2\r\n\r\nhi",
        "GET / HTTP/1.0\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo/1\r\n\r\n",
    ] {
        assert_eq!(gateway.raw(ask.as_bytes()).text(), "plain", "{ask}");
        let seen = backend.last();
        assert_eq!((seen.header("upgrade"), seen.header("connection")), (None, None), "{ask}");
    }
}

#[test]
fn a_refusal_of_the_backends_is_an_answer_like_any_other() {
    let backend = Backend::answering(|_| {
        b"HTTP/1.1 426 Upgrade Required\r\nupgrade: other\r\ncontent-length: 2\r\n\r\nno".to_vec()
    });
    let gateway = Gateway::start(&open(&backend));
    let mut connection = gateway.connect();
    for _ in 0..2 {
        connection.write(ASK);
        let reply = connection.read_reply("GET");
        assert_eq!((reply.status, reply.text()), (426, "no"));
    }
    assert_eq!(backend.connections(), 1);
}

#[test]
fn a_tunnel_is_limited_before_it_begins_and_holds_its_place_until_it_ends() {
    let backend = echo();
    let gateway = Gateway::start(&limited(&backend, "[{ by: ip, concurrency: 1 }]"));
    let mut tunnel = switched(&gateway);
    let refused = gateway.raw(ASK);
    assert_eq!((refused.status, refused.header("content-length")), (429, Some("0")));
    // Over a reload, too.
    gateway.reload(&limited(&backend, "[{ by: ip, concurrency: 1 }]")).unwrap();
    tunnel.write(b"still");
    assert_eq!(tunnel.exactly(5).unwrap(), b"still");
    assert_eq!(gateway.get("/").status, 429);
    drop(tunnel);
    eventually("the place", || Some(gateway.get("/")).filter(|reply| reply.status == 200));
}

#[test]
fn a_silent_tunnel_is_closed_and_one_that_speaks_is_not() {
    let backend = echo();
    let address = backend.address();
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ endpoints: ['http://{address}'], timeouts: {{ tunnel: 2s }} }} }}\nroutes: [{{ path: /, upstream: app }}]\n"
    ));
    let mut silent = switched(&gateway);
    let mut busy = switched(&gateway);
    for _ in 0..15 {
        std::thread::sleep(Duration::from_millis(200)); // time has to pass on real sockets
        busy.write(b"x");
        assert_eq!(busy.exactly(1).unwrap(), b"x");
    }
    assert!(silent.is_closed());
}

#[test]
fn a_stop_waits_for_a_tunnel_as_long_as_its_grace() {
    let backend = echo();
    let port = HeldPort::new();
    let yaml = |grace: &str| {
        let (listen, open) = (port.address(), open(&backend));
        format!("listen: {listen}\nserver: {{ shutdown_grace: {grace} }}\n{open}")
    };
    let gateway = Gateway::start(&yaml("20s"));
    let mut tunnel = switched(&gateway);
    let stopping = std::thread::spawn(move || gateway.stop());
    eventually("the stop", || port.is_refused().then_some(()));
    tunnel.write(b"last words");
    assert_eq!(tunnel.exactly(10).unwrap(), b"last words");
    drop(tunnel);
    stopping.join().unwrap();

    let gateway = Gateway::start(&yaml("300ms"));
    let mut tunnel = switched(&gateway);
    gateway.stop();
    assert!(tunnel.is_closed());
}

#[test]
fn what_the_backend_says_right_after_agreeing_comes_first() {
    let backend = Backend::with(|_, stream| {
        stream.write_all(&[AGREE, b"hello there"].concat()).unwrap();
        let mut bytes = [0; 3];
        stream.read_exact(&mut bytes).unwrap();
        assert!(find(&bytes, b"bye").is_some());
        false
    });
    let gateway = Gateway::start(&open(&backend));
    let mut tunnel = switched(&gateway);
    assert_eq!(tunnel.exactly(11).unwrap(), b"hello there");
    tunnel.write(b"bye");
    assert!(tunnel.is_closed());
}
