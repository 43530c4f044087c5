//! The backend that every contestant stands in front of. It does as little as a server can, so that
//! what is measured is the contestant: 90 bytes of JSON, or a mebibyte for `/big`; a request's body
//! is read and thrown away.

use crate::machine::Failure;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const JSON: &str = r#"{"id":4711,"name":"a sample of what an API answers","tags":["one","two"],"price":"12.34"}  "#;

/// What is answered, heads included.
struct Answers {
    small: Vec<u8>,
    big: Vec<u8>,
}

/// Serves until it is killed.
pub(crate) fn serve(port: u16) -> Result<(), Failure> {
    let head = |length| {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
        .into_bytes()
    };
    let answers: &'static Answers = Box::leak(Box::new(Answers {
        small: [head(JSON.len()), JSON.into()].concat(),
        big: [head(1 << 20), vec![b'x'; 1 << 20]].concat(),
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(converse(stream, answers));
        }
    })
}

/// Answers one request after the other; whoever sends something else is hung up on.
async fn converse(mut stream: TcpStream, answers: &Answers) -> Option<()> {
    let mut bytes = vec![0; 64 << 10];
    let mut filled = 0;
    loop {
        let end = loop {
            let end = bytes[..filled].windows(4).position(|four| four == b"\r\n\r\n");
            match end {
                Some(end) => break end + 4,
                None if filled == bytes.len() => return None,
                None => filled += count(stream.read(&mut bytes[filled..]).await.ok()?)?,
            }
        };
        let head = &bytes[..end];
        let answer = if head.starts_with(b"GET /big") { &answers.big } else { &answers.small };
        let framing = Framing::of(head);
        bytes.copy_within(end..filled, 0);
        filled -= end;
        framing.skip(&mut stream, &mut bytes, &mut filled).await?;
        stream.write_all(answer).await.ok()?;
    }
}

/// Nothing read means that nothing more will come.
fn count(read: usize) -> Option<usize> {
    (read > 0).then_some(read)
}

/// How a request's body is told from what comes after it.
enum Framing {
    Length(usize),
    Chunked,
}

impl Framing {
    fn of(head: &[u8]) -> Self {
        if !head.starts_with(b"POST") {
            return Self::Length(0);
        }
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        length.map_or(Self::Chunked, |length| Self::Length(length.trim().parse().unwrap_or(0)))
    }

    /// Reads the body away. A chunked one is over at its last chunk; nobody here sends trailers.
    async fn skip(
        self,
        stream: &mut TcpStream,
        bytes: &mut [u8],
        filled: &mut usize,
    ) -> Option<()> {
        match self {
            Self::Length(mut left) => loop {
                let here = left.min(*filled);
                bytes.copy_within(here..*filled, 0);
                *filled -= here;
                left -= here;
                if left == 0 {
                    return Some(());
                }
                *filled = count(stream.read(bytes).await.ok()?)?;
            },
            Self::Chunked => loop {
                if bytes[..*filled].ends_with(b"\r\n0\r\n\r\n") {
                    *filled = 0;
                    return Some(());
                }
                let kept = (*filled).min(8);
                bytes.copy_within(*filled - kept..*filled, 0);
                *filled = kept + count(stream.read(&mut bytes[kept..]).await.ok()?)?;
            },
        }
    }
}
