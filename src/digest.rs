//! SHA-256, by which API keys are known, and SHA-1, by which Redis knows scripts.

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
    hex(&sha256(key))
}

/// What Redis knows a script by.
pub fn sha1_hex(script: &[u8]) -> String {
    let algorithm = &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY;
    hex(aws_lc_rs::digest::digest(algorithm, script).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
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
        assert_eq!(super::sha1_hex(b"test"), "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3");
    }
}
