//! WebSocket frames (RFC 6455), as far as a tunnel has to know them: where one ends and the next begins,
//! and how to say that the tunnel is closed for policy.

/// Status 1008: closed for violating a policy.
const POLICY_VIOLATION: u16 = 1008;
const REASON: &[u8] = b"rate limit exceeded";

/// A masked frame needs a key; this one changes nothing.
const NO_MASK: [u8; 4] = [0; 4];

/// Follows the frames of one direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Frames {
    /// What has come of a header, and how much: two bytes, up to eight for the length.
    header: [u8; 10],
    read: usize,
    /// What is still to come of a frame whose header has come.
    left: u64,
}

impl Frames {
    /// Bytes pass.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let here = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= here as u64;
                bytes = &bytes[here..];
                continue;
            }
            self.header[self.read] = bytes[0];
            self.read += 1;
            bytes = &bytes[1..];
            if let Some(left) = self.payload() {
                (self.read, self.left) = (0, left);
            }
        }
    }

    /// How much follows the header, once it has come.
    fn payload(&self) -> Option<u64> {
        let second = *self.header[..self.read].get(1)?;
        let mask = if second & 0x80 == 0 { 0 } else { NO_MASK.len() as u64 };
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let length = match second & 0x7f {
            126 => number(self.header[..self.read].get(2..4)?),
            127 => number(self.header[..self.read].get(2..10)?),
            short => u64::from(short),
        };
        Some(length.saturating_add(mask))
    }

    /// Whether a frame can be put in here.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.read == 0 && self.left == 0
    }
}

/// A Close frame; clients have to mask theirs.
pub(super) fn close(masked: bool) -> Vec<u8> {
    let length = (2 + REASON.len()) as u8;
    let mut frame = vec![0x88, if masked { 0x80 | length } else { length }];
    frame.extend_from_slice(if masked { &NO_MASK } else { &[] });
    frame.extend_from_slice(&POLICY_VIOLATION.to_be_bytes());
    frame.extend_from_slice(REASON);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(length: usize, masked: bool) -> Vec<u8> {
        let mask: u8 = if masked { 0x80 } else { 0 };
        let mut frame = vec![0x82_u8];
        match length {
            0..=125 => frame.push(mask + length as u8),
            126..=65_535 => {
                frame.push(mask + 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(mask + 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.resize(frame.len() + length + if masked { 4 } else { 0 }, 0xff);
        frame
    }

    proptest! {
        #[test]
        fn frames_end_where_they_end(
            lengths in prop::collection::vec((prop_oneof![0..200_usize, 65_500..65_600_usize], any::<bool>()), 1..6),
            piece in 1..5000_usize,
        ) {
            let (mut frames, mut bytes, mut ends) = (Frames::default(), Vec::new(), vec![0]);
            for (length, masked) in lengths {
                bytes.extend(frame(length, masked));
                ends.push(bytes.len());
            }
            let mut at = 0;
            while at < bytes.len() {
                let next = (at + piece).min(bytes.len());
                frames.pass(&bytes[at..next]);
                at = next;
                prop_assert_eq!(frames.is_at_boundary(), ends.contains(&at), "at {}", at);
            }
        }
    }

    #[test]
    fn a_close_frame_is_a_frame() {
        for masked in [false, true] {
            let (mut frames, close) = (Frames::default(), close(masked));
            frames.pass(&close[..close.len() - 1]);
            assert!(!frames.is_at_boundary());
            frames.pass(&close[close.len() - 1..]);
            assert!(frames.is_at_boundary());
        }
    }
}
