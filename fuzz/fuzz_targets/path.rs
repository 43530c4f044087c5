//! One spelling for every path, however it was written.
//!
//! Input: a path.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::path::{normalise, without_parameters};

fuzz_target!(|path: &str| {
    // A spelling that nobody would use, of the same path.
    let odd = spelt_oddly(path);
    let Ok(one) = normalise(path) else {
        assert!(normalise(&odd).is_err(), "{odd:?} is refused no longer");
        return;
    };
    assert_eq!(normalise(&odd).as_deref(), Ok(&*one), "{odd:?} is another path");
    assert_eq!(normalise(&one).as_deref(), Ok(&*one), "not idempotent");
    assert_eq!(decoded(&one), *one, "something is left to decode");
    assert_eq!(plainly(path), *one);

    assert!(one.starts_with('/') && !one.contains("//"), "{one}");
    assert!(
        one.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#' && byte != b'\\'),
        "{one}"
    );
    let (upper, nul) = (one.to_ascii_uppercase(), one.contains("%00"));
    assert!(escapes(&one).eq(escapes(&upper)) && !nul, "{one}");
    // Routes match what a server sees that takes parameters off.
    let cut: Vec<&str> = one.split('/').map(|s| s.split(';').next().unwrap_or_default()).collect();
    let matched = without_parameters(&one);
    assert_eq!(normalise(&cut.join("/")).as_deref(), Ok(&*matched), "{one}");
    // Not even a backend that decodes everything and cuts at semicolons sees a dot segment.
    for segment in one.replace("%2F", "/").replace("%5C", "/").split('/') {
        let name = segment.split(';').next().unwrap_or_default();
        assert!(name != "." && name != "..", "{one}");
    }
});

/// The definition, written out plainly.
fn plainly(path: &str) -> String {
    let decoded = decoded(path);
    let mut kept: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(segment),
        }
    }
    let folder = ["/", "/.", "/.."].iter().any(|end| decoded.ends_with(end));
    let end = if folder && !kept.is_empty() { "/" } else { "" };
    format!("/{}{end}", kept.join("/"))
}

fn unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Every escape of the path, as it is written.
fn escapes(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('%').filter_map(|(at, _)| path.get(at..at + 3))
}

/// Unreserved characters decoded, once; the digits of other escapes in capitals.
fn decoded(path: &str) -> String {
    let mut parts = path.split('%');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|byte| unreserved(*byte)) {
            Some(byte) => out.push(char::from(byte)),
            None => {
                out.push('%');
                out.extend(part.get(..2).map(str::to_ascii_uppercase));
            }
        }
        out.push_str(part.get(2..).unwrap_or_default());
    }
    out
}

/// Unreserved characters escaped, slashes doubled, and a segment that leads nowhere.
fn spelt_oddly(path: &str) -> String {
    let mut out = String::from(if path.starts_with('/') { "/./x/.." } else { "" });
    let mut rest = path;
    while let Some(next) = rest.chars().next() {
        let escape = if next == '%' { rest.get(..3) } else { None };
        let part = escape.unwrap_or(&rest[..next.len_utf8()]);
        match part.as_bytes() {
            [byte] if unreserved(*byte) => out += &format!("%{byte:02x}"),
            b"/" => out += "//",
            _ => out += &part.to_ascii_lowercase(),
        }
        rest = &rest[part.len()..];
    }
    out
}
