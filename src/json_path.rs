//! Finds one number in JSON that passes by, without holding it: `usage.total_tokens` of a response.
//!
//! ```text
//! pieces of a body ──► Events: only what follows `data:` (server-sent events)
//!                 └──► Scan: byte by byte, knows how deep it is and how far it is on the path
//! ```
//!
//! The last number on the path counts: of several events, or of several values one after the other
//! (newline-delimited JSON). What is no JSON is passed over, up to the next event.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Where a number is: names of members, or places in lists, separated by dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(Arc<[Box<str>]>);

/// Why a text is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a path looks like usage.total_tokens")]
pub struct NoPath;

impl FromStr for JsonPath {
    type Err = NoPath;

    fn from_str(text: &str) -> Result<Self, NoPath> {
        let names: Arc<[Box<str>]> = text.split('.').map(Box::from).collect();
        let fits = names.len() <= DEEPEST && names.iter().all(|name| !name.is_empty());
        fits.then_some(Self(names)).ok_or(NoPath)
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// What is deeper than this is passed over.
const DEEPEST: usize = 64;

/// Looks for a number in what passes by.
#[derive(Debug)]
pub struct Finder {
    scan: Scan,
    /// The body is a stream of events.
    events: Option<Events>,
}

impl Finder {
    /// Looks for what is at `path`, in JSON or in events that carry JSON.
    pub fn new(path: JsonPath, events: bool) -> Self {
        Self { scan: Scan::new(path), events: events.then(Events::default) }
    }

    /// Looks at the next piece.
    pub fn feed(&mut self, piece: &[u8]) {
        for &byte in piece {
            match &mut self.events {
                None => self.scan.feed(byte),
                Some(events) => events.feed(byte, &mut self.scan),
            }
        }
    }

    /// The last number that was found, rounded up; a negative one is none.
    pub fn found(&self) -> Option<u32> {
        self.scan.found.and_then(rounded_up)
    }
}

/// The next whole number; a negative one is none.
#[expect(clippy::cast_sign_loss, reason = "negative ones are left out")]
pub(crate) fn rounded_up(number: f64) -> Option<u32> {
    // A float that is too large becomes the largest integer.
    (number >= 0.0).then(|| number.ceil() as u32)
}

/// Where in a line of a stream of events the next byte is.
#[derive(Debug)]
enum Events {
    /// So many bytes of `data:` have come.
    Name(usize),
    /// A space may follow the colon.
    Colon,
    Data,
    /// Another field.
    Other,
    /// A line has ended with CR; LF may follow.
    Return,
}

impl Default for Events {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl Events {
    fn feed(&mut self, byte: u8, scan: &mut Scan) {
        const NAME: &[u8] = b"data:";
        *self = match (&*self, byte) {
            // The second half of CR LF.
            (Self::Return, b'\n') => Self::Name(0),
            (Self::Name(0) | Self::Return, b'\n' | b'\r') => {
                // An empty line ends the event.
                scan.begin();
                if byte == b'\r' { Self::Return } else { Self::Name(0) }
            }
            (_, b'\n') => Self::Name(0),
            (_, b'\r') => Self::Return,
            (Self::Return, b'd') => Self::Name(1),
            (Self::Name(at), _) if NAME.get(*at) == Some(&byte) => {
                if at + 1 == NAME.len() {
                    Self::Colon
                } else {
                    Self::Name(at + 1)
                }
            }
            (Self::Name(_) | Self::Return | Self::Other, _) => Self::Other,
            (Self::Colon, b' ') => Self::Data,
            (Self::Colon | Self::Data, _) => {
                scan.feed(byte);
                Self::Data
            }
        };
    }
}

/// What the next byte may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Value,
    /// A name, or the end of the map.
    Name,
    /// Inside a name; so much of the one that is looked for has come, unless it is another.
    InName(Option<usize>),
    Colon,
    InText,
    /// Inside a number that is looked for.
    InNumber,
    /// Inside another number or word.
    InWord,
    /// A comma, or the end of the list or map.
    Comma,
    /// Inside of what is too deep.
    Deep,
    /// This is no JSON.
    Lost,
}

#[derive(Debug)]
struct Scan {
    path: JsonPath,
    next: Next,
    /// A backslash came before.
    escaped: bool,
    /// How many lists and maps are open, and which of them are lists.
    depth: usize,
    lists: u64,
    /// How many more are open.
    deep: usize,
    /// How many of those that are open lie on the path, beside the outermost.
    matched: usize,
    /// Whether the value that comes next, or is under way, is at the next place of the path.
    wanted: bool,
    /// In lists on the path: the place of the value that comes next.
    places: [u32; DEEPEST],
    number: Number,
    found: Option<f64>,
}

/// A number's text. One that is longer than this is none.
#[derive(Debug, Default)]
struct Number {
    text: [u8; 32],
    length: usize,
}

impl Number {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.text.get_mut(self.length) {
            *place = byte;
        }
        self.length += 1;
    }

    fn value(&self) -> Option<f64> {
        str::from_utf8(self.text.get(..self.length)?).ok()?.parse().ok()
    }
}

impl Scan {
    fn new(path: JsonPath) -> Self {
        Self {
            path,
            next: Next::Value,
            escaped: false,
            depth: 0,
            lists: 0,
            deep: 0,
            matched: 0,
            wanted: false,
            places: [0; DEEPEST],
            number: Number::default(),
            found: None,
        }
    }

    /// Forgets where it is, not what it found.
    fn begin(&mut self) {
        self.next = Next::Value;
        (self.escaped, self.wanted) = (false, false);
        (self.depth, self.deep, self.matched) = (0, 0, 0);
    }

    fn feed(&mut self, byte: u8) {
        match self.next {
            // Between values, each on a line of its own, there is a way back.
            Next::Lost if self.depth == 0 && byte == b'\n' => self.begin(),
            Next::Lost => {}
            Next::Deep => self.pass_over(byte),
            Next::InText | Next::InName(_) => self.text(byte),
            Next::InNumber if is_word(byte) => self.number.push(byte),
            Next::InWord if is_word(byte) => {}
            Next::InNumber => {
                self.found = self.number.value().or(self.found);
                self.after_value();
                self.feed(byte);
            }
            Next::InWord => {
                self.after_value();
                self.feed(byte);
            }
            _ if byte.is_ascii_whitespace() => {}
            Next::Value => self.value(byte),
            Next::Name if byte == b'"' => {
                self.next = Next::InName(self.on_path().then_some(0));
            }
            Next::Colon if byte == b':' => self.next = Next::Value,
            Next::Comma if byte == b',' => self.comma(),
            Next::Name if byte == b'}' => self.close(),
            Next::Comma if byte == self.closing() => self.close(),
            Next::Name | Next::Colon | Next::Comma => self.next = Next::Lost,
        }
    }

    /// Whether the innermost of those that are open lies on the path.
    fn on_path(&self) -> bool {
        self.depth == self.matched + 1
    }

    fn is_list(&self) -> bool {
        self.depth > 0 && self.lists >> (self.depth - 1) & 1 == 1
    }

    fn closing(&self) -> u8 {
        if self.is_list() { b']' } else { b'}' }
    }

    fn value(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' => self.open(byte == b'['),
            // A byte order mark.
            0xef | 0xbb | 0xbf if self.depth == 0 => {}
            // Nothing outside of lists and maps has a name.
            _ if self.depth == 0 => self.next = Next::Lost,
            b']' if self.is_list() => self.close(), // an empty list
            b'"' => self.next = Next::InText,
            _ if !is_word(byte) => self.next = Next::Lost,
            b'-' | b'0'..=b'9' if self.wanted && self.matched + 1 == self.path.0.len() => {
                self.number = Number::default();
                self.number.push(byte);
                self.next = Next::InNumber;
            }
            _ => self.next = Next::InWord,
        }
    }

    fn open(&mut self, list: bool) {
        if self.depth == DEEPEST {
            (self.next, self.deep) = (Next::Deep, 1);
            return;
        }
        if self.wanted && self.matched + 1 < self.path.0.len() {
            self.matched += 1;
        }
        self.lists = self.lists & !(1 << self.depth) | u64::from(list) << self.depth;
        self.depth += 1;
        self.wanted = false;
        if self.on_path() && list {
            self.places[self.matched] = 0;
            self.want_place();
        }
        self.next = if list { Next::Value } else { Next::Name };
    }

    fn pass_over(&mut self, byte: u8) {
        match byte {
            b'"' => self.next = Next::InText,
            b'{' | b'[' => self.deep += 1,
            b'}' | b']' if self.deep > 1 => self.deep -= 1,
            b'}' | b']' => {
                self.deep = 0;
                self.after_value();
            }
            _ => {}
        }
    }

    fn close(&mut self) {
        if self.on_path() {
            self.matched = self.matched.saturating_sub(1);
        }
        self.depth -= 1;
        self.after_value();
    }

    fn comma(&mut self) {
        if !self.is_list() {
            self.next = Next::Name;
            return;
        }
        if self.on_path() {
            self.places[self.matched] = self.places[self.matched].saturating_add(1);
            self.want_place();
        }
        self.next = Next::Value;
    }

    /// Whether the list's next value is at the path's place.
    fn want_place(&mut self) {
        let place = self.path.0[self.matched].parse();
        self.wanted = place == Ok(self.places[self.matched]);
    }

    fn after_value(&mut self) {
        self.wanted = false;
        self.next = if self.depth == 0 { Next::Value } else { Next::Comma };
    }

    fn text(&mut self, byte: u8) {
        if let Next::InName(matching) = &mut self.next
            && (self.escaped || byte != b'"')
        {
            // A name that is written with escapes is taken for another.
            let name = self.path.0[self.matched].as_bytes();
            *matching = matching.filter(|at| name.get(*at) == Some(&byte)).map(|at| at + 1);
        }
        if self.escaped {
            self.escaped = false;
        } else if byte == b'\\' {
            self.escaped = true;
        } else if byte == b'"' {
            match self.next {
                Next::InName(matching) => {
                    self.wanted = matching == Some(self.path.0[self.matched].len());
                    self.next = Next::Colon;
                }
                _ if self.deep > 0 => self.next = Next::Deep,
                _ => self.after_value(),
            }
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn find(path: &str, events: bool, body: &str) -> Option<u32> {
        let mut finder = Finder::new(path.parse().unwrap(), events);
        finder.feed(body.as_bytes());
        finder.found()
    }

    #[test]
    fn a_number_is_found_where_the_path_leads() {
        let body = r#" {"id":"x","usage":{"other":{"total_tokens":1},"total_tokens" : 1234 },
            "list":[{"usage":2},[7,8,9]], "total_tokens": 5, "a.b":6, "usage2":{"total_tokens":3}}"#;
        let cases = [
            ("usage.total_tokens", Some(1234)),
            ("total_tokens", Some(5)),
            ("usage.other.total_tokens", Some(1)),
            ("list.0.usage", Some(2)),
            ("list.1.2", Some(9)),
            ("list.1.3", None),
            ("list.2", None),
            ("usage", None),
            ("usage.total", None),
            ("id", None),
            ("usage.other.total_tokens.deeper", None),
        ];
        for (path, expected) in cases {
            assert_eq!(find(path, false, body), expected, "{path}");
        }
    }

    #[test]
    fn numbers_are_rounded_up_and_must_be_numbers() {
        let of = |value: &str| find("n", false, &format!("{{\"n\":{value}}}"));
        assert_eq!(of("0"), Some(0));
        assert_eq!(of("1.0001"), Some(2));
        assert_eq!(of("1e3"), Some(1000));
        assert_eq!(of("99999999999"), Some(u32::MAX));
        for none in ["-1", "null", "\"5\"", "true", "[5]", "{\"n\":5}", "1x"] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn of_several_events_the_last_that_has_the_field_counts() {
        let stream = "data: {\"usage\":null}\n\n\
            event: x\ndata: {\"usage\":{\"total_tokens\":3}}\r\n\r\n\
            : {\"usage\":{\"total_tokens\":99}}\n\n\
            id: data: {\"usage\":{\"total_tokens\":99}}\n\n\
            data:{\"usage\":\ndata:{\"total_tokens\":8}}\n\n\
            data: not json {\"usage\":{\"total_tokens\":99}}\n\n\
            data: {\"usage\":null}\n\ndata: [DONE]\n\n";
        assert_eq!(find("usage.total_tokens", true, stream), Some(8));
        let stream = "data: {\"n\":1}\r\rdata: {\"n\":2}\r\rdata: {\"x\":9}\r\r";
        assert_eq!(find("n", true, stream), Some(2), "carriage returns alone");
        let lines = "{\"eval_count\":1}\nnull\n{\"eval_count\":2}\n{\"done\":true}\n";
        assert_eq!(find("eval_count", false, lines), Some(2), "values, one after the other");
    }

    #[test]
    fn what_is_too_deep_is_passed_over() {
        let deep = format!("{}\"}}]\\\"\"{}", "[{\"n\":".repeat(100), "}]".repeat(100));
        let body = format!("\u{feff}{{\"echo\":{deep},\"n\":7}}");
        assert_eq!(find("n", false, &body), Some(7));
    }

    #[test]
    fn what_is_no_json_is_passed_over() {
        for body in
            ["", "}", "{\"n\"5}", "{n:5}", "<n>5</n>", "[5", &"[".repeat(1000), "{\"n\":\"5"]
        {
            assert_eq!(find("n", false, body), None, "{body}");
        }
        assert!("".parse::<JsonPath>().is_err());
        assert!("a..b".parse::<JsonPath>().is_err());
    }

    fn json() -> impl Strategy<Value = Value> {
        let name = prop_oneof![Just("a"), Just("b"), Just("ab"), Just("0"), Just("a\"b\\")];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..5000_u32).prop_map(Value::from),
            "[a-b\"\\\\{}\\[\\],:]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_finds_what_a_parser_finds(
            value in json(),
            path in prop::collection::vec(prop_oneof!["a", "b", "ab", "0", "1", "2"], 1..4),
            pretty in any::<bool>(),
            cut in 1..7_usize,
        ) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let mut finder = Finder::new(path.join(".").parse().unwrap(), false);
            text.as_bytes().chunks(cut).for_each(|piece| finder.feed(piece));
            let expected = path.iter().try_fold(&value, |value, name| match value {
                Value::Object(map) => map.get(name),
                Value::Array(list) => list.get(name.parse::<usize>().ok()?),
                _ => None,
            });
            prop_assert_eq!(finder.found().map(u64::from), expected.and_then(Value::as_u64));
        }
    }
}
