//! SHA-256: what API keys are known by.

use std::fmt::Write as _;

/// The SHA-256 of a key.
pub fn sha256(key: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key);
    let mut hash = [0; 32];
    hash.copy_from_slice(digest.as_ref());
    hash
}

/// The same in hexadecimal digits, as `gateway.yaml` has it.
pub fn sha256_hex(key: &[u8]) -> String {
    sha256(key).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn digits_are_those_of_sha256sum() {
        let expected = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        assert_eq!(super::sha256_hex(b"test"), expected);
    }
}
