//! Bans and grants by the operator: they hold at once, for their time, over reloads and restarts, and
//! on every gateway of a fleet.

use crate::common::operator::Operator;
use crate::common::redis::Redis;
use crate::common::{Backend, Gateway, eventually, limited};
use crate::fleet::{on, sharing};
use serde_json::json;
use std::time::{Duration, Instant};

const X: &str = "[{ name: x, by: ip, rate: 4/hour }]";

fn yaml(backend: &Backend, limits: &str, overrides: &std::path::Path) -> String {
    let overrides = overrides.display();
    let admin = format!("admin: {{ address: '127.0.0.1:0', overrides: '{overrides}' }}\n");
    admin + &limited(backend, limits)
}

#[test]
fn a_ban_holds_at_once_and_until_it_is_over_or_lifted() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, X)));
    let operator = Operator::of(&gateway);
    assert_eq!(gateway.get("/").status, 200);
    let ban = operator.post(
        "/api/v1/bans",
        &json!({ "caller": "ip:127.0.0.1", "for": "10m", "reason": "scraping" }),
    );
    assert_eq!((&ban["seconds"], &ban["by"]), (&600.into(), &"operator".into()));
    assert_eq!((&ban["reason"], &ban["kept"]), (&"scraping".into(), &"file".into()));
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.number("retry-after")), (429, 600));
    assert_eq!(backend.count(), 1);
    gateway.reload(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, X))).unwrap();
    assert_eq!(gateway.get("/").status, 429, "a reload lifts no ban");
    gateway.advance(Duration::from_secs(600));
    assert_eq!(gateway.get("/").status, 200, "it is over");
    operator.ban("ip:127.0.0.1", "1h");
    assert_eq!(gateway.get("/").status, 429);
    let lift = |who: &str| operator.ask("DELETE", &format!("/api/v1/bans?caller={who}"), None);
    assert_eq!(lift("ip:127.0.0.1").0, 200);
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(lift("ip:127.0.0.1").0, 404);
    let metrics = operator.send("GET", "/metrics", &[], "");
    let line = "sluice_limit_decisions_total{limit=\"operator\",verdict=\"banned\"} 3\n";
    assert!(metrics.text().contains(line), "{}", metrics.text());
}

#[test]
fn bans_and_grants_survive_a_restart() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/overrides.json");
    let first = Gateway::start(&yaml(&backend, X, &file));
    Operator::of(&first).ban("user:ada", "1h");
    Operator::of(&first).grant("ip:127.0.0.1", "x2", "1h");
    first.stop();
    let second = Gateway::start(&yaml(&backend, X, &file));
    let operator = Operator::of(&second);
    assert_eq!(operator.get("/api/v1/bans")["bans"][0]["caller"], "user:ada");
    assert_eq!(second.statuses("/", &[], 9), [[200; 8].as_slice(), &[429]].concat());
    assert_eq!(operator.ask("DELETE", "/api/v1/grants?caller=ip:127.0.0.1", None).0, 200);
    assert_eq!(operator.ask("DELETE", "/api/v1/bans?caller=user:ada", None).0, 200);
    second.stop();
    assert!(!file.exists(), "nothing is left to remember");
    let third = Gateway::start(&yaml(&backend, X, &file));
    assert_eq!(third.statuses("/", &[], 5), [200, 200, 200, 200, 429]);
}

#[test]
fn overrides_are_kept_beside_the_configuration_unless_it_says_where() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, X)));
    assert!(!gateway.folder.path().join("gateway.overrides.json").exists(), "not without need");
    Operator::of(&gateway).ban("ip:9.9.9.9", "1h");
    let text = std::fs::read_to_string(gateway.folder.path().join("gateway.overrides.json"));
    assert!(text.unwrap().contains("ip:9.9.9.9"));
}

#[test]
fn what_cannot_be_written_down_holds_all_the_same_and_is_said() {
    let backend = Backend::start();
    let gateway =
        Gateway::start(&yaml(&backend, X, std::path::Path::new("/dev/null/overrides.json")));
    let operator = Operator::of(&gateway);
    let body = json!({ "caller": "ip:127.0.0.1", "for": "1h" });
    let said = operator.post("/api/v1/bans", &body);
    assert_eq!(said["kept"], "here");
    assert!(said["warning"].as_str().unwrap().contains("will not survive a restart"), "{said}");
    assert_eq!(gateway.get("/").status, 429);
}

#[test]
fn a_damaged_file_of_overrides_is_reported_and_loses_nothing_else() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("overrides.json");
    std::fs::write(&file, "[{\"caller\": 5}]").unwrap();
    let gateway = Gateway::start(&yaml(&backend, X, &file));
    assert_eq!(gateway.get("/").status, 200);
    Operator::of(&gateway).ban("ip:127.0.0.1", "1h");
    assert_eq!(gateway.get("/").status, 429);
    let kept = folder.path().join("overrides.json.unusable");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "[{\"caller\": 5}]", "nothing is lost");
}

#[test]
fn a_reload_that_names_another_file_loses_nothing_that_is_there() {
    let backend = Backend::start();
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("a.json"), folder.path().join("b.json"));
    let before = Gateway::start(&yaml(&backend, X, &second));
    Operator::of(&before).ban("ip:8.8.8.8", "1h");
    before.stop();
    let gateway = Gateway::start(&yaml(&backend, X, &first));
    gateway.reload(&yaml(&backend, X, &second)).unwrap();
    let operator = Operator::of(&gateway);
    assert_eq!(operator.get("/api/v1/bans")["bans"][0]["caller"], "ip:8.8.8.8");
    operator.ban("ip:9.9.9.9", "1h");
    let text = std::fs::read_to_string(&second).unwrap();
    assert!(text.contains("8.8.8.8") && text.contains("9.9.9.9"), "{text}");
}

#[test]
fn a_grant_changes_what_is_allowed_not_what_was_used() {
    let backend = Backend::start();
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, X)));
    let operator = Operator::of(&gateway);
    assert_eq!(gateway.statuses("/", &[], 5), [200, 200, 200, 200, 429]);
    let grant = operator.grant("ip:127.0.0.1", "x2", "10m");
    assert_eq!((&grant["factor"], &grant["limit"]), (&2.0.into(), &json!(null)));
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.number("x-ratelimit-limit")), (200, 8));
    assert_eq!(reply.number("x-ratelimit-remaining"), 3);
    assert_eq!(reply.header("ratelimit-policy"), Some("\"x\";q=8;w=3600"));
    assert!(reply.header("ratelimit").unwrap().starts_with("\"x\";r=3;"), "{reply:?}");
    let told = operator.limit("127.0.0.1", "x");
    assert_eq!((&told["granted"], &told["remaining"]), (&2.0.into(), &3.into()));
    assert_eq!(gateway.statuses("/", &[], 4), [200, 200, 200, 429]);
    let rejected = gateway.get("/");
    assert_eq!(rejected.number("x-ratelimit-limit"), 8);
    gateway.advance(Duration::from_secs(600));
    // Over: of the 8 that were used, 4 fit, and one has come back in a sixth of an hour.
    let reply = gateway.get("/");
    assert_eq!((reply.status, reply.number("x-ratelimit-limit")), (429, 4));
    let stricter = operator.grant("ip:127.0.0.1", "x0.25", "1h");
    assert_eq!(stricter["factor"], 0.25);
    assert_eq!(operator.limit("127.0.0.1", "x")["capacity"], 1);
}

#[test]
fn whoever_is_granted_less_is_not_forgotten_too_soon() {
    let backend = Backend::start();
    let limit = "[{ name: x, by: ip, rate: 100/minute }]";
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, limit)));
    Operator::of(&gateway).grant("ip:127.0.0.1", "x0.1", "1h");
    assert_eq!(gateway.statuses("/", &[], 11), [[200; 10].as_slice(), &[429]].concat());
    // By the limit's own rate they would be whole; by theirs one of ten has come back.
    gateway.advance(Duration::from_secs(6));
    (0..20).for_each(|_| gateway.server().gateway().tick());
    assert_eq!(gateway.statuses("/", &[], 2), [200, 429]);
}

#[test]
fn a_grant_that_cannot_be_counted_is_refused() {
    let backend = Backend::start();
    let limit = "[{ name: x, by: ip, rate: 100/minute, algorithm: sliding_log }]";
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, limit)));
    let operator = Operator::of(&gateway);
    let body = json!({ "caller": "ip:127.0.0.1", "rate": "x200", "for": "1h" });
    let (status, said) = operator.ask("POST", "/api/v1/grants", Some(&body));
    assert_eq!(status, 400);
    assert!(said["error"].as_str().unwrap().contains("'x' cannot count x200"), "{said}");
}

#[test]
fn a_grant_may_be_for_one_limit() {
    let backend = Backend::start();
    let limits = "[{ name: a, by: ip, rate: 2/hour }, { name: b, by: ip, rate: 3/hour }]";
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, limits)));
    let operator = Operator::of(&gateway);
    let body = json!({ "caller": "ip:127.0.0.1", "rate": "x4", "for": "1h", "limit": "a" });
    operator.post("/api/v1/grants", &body);
    assert_eq!(gateway.statuses("/", &[], 4), [200, 200, 200, 429], "b stays as it is");
    let unknown = json!({ "caller": "ip:127.0.0.1", "rate": "x4", "for": "1h", "limit": "c" });
    assert_eq!(operator.ask("POST", "/api/v1/grants", Some(&unknown)).0, 404);
}

#[test]
fn costs_that_are_settled_are_settled_under_a_grant_too() {
    let backend = Backend::answering(|_| {
        b"HTTP/1.1 200 OK\r\nx-cost: 1\r\ncontent-length: 0\r\n\r\n".to_vec()
    });
    let limit =
        "[{ name: x, by: ip, rate: 10/hour, cost: { response_header: X-Cost, reserve: 5 } }]";
    let gateway = Gateway::start(&format!("admin: 127.0.0.1:0\n{}", limited(&backend, limit)));
    let operator = Operator::of(&gateway);
    operator.grant("ip:127.0.0.1", "x2", "1h");
    assert_eq!(gateway.statuses("/", &[], 8), [200; 8]);
    assert_eq!(operator.limit("127.0.0.1", "x")["used"], 8, "one each, not five");
}

/// Within a second, as it is promised; twice that for a machine that does other things.
fn soon<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    let found = eventually(what, attempt);
    assert!(began.elapsed() < Duration::from_secs(2), "{what} took {:?}", began.elapsed());
    found
}

#[test]
fn what_is_said_on_one_gateway_holds_on_all_within_a_second() {
    let (backend, redis) = (Backend::start(), Redis::start());
    let limits =
        "[{ name: x, by: ip, rate: 4/hour, penalty: { after: 300 rejects in 1m, for: 1h } }]";
    let yaml = sharing(&backend, &on(&redis), limits);
    let (one, other) = (Gateway::start_in_real_time(&yaml), Gateway::start_in_real_time(&yaml));
    let (here, there) = (Operator::of(&one), Operator::of(&other));
    let status =
        |gateway: &Gateway| gateway.get_with("/", &[("x-forwarded-for", "9.9.9.9")]).status;
    soon("the store", || (status(&one) == 200 && status(&other) == 200).then_some(()));
    assert_eq!(here.ban("ip:9.9.9.9", "1h")["kept"], "store");
    assert_eq!(status(&one), 429, "here at once");
    let banned = |operator: &Operator| operator.get("/api/v1/bans")["bans"] != json!([]);
    soon("the ban", || banned(&there).then_some(()));
    assert_eq!(status(&other), 429);
    assert_eq!(there.ask("DELETE", "/api/v1/bans?caller=ip:9.9.9.9", None).0, 200);
    assert_eq!(status(&other), 200);
    soon("its end", || (!banned(&here)).then_some(()));
    // A gateway's own bans are lifted from anywhere.
    eventually("a ban for ignoring rejects", || {
        status(&one);
        (here.get("/api/v1/bans")["bans"][0]["by"] == "penalty").then_some(())
    });
    assert_eq!(there.ask("DELETE", "/api/v1/bans?caller=ip:9.9.9.9", None).0, 200);
    soon("the pardon", || (!banned(&here)).then_some(()));
    // What was used is forgotten by all, whatever they remember of rejects.
    assert_eq!((status(&one), status(&other)), (429, 429));
    let reset = json!({ "caller": "ip:9.9.9.9" });
    assert_eq!(there.post("/api/v1/callers/reset", &reset), json!({ "reset": ["x"] }));
    assert_eq!(status(&other), 200);
    soon("the reset", || (status(&one) == 200).then_some(()));
    // Grants.
    here.grant("ip:9.9.9.9", "x50", "1h");
    soon("the grant", || (there.limit("9.9.9.9", "x")["capacity"] == 200).then_some(()));
    assert_eq!(status(&other), 200);
    let ttl: i64 = redis.run(&["PTTL", "sluice:1:#acts"]);
    assert!((3_500_000..=3_600_000).contains(&ttl), "it expires with its longest act: {ttl}");
}

#[test]
fn a_fleets_overrides_survive_restarts_and_a_store_that_forgets() {
    let (backend, mut redis) = (Backend::start(), Redis::start());
    let yaml = sharing(&backend, &on(&redis), X);
    let one = Gateway::start_in_real_time(&yaml);
    let operator = Operator::of(&one);
    soon("the store", || (operator.ban("ip:9.9.9.9", "1h")["kept"] == "store").then_some(()));
    let other = Gateway::start_in_real_time(&yaml);
    let there = Operator::of(&other);
    let banned = |operator: &Operator, count: usize| {
        let page = operator.get("/api/v1/bans");
        (page["bans"].as_array().unwrap().len() == count).then_some(())
    };
    soon("a newcomer hears of it", || banned(&there, 1));
    let _: String = redis.run(&["FLUSHALL"]);
    eventually("it is told again", || {
        let count: u64 = redis.run(&["HLEN", "sluice:1:#acts"]);
        (count >= 2).then_some(())
    });
    assert!(banned(&operator, 1).is_some() && banned(&there, 1).is_some());
    // While it is away an act holds here, and reaches the others when it is back.
    redis.kill();
    eventually("it is away", || {
        one.get("/");
        (operator.get("/api/v1/status")["store"]["up"] == false).then_some(())
    });
    assert_eq!(operator.ban("ip:8.8.8.8", "1h")["kept"], "here");
    assert!(banned(&operator, 2).is_some());
    redis.restart();
    eventually("the others hear of it", || banned(&there, 2));
    assert_eq!(operator.ask("GET", "/api/v1/callers?caller=9.9.9.9", None).0, 200);
}
