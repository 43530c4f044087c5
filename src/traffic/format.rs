//! How the lines of a log are written: as the user says, or as its first lines look.

use super::chunk::{Chunk, Entry, Unreadable};
use super::combined;
use super::csv::{self, Csv};
use super::fields::{Field, Fields, Unit, is_same};
use super::json::{self, Draft, Json};
use super::moment::Moments;
use crate::printable::printable;
use jiff::tz::TimeZone;

/// A format of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Sluice's own access log, as JSON
    Sluice,
    /// nginx's and Apache's combined format, or the common one
    Combined,
    /// A JSON object a line
    Json,
    /// Comma-separated values; tabs and semicolons will do
    Csv,
}

/// What the user says of the logs.
#[derive(Clone, Debug)]
pub struct How {
    /// Their format; otherwise it is guessed, for each log on its own.
    pub format: Option<Format>,
    /// Which fields tell what.
    pub fields: Fields,
    /// Where times are from that do not say so.
    pub zone: TimeZone,
}

impl Default for How {
    fn default() -> Self {
        Self { format: None, fields: Fields::default(), zone: TimeZone::UTC }
    }
}

/// Why nobody knows how a log is to be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFormat {
    /// It is like none of them.
    #[error(
        "the format cannot be told by its first line; name it by --format sluice, combined, json \
         or csv\n  {0}"
    )]
    Unknown(String),
    /// It is not what the user says.
    #[error("its first line is {0}\n  {1}")]
    NotSo(&'static str, String),
    /// What tells that?
    #[error(
        "no field is known to be the {lacking}; name it, for example: --fields {lacking}=NAME\n  \
         fields there are: {there}"
    )]
    Lacks {
        /// What is lacking.
        lacking: &'static str,
        /// The fields that there are.
        there: String,
    },
    /// Nothing in it has a name.
    #[error(
        "lines of the combined format have no names of fields, such as '{0}'; --fields is for JSON and CSV"
    )]
    NoNames(String),
    /// There is no such column.
    #[error("there is no column '{0}'\n  columns there are: {1}")]
    NoColumn(String, String),
}

/// Reads the lines of one log.
#[derive(Debug)]
pub(super) struct Reader {
    lines: Lines,
    /// The log is our own: what it says of callers is what the gateway found out.
    pub(super) own: bool,
    /// The first line is none of a request.
    pub(super) has_header: bool,
    moments: Moments,
}

#[derive(Debug)]
enum Lines {
    Json(Json),
    Combined,
    Csv(Csv),
}

/// Lines that are looked at to tell what there is, and to tell the format.
const LOOKED_AT: usize = 50;
const FIRST: usize = 5;

/// The keys of each.
fn lines_of<'l>(lines: impl Iterator<Item = &'l [u8]>) -> Vec<Vec<String>> {
    lines.take(LOOKED_AT).filter_map(json::keys).collect()
}

impl How {
    /// How a log is to be read that begins like this.
    pub(super) fn reader(&self, sample: &[u8]) -> Result<Reader, NoFormat> {
        let lines = sample.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let lines = lines.filter(|line| !line.is_empty());
        let first = lines.clone().next().unwrap_or_default();
        let shown = || excerpt(first);
        // The first of them may be torn.
        let few = || lines.clone().take(FIRST);
        let guessed = match () {
            () if few().any(|line| line.starts_with(b"{")) => Some(Format::Json),
            () if few().any(|line| self.reads_combined(line)) => Some(Format::Combined),
            () if csv::header(first).is_some() => Some(Format::Csv),
            () => None,
        };
        if let (Some(Format::Combined), Some((_, name))) =
            (self.format.or(guessed), self.fields.said.first())
        {
            return Err(NoFormat::NoNames(printable(name)));
        }
        let (lines, own, has_header) = match self.format.or(guessed) {
            None if first.is_empty() => (Lines::Combined, false, false),
            None => return Err(NoFormat::Unknown(shown())),
            Some(Format::Combined) => (Lines::Combined, false, false),
            Some(Format::Csv) => {
                let (csv, has_header) = self.csv(first)?;
                (Lines::Csv(csv), false, has_header)
            }
            Some(Format::Sluice) => (Lines::Json(self.own(&lines_of(lines))), true, false),
            Some(Format::Json) => {
                let some = lines_of(lines);
                if some.is_empty() && !first.is_empty() {
                    return Err(NoFormat::NotSo("no JSON object", shown()));
                }
                if self.format.is_none() && some.iter().any(|keys| is_own(keys)) {
                    (Lines::Json(self.own(&some)), true, false)
                } else {
                    let names: Vec<String> = some.into_iter().flatten().collect();
                    (Lines::Json(Json::new(&self.known_or_later(&names)?)), false, false)
                }
            }
        };
        Ok(Reader { lines, own, has_header, moments: Moments::new(self.zone.clone()) })
    }

    fn reads_combined(&self, line: &[u8]) -> bool {
        let mut reader = Reader {
            lines: Lines::Combined,
            own: false,
            has_header: false,
            moments: Moments::new(self.zone.clone()),
        };
        let mut chunk = Chunk::default();
        chunk.text.set(line);
        !matches!(reader.read(&mut chunk, 1, 0, line.len()), Err(Unreadable::NotCombined))
    }

    /// Our own log. What the end of a request tells comes last in it, and is often not asked for.
    fn own(&self, some: &[Vec<String>]) -> Json {
        const OWN: [(&str, Field); 14] = [
            ("time", Field::Time),
            ("method", Field::Method),
            ("path", Field::Path),
            ("status", Field::Status),
            ("ip", Field::Ip),
            ("host", Field::Host),
            ("user", Field::User),
            ("plan", Field::Plan),
            ("api_key", Field::ApiKey),
            ("upstream", Field::Upstream),
            ("error", Field::Error),
            ("sample", Field::Sample),
            ("bytes", Field::Bytes),
            ("duration_ms", Field::Duration(Unit::Millis)),
        ];
        let Fields { headers, costs, lengths, sizes, said } = &self.fields;
        // What is said of other logs means nothing here.
        let has = |name: &String| some.iter().flatten().any(|known| known == name);
        let said = said.iter().filter(|(_, name)| has(name));
        let mut all: Vec<_> = said.map(|(field, name)| (name.clone(), *field)).collect();
        for (name, field) in OWN.iter().filter(|(_, field)| self.fields.wants(*field)) {
            if !all.iter().any(|(_, known)| known == field) {
                all.push(((*name).to_owned(), *field));
            }
        }
        for (index, name) in headers.iter().enumerate() {
            all.push((format!("headers.{name}"), Field::Header(index as u16)));
        }
        for (index, name) in costs.iter().enumerate() {
            all.push((format!("costs.{name}"), Field::Cost(index as u16)));
        }
        let is_last = |keys: &Vec<String>| {
            let order = ["time", "method", "path", "status", "ip", "host", "request_id", "bytes"];
            let known = keys.iter().filter(|key| order.contains(&key.as_str()));
            known.map(String::as_str).is_sorted_by_key(|key| order.iter().position(|k| *k == key))
        };
        let as_written = self.fields.said.is_empty() && some.iter().all(is_last);
        if *lengths || *sizes || !costs.is_empty() || !as_written {
            Json::new(&all)
        } else {
            Json::until(&all, "bytes")
        }
    }

    /// What is known of these names; what none of them tells may come later, by any usual name.
    fn known_or_later(&self, names: &[String]) -> Result<Vec<(String, Field)>, NoFormat> {
        let mut known = self.known(names)?;
        let told = known.clone();
        for (name, field) in self.fields.usual().filter(|(_, field)| self.fields.wants(*field)) {
            let is_told = told.iter().any(|(_, other)| is_same(*other, field));
            let taken = names.contains(&name) || known.iter().any(|(other, _)| *other == name);
            if !is_told && !taken {
                known.push((name, field));
            }
        }
        Ok(known)
    }

    fn known(&self, names: &[String]) -> Result<Vec<(String, Field)>, NoFormat> {
        let found = self.fields.among(|name| names.iter().any(|known| known == name));
        match Fields::lacking(&found) {
            None => Ok(found.into_iter().filter(|(_, field)| self.fields.wants(*field)).collect()),
            Some(lacking) => {
                let mut names = names.to_vec();
                names.sort();
                names.dedup();
                Err(NoFormat::Lacks { lacking, there: printable(&names.join(", ")) })
            }
        }
    }

    fn csv(&self, first: &[u8]) -> Result<(Csv, bool), NoFormat> {
        let (separator, names) = csv::header(first)
            .ok_or_else(|| NoFormat::NotSo("no list of fields", excerpt(first)))?;
        let said = &self.fields.said;
        let numbered = !said.is_empty() && said.iter().all(|(_, name)| name.parse::<u32>().is_ok());
        let names = if numbered {
            (1..=names.len()).map(|number| number.to_string()).collect()
        } else {
            names
        };
        if let Some((_, name)) = said.iter().find(|(_, name)| !names.contains(name)) {
            return Err(NoFormat::NoColumn(name.clone(), printable(&names.join(", "))));
        }
        let known = self.known(&names)?;
        let field = |name: &String| known.iter().find(|(k, _)| k == name).map(|(_, field)| *field);
        Ok((Csv::new(separator, names.iter().map(field).collect()), !numbered))
    }
}

/// Whether an object with these keys is a line of our own log.
fn is_own(keys: &[String]) -> bool {
    ["time", "method", "status", "ip", "request_id", "overhead_ms"]
        .iter()
        .all(|own| keys.iter().any(|key| key == own))
}

/// The beginning of a line, as far as it prints.
pub(super) fn excerpt(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(400)]);
    let mut short: String = printable(&text).chars().take(100).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}

impl Reader {
    /// Reads the line of the chunk's text from `start` to `end`, and adds it to the chunk's entries.
    #[inline]
    pub(super) fn read(
        &mut self,
        chunk: &mut Chunk,
        line: u64,
        start: usize,
        end: usize,
    ) -> Result<(), Unreadable> {
        let Chunk { text, spelt, extras, entries, latest, .. } = chunk;
        let text = &text[..end];
        let before = extras.len();
        entries.push(Entry { line, ..Entry::EMPTY });
        let Some(entry) = entries.last_mut() else { return Ok(()) }; // there is one
        let mut draft = Draft { entry, extras, spelt, moments: &mut self.moments };
        let read = match &mut self.lines {
            Lines::Json(json) => json.read(text, start, &mut draft),
            Lines::Combined => combined::read(text, start, &mut draft),
            Lines::Csv(csv) => csv.read(text, start, &mut draft),
        };
        let whole = read.and_then(|()| match () {
            () if entry.time == u64::MAX => Err(Unreadable::NoTime),
            () if entry.ip.is_unspecified() => Err(Unreadable::NoAddress),
            () => Ok(()),
        });
        if whole.is_ok() {
            entry.extras = (before as u32, extras.len() as u32);
            *latest = entry.time.max(*latest);
        } else {
            extras.truncate(before);
            entries.pop();
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    /// Values of all kinds, with text that has to be escaped.
    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[ -~\\n\"\\\\é/{}\\[\\]:,]{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-d\"\\\\.]{0,3}", inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    fn read(reader: &mut Reader, chunk: &mut Chunk, line: &[u8]) -> Result<(), Unreadable> {
        chunk.clear();
        chunk.text.set(line);
        reader.read(chunk, 1, 0, line.len())
    }

    proptest! {
        #[test]
        fn json_is_read_as_another_reader_reads_it(
            lines in prop::collection::vec(
                prop::collection::vec(("[a-z\"\\\\]{0,3}", values()), 0..5),
                1..4,
            ),
            pretty in any::<bool>(),
            path in "/[ -~é]{0,30}",
            user in prop::option::of("[ -~\\n\"\\\\]{0,9}"),
        ) {
            let mut fields = Fields::default();
            fields.say("user=who.name").unwrap();
            let how = How { format: Some(Format::Json), fields, ..How::default() };
            let first = json!({ "time": 1, "ip": "10.0.0.1", "path": "/", "who": { "name": "x" } });
            let mut reader = how.reader(first.to_string().as_bytes()).unwrap();
            let mut chunk = Chunk::default();
            for others in lines {
                let wanted = ["time", "ip", "path", "who"];
                let others = others.into_iter().filter(|(name, _)| !wanted.contains(&name.as_str()));
                let mut line: Map<String, Value> = others.collect();
                // In the middle of the others.
                for (name, value) in [
                    ("time", json!(1_707_432_612.5)),
                    ("ip", json!("10.0.0.7")),
                    ("path", json!(path)),
                    ("who", json!({ "a": [{}], "name": user, "z": { "name": "no" } })),
                ] {
                    line.insert(name.to_owned(), value);
                }
                line.insert("zz".to_owned(), json!([1, "}"]));
                let text = if pretty {
                    // Spaces between everything, but on one line.
                    serde_json::to_string_pretty(&line).unwrap().replace('\n', " ")
                } else {
                    serde_json::to_string(&line).unwrap()
                };
                prop_assert_eq!(read(&mut reader, &mut chunk, text.as_bytes()), Ok(()), "{}", text);
                let entry = &chunk.entries[0];
                prop_assert_eq!(entry.time, 1_707_432_612_500_000);
                prop_assert_eq!(entry.ip, "10.0.0.7".parse::<std::net::IpAddr>().unwrap());
                let told = |span| chunk.text(span).map(std::borrow::Cow::into_owned);
                prop_assert_eq!(told(entry.target), Some(path.clone()));
                // A dash stands for nothing.
                let user = user.clone().filter(|user| !user.is_empty() && user != "-");
                prop_assert_eq!(told(entry.user), user);
                // And what breaks off is no line.
                let half = text.trim_end_matches(['}', ' ']);
                let torn = read(&mut reader, &mut chunk, half.as_bytes());
                prop_assert_eq!(torn, Err(Unreadable::NotJson), "{}", half);
            }
        }

        #[test]
        fn nothing_that_is_in_a_log_makes_it_panic(
            lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..6),
            cut in 0usize..200,
            flip in any::<(usize, u8)>(),
        ) {
            let good = [
                r#"{"time":"2024-02-08T22:50:01.123Z","method":"GET","path":"/a","status":200,"ip":"10.0.0.1","request_id":"x","overhead_ms":0.1}"#,
                r#"10.0.0.7 - - [08/Feb/2024:22:50:01 +0000] "GET /a/b HTTP/1.1" 200 5 "-" "x" "10.0.0.1""#,
                r#"2024-02-08T22:50:01.123Z,10.0.0.1,/,"a ""b""",200"#,
            ];
            let mut all = lines;
            for line in good {
                let mut line = line.as_bytes().to_vec();
                let length = line.len();
                line[flip.0 % length] = flip.1;
                line.truncate(cut);
                all.push(line);
            }
            for format in [Format::Sluice, Format::Combined, Format::Json, Format::Csv] {
                let how = How { format: Some(format), ..How::default() };
                let names = b"time,ip,path,user,status";
                let first = if format == Format::Csv { names.as_slice() } else { good[0].as_bytes() };
                let mut reader = how.reader(first).unwrap();
                let mut chunk = Chunk::default();
                for line in &all {
                    let _ = read(&mut reader, &mut chunk, line);
                }
                for line in &all {
                    let _ = how.reader(line);
                    let _ = How::default().reader(line);
                }
            }
        }
    }
}
