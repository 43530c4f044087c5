//! A number in JSON that passes by, however it is cut.
//!
//! Input: a line with a path, a line with the lengths of pieces, and the body.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::{Deserialize, IgnoredAny};
use serde_json::de::{Deserializer, SliceRead};
use sluice::json_path::{Finder, JsonPath};
use sluice_fuzz::{line, pieces};

fuzz_target!(|data: &[u8]| {
    let (path, rest) = line(data);
    let (lengths, body) = line(rest);
    let Some(text) = str::from_utf8(path).ok() else { return };
    let Ok(path) = text.parse::<JsonPath>() else {
        assert!(text.split('.').any(str::is_empty) || text.split('.').count() > 64);
        return;
    };
    assert_eq!(path.to_string(), text);
    for events in [false, true] {
        let whole = find(&path, events, [body].into_iter());
        for cut in [lengths, b"", b"\x01\x05\x02"] {
            assert_eq!(find(&path, events, pieces(body, cut, 1)), whole, "a cut changes it");
        }
    }
    let Some(value) = parse(body) else { return };
    let names: Vec<&str> = text.split('.').collect();
    let expected = value.at(&names);
    let found = find(&path, false, [body].into_iter());
    assert_eq!(found, expected, "{}", body.escape_ascii());
    // The same as an event, line by line.
    if !body.contains(&b'\r') {
        for name in ["data:", "data: "] {
            let lines: Vec<Vec<u8>> = body
                .split(|byte| *byte == b'\n')
                .map(|line| [name.as_bytes(), line].concat())
                .collect();
            let event = [&lines.join(&b'\n'), &b"\n\n"[..]].concat();
            assert_eq!(find(&path, true, [&event[..]].into_iter()), expected);
            let noise = [b"data: {\"", &event[..], b": x\nid: {\"a\":7}\n\n"].concat();
            assert_eq!(find(&path, true, [b"data: \"\n\n", &event[..]].into_iter()), expected);
            let _ = find(&path, true, [&noise[..]].into_iter());
        }
    }
    // One value a line, the last that has it counts.
    if !body.contains(&b'\n') && !body.contains(&b'\r') {
        let twice = [body, b"\nnull\n[]\n", body, b"\n{}\n"].concat();
        assert_eq!(find(&path, false, [&twice[..]].into_iter()), expected);
    }
});

fn find<'d>(path: &JsonPath, events: bool, pieces: impl Iterator<Item = &'d [u8]>) -> Option<u32> {
    let mut finder = Finder::new(path.clone(), events);
    pieces.for_each(|piece| finder.feed(piece));
    // A number at the very end is known only when something follows it.
    finder.found()
}

/// As much of JSON as is looked at.
#[derive(Debug)]
enum Json<'d> {
    Map(Vec<(&'d [u8], Json<'d>)>),
    List(Vec<Json<'d>>),
    Number(&'d str),
    Other,
}

impl Json<'_> {
    fn at(&self, names: &[&str]) -> Option<u32> {
        let (name, rest) = match names {
            [] => {
                let Self::Number(text) = self else { return None };
                let number: f64 = text.parse().ok().filter(|_| text.len() <= 32)?;
                return (number >= 0.0).then(|| number.ceil() as u32);
            }
            [name, rest @ ..] => (name, rest),
        };
        match self {
            Self::Map(members) => {
                let mut named = members.iter().filter(|(known, _)| *known == name.as_bytes());
                named.next().and_then(|(_, value)| value.at(rest))
            }
            Self::List(items) => {
                let place: u32 = name.parse().ok()?;
                items.get(place as usize).and_then(|value| value.at(rest))
            }
            _ => None,
        }
    }
}

/// A map or a list that others take for JSON, too; nothing that is said twice or escaped.
fn parse(body: &[u8]) -> Option<Json<'_>> {
    let mut reader = Deserializer::new(SliceRead::new(body));
    IgnoredAny::deserialize(&mut reader).ok()?;
    reader.end().ok()?;
    let plain = !body.contains(&b'\\');
    let mut rest = body;
    let value = value(&mut rest, 0).filter(|_| plain)?;
    matches!(value, Json::Map(_) | Json::List(_)).then_some(value)
}

/// Reads what is known to be JSON.
fn value<'d>(rest: &mut &'d [u8], depth: usize) -> Option<Json<'d>> {
    let take = |rest: &mut &'d [u8], count: usize| {
        let (taken, after) = rest.split_at(count);
        *rest = after;
        taken
    };
    let skip = |rest: &mut &'d [u8]| *rest = rest.trim_ascii_start();
    skip(rest);
    let first = *rest.first()?;
    match first {
        b'{' | b'[' => {
            let (mut members, mut items): (Vec<(&[u8], Json<'_>)>, _) = (Vec::new(), Vec::new());
            take(rest, 1);
            loop {
                skip(rest);
                match *rest.first()? {
                    b'}' | b']' => break,
                    b',' => drop(take(rest, 1)),
                    b'"' if first == b'{' => {
                        let length = rest[1..].iter().position(|byte| *byte == b'"')?;
                        let name = &take(rest, length + 2)[1..=length];
                        skip(rest);
                        take(rest, 1);
                        if members.iter().any(|(known, _)| *known == name) {
                            return None;
                        }
                        members.push((name, value(rest, depth + 1)?));
                    }
                    _ => items.push(value(rest, depth + 1)?),
                }
            }
            take(rest, 1);
            Some(match first {
                _ if depth >= 64 => Json::Other, // too deep
                b'{' => Json::Map(members),
                _ => Json::List(items),
            })
        }
        b'"' => {
            let length = rest[1..].iter().position(|byte| *byte == b'"')?;
            take(rest, length + 2);
            Some(Json::Other)
        }
        _ => {
            let length = rest.iter().take_while(|byte| !b" \t\n\r,]}".contains(byte)).count();
            let text = str::from_utf8(take(rest, length)).ok()?;
            let number = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            Some(if number { Json::Number(text) } else { Json::Other })
        }
    }
}
