//! Tables of `upstreams` and `overload`.

use super::{NONE, PERCENT, TIME, TIME_OUT};
use crate::config::failing::{AUTHORITY, CHECKED, FAILED, OFF};
use crate::config::overload::{LONGEST_QUEUE, MOST};
use crate::config::section::Shape::{
    self, Either, Like, Map, Number, OneOrList, Text, Truth, Words,
};
use crate::config::section::{Field, Rule, Section, words};
use crate::config::upstreams::{BALANCES, ENDPOINT_URL, ON_LEAVE, SERVER_NAME};

pub(in crate::config) static UPSTREAM: Section = Section::new(
    "an upstream",
    &[
        Field::new(
            "endpoints",
            OneOrList(&Either(&[Like(&ENDPOINT_URL), Map(&ENDPOINT)]), 1),
            "Where it runs: http://host[:port] or https://host[:port], or { url, weight }.",
        )
        .required(),
        Field::new("balance", Words(|| words(&BALANCES)), "How requests are spread.")
            .or("least_requests"),
        Field::new(
            "health",
            Either(&[SWITCHED_OFF, Map(&HEALTH)]),
            "How endpoints are asked whether they are well; off unless it is given.",
        ),
        Field::new(
            "eject",
            Either(&[SWITCHED_OFF, Map(&EJECT)]),
            "When an endpoint that fails is left alone for a while; 'off' turns it off.",
        ),
        Field::new(
            "retries",
            Either(&[SWITCHED_OFF, Map(&RETRIES)]),
            "When idempotent requests are sent once more, to another endpoint; 'off' turns it off.",
        ),
        Field::new(
            "slow_start",
            TIME,
            "How long an endpoint that is back takes to get its full share.",
        )
        .or("10s"),
        Field::new("resolve", TIME_OUT, "How often names are looked up anew.").or("5s"),
        Field::new("timeouts", Map(&TIMEOUTS), "How long each step may take."),
        Field::new(
            "on_leave",
            Words(|| words(&ON_LEAVE)),
            "A client leaves while a cost or a permit depends on the answer: read it on, or break it off.",
        )
        .or("finish"),
        Field::new(
            "http2",
            Truth,
            "HTTP/2, by prior knowledge for http:// and by ALPN for https://; gRPC needs it.",
        )
        .or("false"),
        Field::new("ca", Text, "A PEM file: who vouches for https:// endpoints.").never_empty(),
        Field::new(
            "server_name",
            Like(&SERVER_NAME),
            "The name that https:// endpoints must prove to have, and are asked for.",
        )
        .never_empty(),
        Field::new(
            "concurrency",
            Either(&[PLACES, Map(&CONCURRENCY)]),
            "How many requests it gets at once.",
        )
        .never_empty(),
        Field::new("adaptive", Map(&ADAPTIVE), "The same as 'adaptive' in 'concurrency'.")
            .never_empty(),
    ],
)
.rules(&[Rule::AtMostOne(&["concurrency", "adaptive"])]);

const SWITCHED_OFF: Shape = Words(|| OFF.to_vec());

const PLACES: Shape = Number(1, MOST as u64);

/// So many times in a row.
const TIMES: Shape = Number(1, 1000);

pub(in crate::config) static ENDPOINT: Section = Section::new(
    "an endpoint",
    &[
        Field::new("url", Like(&ENDPOINT_URL), "http://host[:port] or https://host[:port].")
            .required(),
        Field::new("weight", Number(1, 100), "Its share of requests, relative to the others'.")
            .or("1"),
    ],
);

pub(in crate::config) static TIMEOUTS: Section = Section::new(
    "timeouts",
    &[
        Field::new("connect", TIME_OUT, "To connect, TLS included.").or("2s"),
        Field::new("response", TIME_OUT, "From the request to the head of its response.").or("30s"),
        Field::new("body", TIME_OUT, "How long the body of a response may be silent.").or("5m"),
        Field::new("idle", TIME_OUT, "How long an unused connection is kept.").or("60s"),
        Field::new("tunnel", TIME_OUT, "How long a tunnel may be silent in both directions.")
            .or("5m"),
    ],
);

pub(in crate::config) static HEALTH: Section = Section::new(
    "health",
    &[
        Field::new("path", Like(&CHECKED), "What checks ask for; 200 to 399 is well.").or("/"),
        Field::new("host", Like(&AUTHORITY), "Host of the checks; otherwise the endpoint's own."),
        Field::new("every", TIME_OUT, "How often each endpoint is asked: every 100ms at most.")
            .or("5s"),
        Field::new("timeout", TIME_OUT, "How long a check may take; 2s, or 'every' if it is less."),
        Field::new("unhealthy_after", TIMES, "So many failed checks in a row take it out.").or("3"),
        Field::new("healthy_after", TIMES, "So many passed checks in a row bring it back.").or("2"),
    ],
);

pub(in crate::config) static EJECT: Section = Section::new(
    "eject",
    &[
        Field::new("after", TIMES, "So many failures in a row.").or("5"),
        Field::new("for", TIME_OUT, "For so long.").or("30s"),
        Field::new("keep", PERCENT, "The share of endpoints that stays.").or("50%"),
    ],
);

pub(in crate::config) static RETRIES: Section = Section::new(
    "retries",
    &[
        Field::new(
            "attempts",
            Number(1, 10),
            "How often a request may be sent, the first time included.",
        )
        .or("2"),
        Field::new(
            "on",
            OneOrList(&Either(&[REASONS, Number(500, 599), Like(&FAILED)]), 0),
            "Reasons to try again: connect_failure, timeout, statuses from 500 to 599.",
        )
        .or("[connect_failure]"),
        Field::new("budget", PERCENT, "The share of requests that may be sent again.").or("20%"),
    ],
);

const REASONS: Shape = Words(|| vec!["connect_failure", "timeout"]);

pub(in crate::config) static CONCURRENCY: Section = Section::new(
    "concurrency",
    &[
        Field::new("max", PLACES, "So many requests at once and no more."),
        Field::new(
            "adaptive",
            Map(&ADAPTIVE),
            "As many requests at once as turn out to be good, from how long answers take.",
        ),
        Field::new(
            "queue",
            Number(0, LONGEST_QUEUE as u64),
            "How many may wait for a place; half of the places unless it is given.",
        ),
        Field::new("max_wait", TIME_OUT, "How long they may wait.").or("1s"),
    ],
)
.rules(&[Rule::One(&["max", "adaptive"])]);

pub(in crate::config) static ADAPTIVE: Section = Section::new(
    "adaptive",
    &[
        Field::new("min", PLACES, "Never fewer.").or("10"),
        Field::new("max", PLACES, "Never more.").or("1000"),
    ],
);

pub(in crate::config) static OVERLOAD: Section = Section::new(
    "overload",
    &[
        Field::new(
            "max_in_flight",
            Either(&[PLACES, NONE]),
            "Requests under way in this process, tunnels included.",
        )
        .or("none"),
        Field::new("reserve", Map(&RESERVE), "Places that only some requests may have."),
        Field::new(
            "max_lag",
            Either(&[TIME, NONE]),
            "How late a worker may come to its work before it refuses requests: 10ms at least.",
        )
        .or("500ms"),
        Field::new(
            "max_memory",
            Either(&[PERCENT, NONE]),
            "The share of its cgroup's memory beyond which requests are refused: from 10% on.",
        )
        .or("90%"),
    ],
);

pub(in crate::config) static RESERVE: Section = Section::new(
    "reserve",
    &[Field::new(
        "critical",
        PERCENT,
        "The share of places that only critical requests may have: 90% at most.",
    )
    .or("0%")],
);
