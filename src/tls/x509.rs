//! The one thing about certificates that webpki does not tell: from when until when they are valid.

/// Seconds since 1970 from and until which a certificate is valid.
pub(super) fn validity(certificate: &[u8]) -> Option<(i64, i64)> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let mut certificate = Der(Der(certificate).expect(SEQUENCE)?);
    let mut body = Der(certificate.expect(SEQUENCE)?);
    // version (where it is not the first), serial number, algorithm, issuer, validity
    let first = body.next()?;
    let between = if first.0 == VERSION { 3 } else { 2 };
    for _ in 0..between {
        body.next()?;
    }
    let mut validity = Der(body.expect(SEQUENCE)?);
    Some((time(validity.next()?)?, time(validity.next()?)?))
}

/// Values in DER, one after the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next value: its tag, and what is in it.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut length = usize::from(first);
        if first >= 0x80 {
            let count = usize::from(first & 0x7f);
            let (digits, after) =
                rest.split_at_checked(count).filter(|_| (1..=4).contains(&count))?;
            length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
            rest = after;
        }
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, value)| value)
    }
}

/// `YYMMDDHHMMSSZ` of this century's first half and the last one's second, or `YYYYMMDDHHMMSSZ`.
fn time((tag, text): (u8, &[u8])) -> Option<i64> {
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    let digits = str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year: i16 = digits[..2].parse().ok()?;
            (year + if year < 50 { 2000 } else { 1900 }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (digits[..4].parse().ok()?, &digits[4..]),
        _ => return None,
    };
    let part = |index: usize| rest[2 * index..2 * index + 2].parse::<i8>().ok();
    let date = jiff::civil::Date::new(year, part(0)?, part(1)?).ok()?;
    let time = jiff::civil::Time::new(part(2)?, part(3)?, part(4)?, 0).ok()?;
    Some(date.to_datetime(time).to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn certificate(from: i32, until: i32) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 2, 3);
        params.not_after = date_time_ymd(until, 4, 5);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn certificates_tell_from_when_until_when() {
        let day = 86_400;
        // Years before 2050 are written with two digits, later ones with four.
        assert_eq!(validity(&certificate(1999, 2026)), Some((10_625 * day, 20_548 * day)));
        assert_eq!(validity(&certificate(2049, 2050)), Some((28_888 * day, 29_314 * day)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(at in 0_usize..400, byte: u8, length in 0_usize..400) {
            let mut bytes = certificate(2000, 2050);
            let index = at % bytes.len();
            bytes[index] = byte;
            bytes.truncate(length);
            validity(&bytes);
        }
    }
}
