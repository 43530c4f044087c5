//! Limits, at the top level and on routes.

pub(super) mod attributes;
pub(super) mod costs;
pub(super) mod quotas;

use super::callers::Callers;
use super::diagnostics::Severity;
use super::grammar;
use super::model::{
    Attribute, Consistency, Limit, OnFailure, Penalty, Quotas, SharedStore, by_name,
};
use super::read::{Context, Fields, Read, one_of, parsed};
use super::section::{Bare, Grammar};
use super::sections::limits::{CANDIDATE, LIMIT, PENALTY};
use super::store;
use super::tree::{Kind, Node};
use crate::clock::{Micros, SECOND, micros};
use crate::limit::{Calendar, Period, Quota, Rate};
use std::collections::HashMap;
use std::sync::Arc;

/// What limits share while they are read.
#[derive(Default)]
pub(super) struct Names {
    /// Names that are taken, and on which line.
    taken: HashMap<String, usize>,
    /// Calendars by unit and zone: each is worked out once.
    calendars: HashMap<(Period, String), Option<Arc<Calendar>>>,
    /// What limits do while the store is away that do not say so.
    on_failure: OnFailure,
    /// Limits whose window is a day or more, and where the first of them stands.
    long: Vec<String>,
    first_long: Option<Node>,
}

/// A window of a day or more is a quota: to forget what was used of it is to give it anew.
const QUOTA: Micros = 86_400 * SECOND;

pub(super) fn read_all(
    node: Option<&Node>,
    route: &str,
    callers: &Callers,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Vec<Limit> {
    let nodes = match node.map(|node| (node, &node.kind)) {
        None => return Vec::new(),
        Some((_, Kind::List(nodes))) => nodes.as_slice(),
        Some((node, _)) => {
            cx.error(node, format!("expected a list of limits, found {}", node.describe()));
            return Vec::new();
        }
    };
    nodes.iter().flat_map(|node| limit(node, route, callers, names, cx)).collect()
}

fn limit(
    node: &Node,
    route: &str,
    callers: &Callers,
    names: &mut Names,
    cx: &mut Context<'_>,
) -> Vec<Limit> {
    let Some(fields) = Fields::of(node, &LIMIT, cx) else { return Vec::new() };
    let name_node = fields.get("name");
    let by = fields.get("by").and_then(|by| attributes::by(by, callers, cx));
    let unless = fields.get("unless").and_then(|node| attributes::unless(node, callers, cx));
    let cost = costs::read(&fields, cx);
    let shadow = fields.get("mode").and_then(|node| one_of(node, cx, "a mode", &MODES));
    let quotas = quotas::read(&fields, by.as_deref(), callers, names, cx);
    let candidate = fields.get("candidate").and_then(|node| {
        let mut own = Fields::of(node, &CANDIDATE, cx)?;
        let quotas = quotas::read_over(&mut own, &fields, by.as_deref(), callers, names, cx);
        let algorithm = quotas::algorithm_name(&own);
        Some((quotas?, algorithm, node))
    });
    let penalty = fields.get("penalty").and_then(|node| penalty(node, by.as_deref(), cx));
    let algorithm = quotas::algorithm_name(&fields);
    let sharing = sharing(&fields, quotas.as_ref(), by.as_deref(), names, cx);
    let default = by.as_ref().map(|by| format!("{route}/{}", by_name(by)));
    let name = names.take(name_node, default, node, cx);
    let (Some(cost), Some(quotas), Some(name), Some(by)) = (cost, quotas, name, by) else {
        return Vec::new();
    };
    quotas::affordable(&quotas, &cost.cost, &cost.node, callers, cx);
    names.note_long(&name, &quotas, node);
    let limit = Limit {
        name,
        by,
        unless: unless.unwrap_or_default(),
        quotas,
        algorithm,
        cost: cost.cost.clone(),
        shadow: shadow.unwrap_or(false),
        penalty,
        on_failure: sharing.on_failure,
        consistency: sharing.consistency,
        shards: sharing.shards,
    };
    let least = cost.cost.up_front();
    if let (Quotas::Fixed(quota), true) = (&limit.quotas, limit.shards > 1)
        && quota.part(u32::from(limit.shards) - 1, limit.shards.into()).capacity() < least
    {
        cx.error(node, format!("a request costs {least}, which no shard could ever hold"));
    }
    // A candidate is a shadow of the limit with other numbers and counters of its own.
    let candidate = candidate.and_then(|(quotas, algorithm, node)| {
        quotas::affordable(&quotas, &cost.cost, node, callers, cx);
        let name = names.take(None, Some(format!("{}/candidate", limit.name)), node, cx)?;
        let mut candidate =
            Limit { name, quotas, algorithm, shadow: true, penalty: None, ..limit.clone() };
        if !can_be_leased(&candidate.quotas) {
            candidate.consistency = Consistency::Exact;
        }
        candidate.shards = 1;
        Some(candidate)
    });
    std::iter::once(limit).chain(candidate).collect()
}

/// Whether a limit is a shadow.
pub(super) const MODES: [(&str, bool); 2] = [("enforce", false), ("shadow", true)];

pub(super) const CONSISTENCIES: [(&str, Consistency); 2] =
    [("exact", Consistency::Exact), ("leased", Consistency::Leased)];

/// How a limit's counters are shared, if they are.
struct Sharing {
    on_failure: OnFailure,
    consistency: Consistency,
    shards: u16,
}

fn sharing(
    fields: &Fields<'_>,
    quotas: Option<&Quotas>,
    by: Option<&[Attribute]>,
    names: &Names,
    cx: &mut Context<'_>,
) -> Sharing {
    let on_failure = fields.get("on_failure").and_then(|node| store::on_failure(node, cx));
    let algorithm = fields.get("algorithm").map(|node| &node.kind);
    let gcra = matches!(algorithm, Some(Kind::Scalar(scalar)) if scalar.text == "gcra");
    let consistency = fields.get("consistency").and_then(|node| {
        let way = one_of(node, cx, "a consistency", &CONSISTENCIES)?;
        if way == Consistency::Leased && (gcra || !quotas.is_none_or(can_be_leased)) {
            let message = "only a token_bucket, a fixed_window or a sliding_window can be leased";
            cx.error(node, message);
        }
        Some(way)
    });
    let shards = fields.get("shards").and_then(|node| {
        let count = u32::read(node, cx)?;
        let most = match quotas {
            Some(Quotas::Fixed(quota)) => quota.parts_at_most(),
            _ => 1024,
        };
        if by.is_some_and(|by| !by.is_empty()) {
            cx.error(node, "only a limit by global is one counter that could be split");
        } else if count == 0 || count > 1024 {
            cx.error(node, "between 1 and 1024 shards");
        } else if count > most {
            cx.error(node, format!("{count} shards of {most} tokens: some would be empty"));
        }
        u16::try_from(count).ok()
    });
    Sharing {
        on_failure: on_failure.unwrap_or(names.on_failure),
        consistency: consistency.unwrap_or_default(),
        shards: shards.unwrap_or(1).max(1),
    }
}

fn can_be_leased(quotas: &Quotas) -> bool {
    match quotas {
        Quotas::Fixed(quota) => quota.can_be_leased(),
        Quotas::ByPlan(quotas) => quotas.iter().all(Quota::can_be_leased),
    }
}

/// `{ after: 100 rejects in 1m, for: 10m }`.
fn penalty(node: &Node, by: Option<&[Attribute]>, cx: &mut Context<'_>) -> Option<Penalty> {
    let fields = Fields::of(node, &PENALTY, cx)?;
    let tolerated = fields.get("after");
    let tolerated =
        tolerated.and_then(|node| parsed(node, cx, "a number of rejects", self::tolerated));
    let lasts = fields.read("for", cx);
    let one = matches!(by, None | Some([Attribute::Ip | Attribute::User | Attribute::ApiKey]));
    if !one {
        cx.error(node, "a penalty bans one caller: the limit must be by ip, user or api_key alone");
    }
    Some(Penalty { tolerated: tolerated?, lasts: lasts? })
}

pub(super) static REJECTS: Grammar = Grammar::new(
    r"\s*[+0-9_]*[1-9][0-9_]* rejects in \s*[0-9_]*[1-9][0-9_]*\s*(ms|s|m|min|h|d)\s*",
    "it looks like 100 rejects in 1m",
);

/// `100 rejects in 1m`, as what is tolerated.
fn tolerated(text: &str) -> Result<Quota, String> {
    let help = REJECTS.help;
    let (count, within) = text.split_once(" rejects in ").ok_or(help)?;
    let count: u32 = count.trim().replace('_', "").parse().map_err(|_| help)?;
    let window = micros(grammar::duration(within.trim())?);
    // The ban comes with the last of them.
    let tolerated = count.checked_sub(1).filter(|count| *count > 0);
    let count = tolerated.ok_or("at least 2 rejects")?;
    Quota::sliding_window(Rate { count, window }).map_err(|error| error.to_string())
}

impl Names {
    pub(super) fn of(store: Option<&SharedStore>) -> Self {
        let on_failure = store.map(|store| store.on_failure).unwrap_or_default();
        Self { on_failure, ..Self::default() }
    }

    fn note_long(&mut self, name: &str, quotas: &Quotas, node: &Node) {
        let is_long = |quota: &Quota| !quota.is_concurrency() && quota.rate().window >= QUOTA;
        if quotas.all().iter().any(is_long) {
            self.long.push(name.to_owned());
            self.first_long.get_or_insert_with(|| node.clone());
        }
    }

    /// Says which limits a restart would give anew, where nothing keeps what was used of them.
    pub(super) fn warn_of_forgotten_quotas(&self, cx: &mut Context<'_>) {
        let (Some(node), [first, rest @ ..]) = (&self.first_long, &*self.long) else { return };
        let others = match rest.len() {
            0 => String::new(),
            1 => format!(" ('{}' as well)", rest[0]),
            more => format!(" ('{}' and {} others as well)", rest[0], more - 1),
        };
        let message = format!(
            "the window of limit '{first}' is a day or more{others}, and its counters are in memory \
             alone: a restart gives it anew"
        );
        let help = "store.memory.snapshot keeps them: store: { memory: { snapshot: FILE } }";
        cx.report(Severity::Warning, node.span, &node.path, message, Some(help.to_owned()));
    }

    /// The limit's own name, or its default; no two limits share one.
    fn take(
        &mut self,
        given: Option<&Node>,
        default: Option<String>,
        limit: &Node,
        cx: &mut Context<'_>,
    ) -> Option<String> {
        let name = match given {
            Some(node) => parsed(node, cx, "a name", valid_name)?,
            None => default?,
        };
        let line = given.unwrap_or(limit).span.line;
        if let Some(first) = self.taken.insert(name.clone(), line) {
            cx.error_with_help(
                given.unwrap_or(limit),
                format!("a limit on line {first} is called '{name}' too"),
                "give it a 'name' of its own".to_owned(),
            );
        }
        Some(name)
    }
}

pub(super) static NAME: Grammar = Grammar::new(
    r"[ !#-\[\]-~]{1,128}",
    "up to 128 visible ASCII characters, without '\"' and '\\'",
)
.bare(Bare::Any);

/// Names go into headers, logs and metrics as they are.
pub(crate) fn valid_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\' || c == ' ';
    if !text.is_empty() && text.len() <= 128 && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err(NAME.help.to_owned())
    }
}
