//! The parts that tables of `gateway.yaml` are made of: a [`Section`] is a map of the file, a
//! [`Field`] one of its fields, a [`Shape`] what may stand there.
//!
//! The tables are in `sections`. They are the one place that knows which fields there are, which
//! of them are needed, and which hold secrets: `read` goes by them, `schema` tells editors, `shown`
//! masks. What a value means, and what else could be wrong with it, is for whoever reads it.

/// A map of the file.
#[derive(Debug)]
pub(super) struct Section {
    /// What messages call it.
    pub(super) what: &'static str,
    pub(super) fields: &'static [Field],
    /// What fields of any other name are; without it there are no others.
    pub(super) others: Option<Field>,
    /// How fields depend on each other, as far as a schema can tell.
    pub(super) rules: &'static [Rule],
}

impl Section {
    pub(super) const fn new(what: &'static str, fields: &'static [Field]) -> Self {
        Self { what, fields, others: None, rules: &[] }
    }

    pub(super) const fn others(mut self, others: Field) -> Self {
        self.others = Some(others);
        self
    }

    pub(super) const fn rules(mut self, rules: &'static [Rule]) -> Self {
        self.rules = rules;
        self
    }

    /// A field by its name.
    pub(super) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name).or(self.others.as_ref())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|field| field.name)
    }
}

/// A field of a map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// What it is, in a sentence.
    pub(super) doc: &'static str,
    /// What it is when it is not given, as the file would say it.
    pub(super) default: Option<&'static str>,
    /// Whether it must be there; and how the message that it is not goes on.
    pub(super) required: Option<&'static str>,
    /// Whether `field:` with nothing behind it is a mistake rather than a field that is not given.
    pub(super) never_empty: bool,
    /// Whether it is nobody's business but the operator's.
    pub(super) secret: bool,
}

impl Field {
    pub(super) const fn new(name: &'static str, shape: Shape, doc: &'static str) -> Self {
        let (default, required, never_empty, secret) = (None, None, false, false);
        Self { name, shape, doc, default, required, never_empty, secret }
    }

    pub(super) const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    pub(super) const fn required(self) -> Self {
        self.required_such("")
    }

    /// Required, and the message that it is missing goes on like this.
    pub(super) const fn required_such(mut self, such: &'static str) -> Self {
        self.required = Some(such);
        self
    }

    /// To leave it empty would mean something else than whoever wrote it may think.
    pub(super) const fn never_empty(mut self) -> Self {
        self.never_empty = true;
        self
    }

    pub(super) const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }
}

/// What may stand somewhere. Where a scalar may, an environment variable may.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Text of any kind, be it a number.
    Text,
    /// Text in a small language of its own.
    Like(&'static Grammar),
    /// A whole number between two others.
    Number(u64, u64),
    /// `true` or `false`.
    Truth,
    /// One of a few words.
    Words(fn() -> Vec<&'static str>),
    /// A map with fields.
    Map(&'static Section),
    /// A map whose names are the user's.
    ByName(&'static Shape),
    /// A map of headers and their values; some of them are secrets.
    Headers,
    /// A list with so many items at least.
    List(&'static Shape, usize),
    /// The same; one item may stand alone.
    OneOrList(&'static Shape, usize),
    /// Any of these.
    Either(&'static [Shape]),
}

/// A small language inside a scalar.
#[derive(Debug)]
pub(super) struct Grammar {
    /// A regular expression for all of it. It may match more than is right, never less, and is
    /// understood by Rust and by editors alike: no look-around.
    pub(super) pattern: &'static str,
    /// What is right, in words.
    pub(super) help: &'static str,
    /// What it could be taken for.
    pub(super) bare: Bare,
    /// What is wrong although it fits the pattern.
    pub(super) but: But,
}

/// YAML takes `5` for a number and `true` for a boolean, where somebody meant the text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bare {
    /// What looks like that is none of these.
    Never,
    /// Whole numbers are.
    Whole,
    /// Anything may be.
    Any,
}

/// Exceptions to a pattern.
#[derive(Clone, Copy, Debug)]
pub(super) enum But {
    Nothing,
    /// These words, in capitals or not.
    Words(&'static [&'static str]),
    /// What a regular expression finds anywhere in it.
    Like(&'static str),
}

impl Grammar {
    pub(super) const fn new(pattern: &'static str, help: &'static str) -> Self {
        Self { pattern, help, bare: Bare::Never, but: But::Nothing }
    }

    pub(super) const fn bare(mut self, bare: Bare) -> Self {
        self.bare = bare;
        self
    }

    pub(super) const fn but(mut self, but: But) -> Self {
        self.but = but;
        self
    }
}

/// How fields of a map depend on each other. A field that is empty is not given.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// Exactly one of these is given.
    One(&'static [&'static str]),
    /// At most one of these is given.
    AtMostOne(&'static [&'static str]),
    /// Where the first is given, the second is.
    Needs(&'static str, &'static str),
    /// Where the first is given, the second is like this, or not given.
    Where(&'static str, &'static str, Shape),
    /// Where the first is not given, the second is like this.
    Without(&'static str, &'static str, Shape),
    /// Unless the first is like this, the second is given.
    Unless(&'static str, Shape, &'static str),
    /// Where the first has two entries or more, the second is given.
    Several(&'static str, &'static str),
}

/// The words of a table of words and what they mean.
pub(super) fn words<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|(word, _)| *word).collect()
}
