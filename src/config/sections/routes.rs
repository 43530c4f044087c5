//! Tables of `routes`.

use super::{ITS_NAME, LIMITS, PRIORITY, SIZE_OR_NONE};
use crate::config::routes::headers::REMOVABLE;
use crate::config::routes::{HOST, METHOD, PATH, REQUIRED, STRIPPED};
use crate::config::section::Shape::{self, Either, Headers, Like, Map, OneOrList, Text, Words};
use crate::config::section::{Field, Rule, Section, words};

pub(in crate::config) static ROUTE: Section = Section::new(
    "a route",
    &[
        Field::new(
            "path",
            Like(&PATH),
            "/login is this path alone, /api/* is /api and everything below it, / is everything.",
        )
        .required(),
        Field::new("name", ITS_NAME, "What logs and metrics call it; otherwise its path."),
        Field::new(
            "hosts",
            OneOrList(&Like(&HOST), 0),
            "Hosts it answers to: api.example.com, or *.example.com; any unless it is given.",
        ),
        Field::new(
            "methods",
            OneOrList(&Like(&METHOD), 0),
            "Methods it answers to, in capitals; any unless it is given.",
        ),
        Field::new("upstream", Text, "Where it goes: the name of an upstream.").required(),
        Field::new(
            "require",
            Either(&[Words(|| words(&REQUIRED)), OneOrList(&BOTH, 0)]),
            "What callers must present: one of the two, any of them, or a list for both.",
        ),
        Field::new("limits", LIMITS, "Limits on top of those for all."),
        Field::new("rewrite", Map(&REWRITE), "How the path is changed before it is forwarded."),
        Field::new(
            "request_headers",
            Map(&REQUEST_HEADERS),
            "How the headers are changed before they are forwarded.",
        ),
        Field::new(
            "max_body_bytes",
            SIZE_OR_NONE,
            "The largest body of a request; otherwise what 'server' says. 'none' lifts it.",
        ),
        Field::new("priority", PRIORITY, "Who goes first when there is not enough for all."),
    ],
)
.rules(&[Rule::Without("name", "path", ITS_NAME)]);

const BOTH: Shape = Words(|| vec!["api_key", "user"]);

pub(in crate::config) static REWRITE: Section = Section::new(
    "rewrite",
    &[Field::new(
        "strip_prefix",
        Like(&STRIPPED),
        "Taken off the front of the path, which must begin with it.",
    )],
);

pub(in crate::config) static REQUEST_HEADERS: Section = Section::new(
    "request_headers",
    &[
        Field::new("set", Headers, "Set on the forwarded request, replacing what was there."),
        Field::new(
            "remove",
            OneOrList(&Like(&REMOVABLE), 0),
            "Removed from the forwarded request, before 'set'.",
        ),
    ],
);
