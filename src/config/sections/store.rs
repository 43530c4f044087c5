//! Tables of `store`.

use super::{ANY_NUMBER, AT_LEAST_ONE, PERCENT, TIME, TIME_OUT};
use crate::config::edge::FILE_TO_WRITE;
use crate::config::section::Shape::{self, Like, Map, Number, OneOrList, Text, Truth, Words};
use crate::config::section::{Field, Rule, Section, words};
use crate::config::store::{FAILURES, PREFIX, REDIS_URL};

pub(in crate::config) static STORE: Section = Section::new(
    "store",
    &[
        Field::new("memory", Map(&MEMORY), "Counters in this process."),
        Field::new("redis", Map(&REDIS), "Counters that gateways share."),
        Field::new("on_failure", ON_FAILURE, "What limits do while the store is away.").or("local"),
        Field::new(
            "local_share",
            PERCENT,
            "The share of each limit that this gateway enforces while the store is away.",
        )
        .or("20%"),
    ],
)
.rules(&[
    Rule::AtMostOne(&["memory", "redis"]),
    Rule::Needs("on_failure", "redis"),
    Rule::Needs("local_share", "redis"),
]);

pub(super) const ON_FAILURE: Shape = Words(|| words(&FAILURES));

pub(in crate::config) static MEMORY: Section = Section::new(
    "the memory store",
    &[
        Field::new("max_keys", Number(1000, u64::MAX), "About how many counters are kept.")
            .or("1000000"),
        Field::new(
            "snapshot",
            Like(&FILE_TO_WRITE),
            "A file that counters and bans are written to, so that a restart forgives nothing.",
        ),
        Field::new("snapshot_every", TIME, "How often it is written: 1s at least.").or("30s"),
    ],
)
.rules(&[Rule::Needs("snapshot_every", "snapshot")]);

pub(in crate::config) static REDIS: Section = Section::new(
    "the Redis store",
    &[
        Field::new("url", Like(&REDIS_URL), "One server; rediss:// for TLS."),
        Field::new(
            "cluster",
            OneOrList(&Like(&REDIS_URL), 1),
            "Some nodes of a Cluster; the others are found.",
        ),
        Field::new("sentinel", Map(&SENTINEL), "Whatever these Sentinels say is the primary."),
        Field::new("prefix", Like(&PREFIX), "How all keys begin.").or("sluice"),
        Field::new("timeout", TIME_OUT, "How long a decision may take.").or("50ms"),
        Field::new("breaker", Map(&BREAKER), "When the store is not asked any more."),
        Field::new("tls", Map(&REDIS_TLS), "Certificates for rediss://, beside the system's."),
    ],
)
.rules(&[Rule::One(&["url", "cluster", "sentinel"])]);

pub(in crate::config) static BREAKER: Section = Section::new(
    "a breaker",
    &[
        Field::new("failures", AT_LEAST_ONE, "So many failures in a row open it.").or("5"),
        Field::new("probe_after", TIME_OUT, "Then one decision in this time is tried.").or("1s"),
    ],
);

pub(in crate::config) static SENTINEL: Section = Section::new(
    "sentinel",
    &[
        Field::new("master", Text, "What the Sentinels call the primary.").required(),
        Field::new(
            "nodes",
            OneOrList(&Like(&REDIS_URL), 1),
            "Where they are; user and password in a URL are for the Sentinel.",
        )
        .required(),
        Field::new("username", Text, "For the primary."),
        Field::new("password", Text, "For the primary.").secret(),
        Field::new("database", ANY_NUMBER, "On the primary.").or("0"),
        Field::new("tls", Truth, "Whether the primary speaks TLS.").or("false"),
    ],
);

pub(in crate::config) static REDIS_TLS: Section = Section::new(
    "the store's TLS",
    &[
        Field::new("ca", Text, "A PEM file: whom to believe."),
        Field::new("cert", Text, "A PEM file: a certificate of our own."),
        Field::new("key", Text, "A PEM file: its key."),
    ],
)
.rules(&[Rule::Needs("cert", "key"), Rule::Needs("key", "cert")]);
