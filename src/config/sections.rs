//! What `gateway.yaml` may hold: one table for each map of it, in the order in which messages
//! list their fields. `section` says what tables are made of and who goes by them.

pub(super) mod callers;
pub(super) mod edge;
pub(super) mod limits;
pub(super) mod routes;
pub(super) mod store;
pub(super) mod upstreams;

use super::edge::{ADDRESS, LOOPBACK};
use super::grammar::{DURATION, SHARE, SIZE, SOME_TIME};
use super::limits::NAME;
use super::model::Priority;
use super::section::Shape::{
    self, ByName, Either, Like, List, Map, Number, OneOrList, Text, Words,
};
use super::section::{Field, Rule, Section};
use super::upstreams::ENDPOINT_URL;

/// The whole file.
pub(super) static GATEWAY: Section = Section::new(
    "gateway.yaml",
    &[
        Field::new(
            "listen",
            OneOrList(&Either(&[Like(&ADDRESS), Map(&edge::LISTENER)]), 1),
            "Where callers connect: one address, or a list.",
        )
        .required(),
        Field::new(
            "admin",
            Either(&[Like(&LOOPBACK), Map(&edge::ADMIN)]),
            "The operator's listener for health, metrics and the admin API; off unless it is given.",
        ),
        Field::new(
            "store",
            Either(&[Words(|| vec!["memory"]), Map(&store::STORE)]),
            "Where counters live: in memory, or in a Redis that gateways share.",
        )
        .or("memory"),
        Field::new("plans", ByName(&Map(&callers::PLAN)), "Named sets of rates, by plan."),
        Field::new("default_plan", Text, "The plan of callers who have none."),
        Field::new("identity", Map(&callers::IDENTITY), "Who callers are."),
        Field::new("exempt", Map(&callers::EXEMPT), "Callers that no limit applies to."),
        Field::new("limits", LIMITS, "Limits that guard every request."),
        Field::new(
            "upstreams",
            ByName(&Either(&[Like(&ENDPOINT_URL), Map(&upstreams::UPSTREAM)])),
            "Backends by name.",
        )
        .required(),
        Field::new("server", Map(&edge::SERVER), "The guards of the edge."),
        Field::new(
            "routes",
            List(&Map(&routes::ROUTE), 0),
            "Which requests go where; the most specific wins, in whatever order they are written.",
        )
        .required(),
        Field::new("headers", Map(&edge::HEADERS), "What callers are told of their limits."),
        Field::new("logging", Map(&edge::LOGGING), "What is logged."),
        Field::new(
            "overload",
            Map(&upstreams::OVERLOAD),
            "When requests are refused because there is too much to do.",
        ),
        Field::new("telemetry", Map(&edge::TELEMETRY), "Where traces go; off unless it is given."),
    ],
)
.rules(&[Rule::Several("plans", "default_plan")]);

const LIMITS: Shape = List(&Map(&limits::LIMIT), 0);

/// A duration.
const TIME: Shape = Like(&DURATION);

/// A time-out: a duration that is not zero.
const TIME_OUT: Shape = Like(&SOME_TIME);

const PERCENT: Shape = Like(&SHARE);

const NONE: Shape = Words(|| vec!["none"]);

const SIZE_OR_NONE: Shape = Either(&[Like(&SIZE), NONE]);

const PRIORITY: Shape = Words(|| Priority::ALL.map(Priority::name).to_vec());

const ITS_NAME: Shape = Like(&NAME);

/// A whole number of any size.
const ANY_NUMBER: Shape = Number(0, u32::MAX as u64);

/// A whole number that is not zero.
const AT_LEAST_ONE: Shape = Number(1, u32::MAX as u64);

#[cfg(test)]
mod tests;
