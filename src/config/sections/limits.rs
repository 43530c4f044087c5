//! Tables of limits, at the top level and on routes.

use super::store::ON_FAILURE;
use super::{ANY_NUMBER, AT_LEAST_ONE, ITS_NAME, TIME};
use crate::config::callers::HEADER_NAME;
use crate::config::grammar::{CALENDAR_RATE, RATE, SIZE};
use crate::config::limits::attributes::{ATTRIBUTE, SOME_HAVE};
use crate::config::limits::costs::{JSON_PATH, UNREPORTED};
use crate::config::limits::quotas::{ALGORITHMS, OF_PLAN, TIME_ZONE};
use crate::config::limits::{CONSISTENCIES, MODES, REJECTS};
use crate::config::section::Shape::{self, Either, Like, Map, Number, OneOrList, Words};
use crate::config::section::{Field, Rule, Section, words};

pub(in crate::config) static LIMIT: Section = Section::new(
    "a limit",
    &[
        Field::new(
            "name",
            ITS_NAME,
            "What headers, logs and metrics call it; counters belong to it.",
        ),
        Field::new(
            "by",
            Either(&[GLOBAL, OneOrList(&Like(&ATTRIBUTE), 1)]),
            "What callers are told apart by: ip, user, api_key, header:NAME, a list, or global.",
        )
        .required_such(": ip, user, api_key, header:NAME or global"),
        Field::new(
            "unless",
            OneOrList(&Like(&SOME_HAVE), 0),
            "It does not apply to callers who have any of these.",
        ),
        Field::new(
            "cost",
            Either(&[AT_LEAST_ONE, Map(&COST)]),
            "Tokens a request takes: a number, or what tells it when the answer is there.",
        )
        .or("1"),
        Field::new(
            "mode",
            Words(|| words(&MODES)),
            "'shadow' counts and reports, but never rejects.",
        )
        .or("enforce"),
        CONCURRENCY,
        ALGORITHM.or("token_bucket"),
        BURST,
        QUEUE.or("100"),
        MAX_WAIT.or("10s"),
        ZONE.or("UTC"),
        ALLOWED,
        Field::new(
            "candidate",
            Map(&CANDIDATE),
            "Other numbers, counted beside these without rejecting.",
        ),
        Field::new("penalty", Map(&PENALTY), "Bans callers who ignore rejects."),
        Field::new("on_failure", ON_FAILURE, "What it does while the shared store is away."),
        Field::new(
            "consistency",
            Words(|| words(&CONSISTENCIES)),
            "With a shared store: a round trip for each decision, or leases taken in advance.",
        )
        .or("exact"),
        Field::new(
            "shards",
            Number(1, 1024),
            "With a shared store: a limit by global is split over so many keys.",
        )
        .or("1"),
    ],
)
.rules(&[
    Rule::One(&["rate", "concurrency"]),
    NO_ALGORITHM,
    NO_BURST,
    Rule::Where("burst", "algorithm", BUCKETS),
    Rule::Needs("queue", "algorithm"),
    Rule::Where("queue", "algorithm", LEAKY),
    Rule::Needs("max_wait", "algorithm"),
    Rule::Where("max_wait", "algorithm", LEAKY),
    Rule::Needs("time_zone", "algorithm"),
    Rule::Where("time_zone", "algorithm", FIXED),
    Rule::Where("time_zone", "rate", CALENDAR_OR_PLAN),
    Rule::Where("shards", "by", GLOBAL),
    Rule::Where("penalty", "by", ONE_CALLER),
]);

/// What it does not say is as in the limit beside it.
pub(in crate::config) static CANDIDATE: Section =
    Section::new("a candidate", &[CONCURRENCY, ALGORITHM, BURST, QUEUE, MAX_WAIT, ZONE, ALLOWED])
        .rules(&[Rule::AtMostOne(&["rate", "concurrency"]), NO_ALGORITHM, NO_BURST]);

const CONCURRENCY: Field = Field::new(
    "concurrency",
    AT_LEAST_ONE,
    "Instead of a rate: how many requests may be in flight at the same time.",
);
const ALGORITHM: Field = Field::new("algorithm", Words(|| words(&ALGORITHMS)), "How it counts.");
const BURST: Field = Field::new(
    "burst",
    AT_LEAST_ONE,
    "How much may be used at once; for token_bucket (default: N of the rate) and gcra (default: 1).",
);
const QUEUE: Field = Field::new("queue", ANY_NUMBER, "How many may wait; for leaky_bucket.");
const MAX_WAIT: Field = Field::new("max_wait", TIME, "How long they may wait; for leaky_bucket.");
const ZONE: Field = Field::new(
    "time_zone",
    Like(&TIME_ZONE),
    "Where days, weeks and months begin; for fixed_window.",
);
const ALLOWED: Field = Field::new(
    "rate",
    RATE_OR_PLAN,
    "How much is allowed: 100/minute, 5/10m, 10000/month; or 'plan', 'plan.NAME': what the \
     caller's plan says.",
);

const RATE_OR_PLAN: Shape = Either(&[Like(&RATE), Like(&OF_PLAN)]);

const CALENDAR_OR_PLAN: Shape = Either(&[Like(&CALENDAR_RATE), Like(&OF_PLAN)]);

const NO_ALGORITHM: Rule = Rule::AtMostOne(&["concurrency", "algorithm"]);
const NO_BURST: Rule = Rule::AtMostOne(&["concurrency", "burst"]);

const BUCKETS: Shape = Words(|| vec!["token_bucket", "gcra"]);
const LEAKY: Shape = Words(|| vec!["leaky_bucket"]);
const FIXED: Shape = Words(|| vec!["fixed_window"]);
const GLOBAL: Shape = Words(|| vec!["global"]);
const ONE_CALLER: Shape = OneOrList(&Words(|| vec!["ip", "user", "api_key"]), 1);

pub(in crate::config) static PENALTY: Section = Section::new(
    "a penalty",
    &[
        Field::new("after", Like(&REJECTS), "How many rejects in how long: 100 rejects in 1m.")
            .required_such(", such as 100 rejects in 1m"),
        Field::new("for", TIME, "How long the ban lasts.").required(),
    ],
);

pub(in crate::config) static COST: Section = Section::new(
    "a cost",
    &[
        Field::new(
            "response_header",
            Like(&HEADER_NAME),
            "The number in this header of the response.",
        ),
        Field::new(
            "response_json",
            Like(&JSON_PATH),
            "The number at this path in the response's JSON, such as usage.total_tokens.",
        ),
        Field::new(
            "request_bytes",
            Like(&SIZE),
            "One token for every so many bytes of the request's body.",
        ),
        Field::new(
            "response_bytes",
            Like(&SIZE),
            "One token for every so many bytes of the response's body.",
        ),
        Field::new("reserve", AT_LEAST_ONE, "What is taken until the cost is known.").or("1"),
        Field::new(
            "max",
            AT_LEAST_ONE,
            "What a number costs that never came, because the client left: 10 times the reserve unless given.",
        ),
        Field::new(
            "unreported",
            Words(|| words(&UNREPORTED)),
            "What a complete answer without a number costs.",
        )
        .or("reserve"),
    ],
)
.rules(&[
    Rule::One(&["response_header", "response_json", "request_bytes", "response_bytes"]),
    Rule::AtMostOne(&["request_bytes", "max"]),
    Rule::AtMostOne(&["response_bytes", "max"]),
    Rule::AtMostOne(&["request_bytes", "unreported"]),
    Rule::AtMostOne(&["response_bytes", "unreported"]),
]);
