//! One spelling for every path.
//!
//! Routes are matched on the normalised path and the same bytes are forwarded, so a limit on
//! `/login` cannot be walked around by `/%6Cogin`, `//login` or `/x/../login`:
//! percent-encoded unreserved characters are decoded, other escapes get capital digits, slashes
//! are merged, dot segments removed. What a backend might yet take for a dot segment, such as
//! `..%2F` or `..;`, is refused.

use std::borrow::Cow;

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Does not begin with a slash.
    #[error("a path begins with '/'")]
    NotAbsolute,
    /// `%` without two hexadecimal digits behind it.
    #[error("a '%' needs two hexadecimal digits behind it")]
    BadEscape,
    /// `..%2F`, `%5C..` or `..;`: some backends see a dot segment in it, others do not.
    #[error("a dot segment must not hide behind an escape or a ';'")]
    HiddenDots,
    /// A control character, white space, a backslash, a fragment, or a byte beyond ASCII; or an
    /// escaped NUL.
    #[error("a path holds printable ASCII only, neither '#' nor '\\', and no %00")]
    BadByte,
}

/// The path's one spelling; borrowed if it is spelt so already.
pub fn normalise(path: &str) -> Result<Cow<'_, str>, PathError> {
    if !path.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    let mut plain = true;
    let mut previous = 0;
    for &byte in path.as_bytes() {
        match byte {
            b'%' => plain = false,
            b'/' | b'.' if previous == b'/' => plain = false,
            0..=b' ' | b'#' | b'\\' | 0x7f.. => return Err(PathError::BadByte),
            _ => {}
        }
        previous = byte;
    }
    if plain { Ok(Cow::Borrowed(path)) } else { rewrite(path).map(Cow::Owned) }
}

fn rewrite(path: &str) -> Result<String, PathError> {
    let decoded = decode(path)?;
    let mut out = String::with_capacity(decoded.len());
    let mut segments = decoded.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            // A trailing slash stays; any other empty segment was a doubled slash.
            "" | "." if last => out.push('/'),
            "" | "." => {}
            ".." => {
                out.truncate(out.rfind('/').unwrap_or(0));
                if last {
                    out.push('/');
                }
            }
            _ if hides_dots(segment) => return Err(PathError::HiddenDots),
            _ => {
                out.push('/');
                out.push_str(segment);
            }
        }
    }
    Ok(out)
}

/// Whether a backend that decodes `%2F` and `%5C`, or cuts segments at `;`, would see `.` or `..`.
fn hides_dots(segment: &str) -> bool {
    let parts = segment.split("%2F").flat_map(|part| part.split("%5C"));
    let mut names = parts.map(|part| part.split_once(';').map_or(part, |(name, _)| name));
    names.any(|name| matches!(name, "." | ".."))
}

/// Decodes unreserved characters; other escapes stay, with capital digits.
fn decode(path: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let digits = rest.as_bytes().get(at + 1..at + 3).ok_or(PathError::BadEscape)?;
        let byte = hex(digits[0])? << 4 | hex(digits[1])?;
        match byte {
            0 => return Err(PathError::BadByte),
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => {
                out.push('%');
                out.extend(digits.iter().map(|d| char::from(d.to_ascii_uppercase())));
            }
        }
        rest = &rest[at + 3..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The path as routes match it: without the parameters that segments have behind a `;`, which servers
/// take off as well before they pick a handler. It is forwarded with them.
#[inline]
pub fn without_parameters(path: &str) -> Cow<'_, str> {
    if !has_parameters(path) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(cut_parameters(path))
}

#[cold]
fn cut_parameters(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let name = name_of(segment);
        // A segment of parameters alone leaves a doubled slash, which counts as one.
        if !name.is_empty() || segments.peek().is_none() {
            out.push('/');
            out.push_str(name);
        }
    }
    out
}

/// Whether a segment has parameters.
#[inline]
pub fn has_parameters(path: &str) -> bool {
    path.as_bytes().contains(&b';')
}

/// What is left of a path behind a prefix that it was matched by.
pub fn strip_prefix<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    if !has_parameters(path) {
        return path.strip_prefix(prefix);
    }
    let mut rest = path;
    for wanted in prefix.split('/').skip(1) {
        loop {
            let segment = rest.strip_prefix('/')?;
            let (segment, behind) = segment.split_at(segment.find('/').unwrap_or(segment.len()));
            rest = behind;
            match name_of(segment) {
                "" => {}
                name if name == wanted => break,
                _ => return None,
            }
        }
    }
    Some(rest)
}

fn name_of(segment: &str) -> &str {
    segment.split_once(';').map_or(segment, |(name, _)| name)
}

fn hex(digit: u8) -> Result<u8, PathError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(PathError::BadEscape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_spelling_of_a_path_is_one() {
        let cases = [
            ("/", "/"),
            ("/login", "/login"),
            ("/%6Cogin", "/login"),
            ("/%6cogin", "/login"),
            ("//login", "/login"),
            ("/x/../login", "/login"),
            ("/x/%2e%2E/login", "/login"),
            ("/./login", "/login"),
            ("/login/.", "/login/"),
            ("/login/x/..", "/login/"),
            ("/../../login", "/login"),
            ("/..", "/"),
            ("/a//b///c", "/a/b/c"),
            ("/a/b/", "/a/b/"),
            ("/a/b//", "/a/b/"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2Fb", "/a%2Fb"),
            ("/.well-known/x", "/.well-known/x"),
            ("/...", "/..."),
            ("/%7Euser", "/~user"),
            ("/%25%36c", "/%256c"),
        ];
        for (written, expected) in cases {
            assert_eq!(normalise(written).unwrap(), expected, "{written}");
        }
    }

    #[test]
    fn what_has_no_one_spelling_is_refused() {
        for bad in ["", "login", "*"] {
            assert_eq!(normalise(bad), Err(PathError::NotAbsolute), "{bad}");
        }
        for bad in ["/%", "/%6", "/%zz", "/a%2"] {
            assert_eq!(normalise(bad), Err(PathError::BadEscape), "{bad}");
        }
        for bad in ["/%00", "/a b", "/a\\b", "/a#b", "/\u{e4}", "/\u{7f}", "/a\tb"] {
            assert_eq!(normalise(bad), Err(PathError::BadByte), "{bad}");
        }
    }

    #[test]
    fn dot_segments_cannot_hide() {
        for bad in ["/a/..%2Fb", "/a/%2e%2e%2fb", "/..%5cb", "/a/..;/b", "/a/.;x/b", "/x%2F../b"] {
            assert_eq!(normalise(bad), Err(PathError::HiddenDots), "{bad}");
        }
        for good in ["/a%2Fb", "/a;b=1", "/a..%2Fb", "/...;x", "/a.;b"] {
            assert_eq!(normalise(good).unwrap(), good);
        }
    }

    #[test]
    fn parameters_of_segments_are_left_out_of_matching() {
        let cases = [
            ("/login", "/login"),
            ("/login;x=1", "/login"),
            ("/login;", "/login"),
            ("/a;b=c/d;e", "/a/d"),
            ("/;x/login", "/login"),
            ("/login/;x", "/login/"),
            ("/;x", "/"),
            ("/login%3Bx", "/login%3Bx"),
        ];
        for (path, matched) in cases {
            assert_eq!(without_parameters(path), matched, "{path}");
        }
    }

    #[test]
    fn a_prefix_is_stripped_with_the_parameters_of_its_segments() {
        let cases = [
            ("/api/v1/x", "/api/v1", Some("/x")),
            ("/api;a=1/v1;b/x;c=2", "/api/v1", Some("/x;c=2")),
            ("/;q/api/v1", "/api/v1", Some("")),
            ("/api;a/v1;b", "/api/v1", Some("")),
            ("/api;a/v2", "/api/v1", None),
            ("/apis;a", "/api", None),
        ];
        for (path, prefix, rest) in cases {
            assert_eq!(strip_prefix(path, prefix), rest, "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_path_matches_as_a_server_that_cuts_parameters_reads_it(path in "/[a-c./;%246eE~-]{0,24}") {
            if let Ok(path) = normalise(&path) {
                let matched = without_parameters(&path);
                let cut: Vec<&str> = path.split('/').map(|s| s.split(';').next().unwrap()).collect();
                let read = normalise(&cut.join("/")).unwrap().into_owned();
                prop_assert_eq!(matched.as_ref(), read.as_str());
            }
        }

        #[test]
        fn normalising_twice_changes_nothing(path in "/[a-c./%246eEfF~-]{0,24}") {
            if let Ok(once) = normalise(&path) {
                prop_assert!(once.starts_with('/'));
                prop_assert!(!once.contains("//"));
                prop_assert!(!once.split('/').any(|s| s == "." || s == ".."));
                // A decoded '%' never comes into being, so there is nothing left to decode.
                let twice = normalise(&once).unwrap();
                prop_assert_eq!(twice.as_ref(), once.as_ref());
            }
        }

        #[test]
        fn no_input_panics(path in ".{0,40}") {
            let _ = normalise(&path);
        }
    }
}
