//! Limits to begin with, for a configuration that has none: one for each way to tell callers apart.

use crate::config::model::{Attribute, Config, Consistency, Cost, Limit, OnFailure, Quotas, Route};
use crate::limit::{Quota, Rate};
use serde_json::{Value, json};

/// The configuration; if it has no limits, with some to begin with.
pub fn with_starters(mut config: Config) -> (Config, bool) {
    let has_some = |route: &Route| !route.limits.is_empty();
    if !config.limits.is_empty() || config.routes.iter().any(has_some) {
        return (config, false);
    }
    let ways = [
        ("per-ip", Attribute::Ip, true),
        ("per-user", Attribute::User, config.identity.user.is_some()),
        ("per-key", Attribute::ApiKey, config.identity.api_key.is_some()),
    ];
    let mut written = Vec::new();
    for (name, attribute, known) in ways {
        // The window is what matters: the numbers are what is looked for.
        let rate = Rate { count: 1, window: 60 * crate::clock::SECOND };
        if let (true, Ok(quota)) = (known, Quota::token_bucket(rate, None)) {
            written.push(json!({ "name": name, "by": attribute.name(), "rate": "1/minute" }));
            config.limits.push(limit(name, attribute, quota));
        }
    }
    if let Value::Object(file) = &mut config.shown {
        file.insert("limits".to_owned(), written.into());
    }
    (config, true)
}

fn limit(name: &str, attribute: Attribute, quota: Quota) -> Limit {
    Limit {
        name: name.to_owned(),
        by: vec![attribute],
        unless: Vec::new(),
        quotas: Quotas::Fixed(quota),
        algorithm: "token_bucket",
        cost: Cost::Fixed(1),
        shadow: false,
        penalty: None,
        on_failure: OnFailure::default(),
        consistency: Consistency::default(),
        shards: 1,
    }
}
