//! Where logs come from: files and standard input, plain or compressed, piece by piece.
//!
//! A piece is read, unpacked and taken apart on a thread beside while the piece before it is
//! replayed. Every source has one piece at a time under way, so that memory does not grow with files.

use super::chunk::{Buffer, Chunk, Unreadable};
use super::format::{How, NoFormat, Reader, excerpt};
use crate::clock::{Micros, SECOND};
use flate2::bufread::MultiGzDecoder;
use memchr::{memchr, memrchr};
use parking_lot::Mutex;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Text of a piece; no line may be longer.
const PIECE: usize = 1 << 18;

/// A line that is so far ahead of those behind it is no measure of time.
const FAR: Micros = 600 * SECOND;

/// Lines that cannot be read and are shown, of each source.
const SHOWN: usize = 5;

/// A log.
#[derive(Clone, Debug)]
pub enum Input {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
    /// What was read of standard input, to be read more than once: one after the other.
    Kept(Arc<File>),
}

impl Input {
    /// What messages call it.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin | Self::Kept(_) => "standard input".to_owned(),
        }
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::File(path) => Box::new(File::open(path)?),
            Self::Stdin => Box::new(io::stdin()),
            Self::Kept(file) => {
                let mut file = file.try_clone()?;
                file.rewind()?;
                Box::new(file)
            }
        })
    }

    /// How many bytes there are to be read, if that is known.
    fn size(&self) -> Option<u64> {
        let about = match self {
            Self::File(path) => std::fs::metadata(path).ok(),
            Self::Stdin => None,
            Self::Kept(file) => file.metadata().ok(),
        };
        about.filter(std::fs::Metadata::is_file).map(|file| file.len())
    }
}

/// Why logs cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// It cannot be opened or read.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// Nobody knows how.
    #[error("{0}: {1}")]
    Format(String, NoFormat),
}

/// All logs, each with a piece under way.
pub struct Sources {
    all: Vec<Under>,
    jobs: Sender<Job>,
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

/// A source, and where its next piece comes from.
struct Under {
    answers: Receiver<Answer>,
    name: String,
    own: bool,
}

/// A piece is to be read.
struct Job {
    source: Source,
    chunk: Chunk,
    answer: Sender<Answer>,
}

/// A piece that was read. The way back goes along: nobody waits for a thread that is gone.
struct Piece {
    source: Source,
    chunk: Chunk,
    answer: Sender<Answer>,
}

/// A piece, or nothing if that was all.
type Answer = Result<Option<Piece>, Trouble>;

impl Sources {
    /// Opens logs. So many threads read pieces.
    pub fn open(inputs: &[Input], how: &How, threads: usize) -> Result<Self, Trouble> {
        let read: Arc<AtomicU64> = Arc::default();
        let (jobs, waiting) = channel::<Job>();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..threads.min(inputs.len()).max(1) {
            let waiting = Arc::clone(&waiting);
            std::thread::spawn(move || {
                loop {
                    let Ok(mut job) = waiting.lock().recv() else { return };
                    job.chunk.clear();
                    let next = job.source.next(&mut job.chunk);
                    let Job { source, chunk, answer } = job;
                    let way_back = answer.clone();
                    let done = match next {
                        Ok(true) => Ok(Some(Piece { source, chunk, answer })),
                        Ok(false) => Ok(None),
                        Err(error) => Err(Trouble::Io(source.name, error)),
                    };
                    // Nobody waits any more if another log was in trouble.
                    let _ = way_back.send(done);
                }
            });
        }
        let mut all = Vec::new();
        for input in inputs {
            let source = Source::open(input, how, &read)?;
            let (answer, answers) = channel();
            let (name, own) = (source.name.clone(), source.reader.own);
            let _ = jobs.send(Job { source, chunk: Chunk::default(), answer });
            all.push(Under { answers, name, own });
        }
        let total = inputs.iter().map(Input::size).sum();
        Ok(Self { all, jobs, read, total })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// What messages call a source.
    pub fn name(&self, source: usize) -> &str {
        &self.all[source].name
    }

    /// Whether a source is a log of our own.
    pub fn is_own(&self, source: usize) -> bool {
        self.all[source].own
    }

    /// The next piece of a source; nothing when it has ended. The piece before is given back, so
    /// that its memory is used again.
    pub fn next(&self, source: usize, before: Option<Chunk>) -> Result<Option<Chunk>, Trouble> {
        let under = &self.all[source];
        let gone = || Trouble::Io(under.name.clone(), io::Error::other("its reader is gone"));
        let answer = under.answers.recv().map_err(|_| gone())??;
        Ok(answer.map(|Piece { source, chunk, answer }| {
            let _ = self.jobs.send(Job { source, chunk: before.unwrap_or_default(), answer });
            chunk
        }))
    }

    /// Bytes that were read so far, as they stand in the files, and how many there are.
    pub fn progress(&self) -> (u64, Option<u64>) {
        (self.read.load(Ordering::Relaxed), self.total)
    }
}

/// One log.
struct Source {
    name: String,
    input: Box<dyn Read + Send>,
    reader: Reader,
    /// What was read behind the last whole line.
    rest: Vec<u8>,
    ended: bool,
    /// The number of the next line, from one.
    line: u64,
    /// Inside of a line that is too long.
    skipping: bool,
    shown: usize,
}

impl Source {
    fn open(input: &Input, how: &How, read: &Arc<AtomicU64>) -> Result<Self, Trouble> {
        let name = input.name();
        let io = |error| Trouble::Io(name.clone(), error);
        let counted = Counted { input: input.open().map_err(io)?, read: Arc::clone(read) };
        let mut input = unpacked(counted).map_err(io)?;
        // Enough to tell its format, and its first piece as well.
        let mut first = Buffer::default();
        let ended = first.fill(&mut input, PIECE).map_err(io)?;
        let mark = if first.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 }; // of the byte order
        let rest = first[mark..].to_vec();
        let sample = &rest[..memrchr(b'\n', &rest).filter(|_| !ended).unwrap_or(rest.len())];
        let reader = how.reader(sample).map_err(|why| Trouble::Format(name.clone(), why))?;
        Ok(Self { name, input, reader, rest, ended, line: 1, skipping: false, shown: 0 })
    }

    /// The next piece; `false` if there is none.
    fn next(&mut self, chunk: &mut Chunk) -> io::Result<bool> {
        chunk.text.set(&self.rest);
        self.rest.clear();
        if !self.ended {
            self.ended = chunk.text.fill(&mut self.input, PIECE)?;
        }
        let text = &mut chunk.text;
        if text.is_empty() {
            return Ok(false);
        }
        match memrchr(b'\n', text) {
            _ if self.ended => {}
            Some(last) => {
                self.rest.extend_from_slice(&text[last + 1..]);
                text.truncate(last + 1);
            }
            None => {
                // More than a line may be: what follows of it is left out.
                if !self.skipping {
                    self.unreadable(chunk, Unreadable::TooLong, 0, 400);
                }
                self.skipping = true;
                chunk.text.truncate(0);
                return Ok(true);
            }
        }
        self.take_apart(chunk);
        chunk.settle_latest(FAR);
        Ok(true)
    }

    fn take_apart(&mut self, chunk: &mut Chunk) {
        let mut at = 0;
        if std::mem::take(&mut self.skipping) {
            at = memchr(b'\n', &chunk.text).map_or(chunk.text.len(), |end| end + 1);
            self.line += 1;
        }
        while at < chunk.text.len() {
            let length = memchr(b'\n', &chunk.text[at..]).unwrap_or(chunk.text.len() - at);
            let mut end = at + length;
            let next = end + 1;
            if end > at && chunk.text[end - 1] == b'\r' {
                end -= 1;
            }
            if end > at {
                let is_header = std::mem::take(&mut self.reader.has_header);
                if !is_header {
                    match self.reader.read(chunk, self.line, at, end) {
                        Ok(()) => chunk.lines += 1,
                        Err(_) if chunk.text[at..end].trim_ascii().is_empty() => {}
                        Err(why) => self.unreadable(chunk, why, at, end),
                    }
                }
            }
            self.line += 1;
            at = next;
        }
    }

    #[cold]
    fn unreadable(&mut self, chunk: &mut Chunk, why: Unreadable, start: usize, end: usize) {
        chunk.lines += 1;
        chunk.unreadable += 1;
        if self.shown < SHOWN {
            self.shown += 1;
            let line = &chunk.text[start..end.min(chunk.text.len())];
            chunk.shown.push((self.line, why, excerpt(line)));
        }
    }
}

/// Counts what is read.
struct Counted {
    input: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// What is in it, whether it is compressed or not: its first bytes tell.
fn unpacked(input: Counted) -> io::Result<Box<dyn Read + Send>> {
    let mut input = BufReader::with_capacity(1 << 17, input);
    Ok(match input.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(input)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Box::new(Frames { input, decoder: FrameDecoder::new(), begun: false })
        }
        _ => Box::new(input),
    })
}

/// The frames of a zstd file, one after the other.
struct Frames<R> {
    input: R,
    decoder: FrameDecoder,
    /// Inside of a frame.
    begun: bool,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.begun && self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.begun && self.decoder.is_finished() {
                let (told, is) =
                    (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
                if told.is_some() && told != is {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the checksum is wrong",
                    ));
                }
            }
            if self.begun && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.input, one).map_err(io::Error::other)?;
                continue;
            }
            if self.input.fill_buf()?.is_empty() {
                return Ok(0);
            }
            match self.decoder.reset(&mut self.input) {
                Ok(()) => self.begun = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    self.begun = false;
                    io::copy(&mut (&mut self.input).take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}
