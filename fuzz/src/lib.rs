//! What the targets share: cutting input, and the time a thread has worked.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Cuts `data` into pieces whose lengths are the bytes of `lengths`, over and over, times `scale`;
/// without any it is one byte at a time.
pub fn pieces<'d>(
    data: &'d [u8],
    lengths: &'d [u8],
    scale: usize,
) -> impl Iterator<Item = &'d [u8]> + Clone {
    let mut rest = data;
    let mut lengths = lengths.iter().chain([&1]).cycle();
    std::iter::repeat(()).map_while(move |()| {
        let length = (usize::from(*lengths.next()?).max(1) * scale).min(rest.len());
        let (piece, after) = rest.split_at(length);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The first line and what follows it.
pub fn line(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[]),
    }
}

/// How long this thread has worked, whatever else the machine does.
pub fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Numbers made of input; zeros where it has ended.
pub struct Numbers<'d>(pub &'d [u8]);

impl<'d> Numbers<'d> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&mut self, count: usize) -> &'d [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}
