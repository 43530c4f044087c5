//! `sluice suggest` proposes the smallest limits that spare as many callers as is asked.

use super::kit::{Asked, Lab, START, log, stderr, stdout, traffic};
use serde_json::{Value, json};

const FILE: &str = "
identity: { trusted_proxies: [127.0.0.1], user: { header: X-User } }
limits:
  - { name: bucket, by: ip, rate: 1/10s }
routes:
  - name: a
    path: /a/*
    upstream: app
    limits:
      - { name: windows, by: ip, rate: 1/10s, algorithm: fixed_window }
      - { name: sliding, by: ip, rate: 1/10s, algorithm: sliding_window }
      - { name: log, by: ip, rate: 1/10s, algorithm: sliding_log }
      - { name: even, by: [ip, user], rate: 1/10s, algorithm: gcra }
      - { name: busy, by: ip, concurrency: 1 }
      - { name: dear, by: ip, rate: 5/10s, cost: 5 }
  - { name: rest, path: /, upstream: app }
";

/// Sixty callers, each busier than the one before.
fn callers(seed: u64) -> Vec<Asked> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all = Vec::new();
    for caller in 0..60u64 {
        for _ in 0..30 + caller * 4 {
            // Most come now and then, some all at once.
            let time = match random.u8(0..4) {
                0 => START + 60_000 + random.u64(0..2000),
                _ => START + random.u64(0..400_000),
            };
            let ip = format!("10.0.0.{caller}");
            let user = Some(format!("u{}", random.u8(0..2)));
            let milliseconds = random.u64(0..3000);
            all.push(Asked { user, milliseconds, ..Asked::new(time, &ip, "/a/b") });
        }
    }
    all.sort_by_key(|asked| asked.time);
    all
}

/// A file with one limit alone, and how many callers it rejects.
fn rejects(lab: &Lab, limit: &str) -> u64 {
    lab.config(
        "one.yaml",
        &format!(
            "identity: {{ trusted_proxies: [127.0.0.1], user: {{ header: X-User }} }}\n\
             routes: [{{ path: /, upstream: app, limits: [{limit}] }}]\n"
        ),
    );
    lab.json(&["simulate", "-c", "one.yaml", "access.log"])["limits"][0]["rejected_callers"]
        .as_u64()
        .unwrap()
}

#[test]
fn one_less_would_reject_more_callers_than_is_asked() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    for (seed, percentile) in [(1, "90"), (3, "100")] {
        lab.write("access.log", log(&callers(seed), Asked::own));
        let arguments = ["suggest", "access.log", "--percentile", percentile, "--margin", "0%"];
        let suggested = lab.json(&arguments);
        assert_eq!(suggested["limits"].as_array().unwrap().len(), 7);
        for limit in suggested["limits"].as_array().unwrap() {
            let (name, size) = (limit["limit"].as_str().unwrap(), &limit["proposed"]);
            let callers = limit["callers"].as_u64().unwrap();
            let spared: u64 = percentile.parse().unwrap();
            let may_be = callers * (100 - spared) / 100;
            let count = size["count"].as_u64().unwrap();
            let burst = size["burst"].as_u64();
            // The same limit with these numbers, and with one less.
            let with = |count: u64, burst: Option<u64>| match name {
                "bucket" => format!("{{ by: ip, rate: {count}/10s, burst: {} }}", burst.unwrap()),
                "windows" => format!("{{ by: ip, rate: {count}/10s, algorithm: fixed_window }}"),
                "sliding" => format!("{{ by: ip, rate: {count}/10s, algorithm: sliding_window }}"),
                "log" => format!("{{ by: ip, rate: {count}/10s, algorithm: sliding_log }}"),
                "even" => format!(
                    "{{ by: [ip, user], rate: {count}/10s, algorithm: gcra, burst: {} }}",
                    burst.unwrap()
                ),
                "busy" => format!("{{ by: ip, concurrency: {count} }}"),
                _ => format!("{{ by: ip, rate: {count}/10s, burst: {}, cost: 5 }}", burst.unwrap()),
            };
            let exactly = rejects(&lab, &with(count, burst));
            assert!(exactly <= may_be, "{name}: {exactly} of {callers} at {size}");
            let less = match burst {
                Some(burst) => rejects(&lab, &with(count, Some(burst - 1))),
                None => rejects(&lab, &with(count - 1, None)),
            };
            assert!(less > may_be, "{name}: {less} of {callers} at one less than {size}");
        }
    }
}

#[test]
fn what_is_printed_can_be_pasted() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    lab.write("access.log", log(&callers(1), Asked::own));
    let output = lab.sluice(&["suggest", "access.log", "--percentile", "95"]);
    let text = stdout(&output);
    // Limits for all routes, and a route with its limits: everything else stays in the file.
    let head = FILE.split("limits:").next().unwrap();
    let pasted = text.replace("path: /a/*", "path: /a/*\n    upstream: app");
    lab.config(
        "pasted.yaml",
        &format!("{head}{pasted}  - {{ name: rest, path: /, upstream: app }}\n"),
    );
    let report =
        lab.json(&["simulate", "-c", "pasted.yaml", "--baseline", "gateway.yaml", "access.log"]);
    let suggested = lab.json(&["suggest", "access.log", "--percentile", "95"]);
    assert_eq!(report["requests"]["rejected"], suggested["together"]["requests"], "{text}");
    assert_eq!(report["callers"]["rejected"], suggested["together"]["callers"]);
    let limits = report["limits"].as_array().unwrap();
    for suggested in suggested["limits"].as_array().unwrap() {
        let limit = limits.iter().find(|limit| limit["limit"] == suggested["limit"]).unwrap();
        assert_eq!(limit["rejected_callers"], suggested["rejects"]["callers"], "{suggested}");
        let size = &suggested["proposed"];
        assert!(limit["rate"].as_str().unwrap().starts_with(size["rate"].as_str().unwrap()));
    }
    let used = "# bucket: ";
    assert!(text.contains(used) && text.contains("10s, was 1/10s"), "{text}");
    assert!(text.contains("would have rejected"), "{text}");
    // The same from standard input, though it is read three times.
    let piped =
        lab.sluice_with(&["suggest", "--percentile", "95"], lab.read("access.log").as_bytes());
    assert_eq!(stdout(&piped), text, "{}", stderr(&piped));
}

#[test]
fn margins_are_added_to_what_was_enough() {
    let lab = Lab::new();
    lab.config("gateway.yaml", "limits: [{ name: a, by: ip, rate: 1/min, algorithm: fixed_window }]\nroutes: [{ path: /, upstream: app }]\n");
    let one = |n: u64| Asked::new(START + n * 100, "10.0.0.1", "/");
    lab.write("access.log", log(&(0..37).map(one).collect::<Vec<_>>(), Asked::own));
    lab.write("later.log", log(&[Asked::new(START + 3_600_000, "10.0.0.1", "/")], Asked::own));
    for (margin, count) in [("0%", 37), ("20%", 45), ("50%", 56), ("200%", 111)] {
        let suggested = lab.json(&["suggest", "access.log", "later.log", "--margin", margin]);
        assert_eq!(suggested["limits"][0]["proposed"]["count"], count, "{margin}");
        assert!(suggested["yaml"].as_str().unwrap().contains(&format!("rate: {count}/min\n")));
    }
    for (option, value) in
        [("--margin", "20"), ("--margin", "-1%"), ("--percentile", "0"), ("--percentile", "101")]
    {
        assert!(
            !lab.sluice(&["suggest", "access.log", option, value]).status.success(),
            "{option} {value}"
        );
    }
}

#[test]
fn plans_get_their_rates_where_they_are_written() {
    let lab = Lab::new();
    lab.config(
        "gateway.yaml",
        "
identity:
  api_key:
    keys:
      - { id: small, sha256: '0000000000000000000000000000000000000000000000000000000000000001' }
      - { id: large, plan: pro, sha256: '0000000000000000000000000000000000000000000000000000000000000002' }
plans: { free: { rate: 1/minute, burst: 1, quota: 10/hour }, pro: { rate: 2/minute, quota: 20/hour }, none: { rate: 7/minute, quota: 70/hour } }
default_plan: free
routes:
  - path: /
    upstream: app
    limits:
      - { name: rates, by: api_key, rate: plan }
      - { name: quotas, by: api_key, rate: plan.quota, algorithm: fixed_window }
",
    );
    let mut lines = String::new();
    for n in 0..400u64 {
        let key = if n % 4 == 0 { "small" } else { "large" };
        let line = Asked::new(START + n * 30_000, "10.0.0.1", "/").own();
        lines.push_str(&line.replace("\"host\"", &format!("\"api_key\":\"{key}\",\"host\"")));
    }
    lab.write("access.log", lines);
    let suggested = lab.json(&["suggest", "access.log", "--margin", "0%"]);
    let sizes: Vec<Value> = suggested["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| json!([l["limit"], l["plan"], l["proposed"]["count"], l["proposed"]["burst"]]))
        .collect();
    assert_eq!(
        json!(sizes),
        json!([
            ["rates", "free", 1, 1],
            ["rates", "pro", 2, 1],
            ["rates", "none", null, null],
            ["quotas", "free", 30, null],
            ["quotas", "pro", 90, null],
            ["quotas", "none", null, null],
        ])
    );
    let yaml = suggested["yaml"].as_str().unwrap();
    let head = "plans:
  free:
    rate: 1/minute
    burst: 1
    quota: 30/hour
  pro:
    rate: 2/minute
    burst: 1
    quota: 90/hour
  none:
    rate: 7/minute
    quota: 70/hour
routes: # their limits alone; all else stays as it is
";
    assert!(yaml.starts_with(head), "{yaml}");
    assert!(yaml.contains(
        "# rates in plan none: stays as it is\n      #   thin: no request in these logs meets it"
    ));
}

#[test]
fn a_file_without_limits_gets_some_to_begin_with() {
    let lab = Lab::new();
    lab.config(
        "gateway.yaml",
        "identity: { trusted_proxies: [127.0.0.1], user: { header: X-User } }\nroutes: [{ path: /, upstream: app }]\n",
    );
    lab.write("access.log", log(&traffic(5, 3000, 300), Asked::own));
    let suggested = lab.json(&["suggest", "access.log"]);
    assert_eq!(suggested["starters"], true);
    let names: Vec<&Value> =
        suggested["limits"].as_array().unwrap().iter().map(|limit| &limit["limit"]).collect();
    assert_eq!(names, [&json!("per-ip"), &json!("per-user")]);
    assert_eq!(suggested["limits"][0]["now"], Value::Null);
    let yaml = suggested["yaml"].as_str().unwrap();
    lab.write("limited.yaml", format!("{}{yaml}", lab.read("gateway.yaml")));
    let report = lab.json(&["simulate", "-c", "limited.yaml", "access.log"]);
    assert_eq!(report["requests"]["rejected"], suggested["together"]["requests"]);
    let text = stdout(&lab.sluice(&["suggest", "access.log"]));
    assert!(text.contains("gateway.yaml has no limits: these are some to begin with."), "{text}");
}

#[test]
fn thin_data_are_said_to_be_thin() {
    let lab = Lab::new();
    lab.config(
        "gateway.yaml",
        "
identity: { trusted_proxies: [127.0.0.1], user: { header: X-User } }
routes:
  - name: r
    path: /
    upstream: app
    limits:
      - { name: minutes, by: ip, rate: 10/minute }
      - { name: days, by: ip, rate: 100/day, algorithm: fixed_window }
      - { name: users, by: user, rate: 10/minute }
      - { name: busy, by: ip, concurrency: 10 }
  - { name: other, path: /other, upstream: app, limits: [{ name: unused, by: ip, rate: 10/s }] }
",
    );
    let asked: Vec<Asked> =
        (0..50).map(|n| Asked::new(START + n * 6000, &format!("10.0.0.{}", n % 5), "/")).collect();
    lab.write("combined.log", log(&asked, Asked::combined));
    let thin = |suggested: &Value, name: &str| -> (bool, String) {
        let limits = suggested["limits"].as_array().unwrap();
        let limit = limits.iter().find(|limit| limit["limit"] == name).unwrap();
        let why: Vec<String> = serde_json::from_value(limit["thin"].clone()).unwrap();
        (limit["proposed"].is_object(), why.join("; "))
    };
    let suggested = lab.json(&["suggest", "combined.log"]);
    for (name, proposed, why) in [
        (
            "minutes",
            true,
            "the logs cover 4 min 54 s, few of its windows of 1 min; it has met 5 callers: too few to \
             leave any out, so the busiest of them decides; it has met 50 requests",
        ),
        ("days", false, "the logs cover 4 min 54 s, less than its window of 1 d"),
        ("users", false, "no request in these logs meets it"),
        ("busy", false, "the logs do not tell how long requests took"),
        ("unused", false, "no request in these logs meets it"),
    ] {
        assert_eq!(thin(&suggested, name), (proposed, why.to_owned()), "{name}");
    }
    let yaml = suggested["yaml"].as_str().unwrap();
    assert!(yaml.contains("# days: stays as it is\n"), "{yaml}");
    assert!(yaml.contains("rate: 100/day\n"), "what is not known is left alone: {yaml}");
    let own = log(&traffic(1, 20_000, 200), Asked::own);
    lab.write("own.log", own.replace("\"bytes\"", "\"sample\":0.5,\"bytes\""));
    let suggested = lab.json(&["suggest", "own.log", "--percentile", "90"]);
    assert_eq!(
        thin(&suggested, "minutes"),
        (true, "only a share of the requests were logged".into())
    );
}

/// What is proposed for a file with these limits, as a file; it has to be a good one.
fn proposed(lab: &Lab, head: &str, limits: &str, log: &str) -> String {
    lab.config("gateway.yaml", &format!("{head}{limits}routes: [{{ path: /, upstream: app }}]\n"));
    let yaml = lab.json(&["suggest", log, "--margin", "0%"])["yaml"].as_str().unwrap().to_owned();
    let (plans, rest) = yaml.split_at(yaml.find("limits:").unwrap());
    let head = if plans.is_empty() {
        head.to_owned()
    } else {
        plans.to_owned() + head.split_once("plans:").map_or("", |(before, _)| before)
    };
    let tail = if head.contains("plans:") && !head.contains("default_plan") {
        "default_plan: free\n"
    } else {
        ""
    };
    lab.config(
        "pasted.yaml",
        &format!("{head}{tail}{rest}routes: [{{ path: /, upstream: app }}]\n"),
    );
    let output = lab.sluice(&["check", "pasted.yaml"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), lab.read("pasted.yaml"));
    yaml
}

#[test]
fn what_is_proposed_is_a_good_file_whatever_the_limit_is() {
    let lab = Lab::new();
    let mut lines = String::new();
    for n in 0..600u64 {
        let line = Asked::new(START + n * 60_000, "10.0.0.1", "/").own();
        lines.push_str(&line.replace("\"host\"", "\"api_key\":\"a\",\"host\""));
    }
    lab.write("access.log", lines);
    let keys = "identity: { api_key: { keys: [{ id: a, sha256: '0000000000000000000000000000000000000000000000000000000000000001' }] } }\n";
    // One plan is a plan, too; its window may come from the environment.
    for (rate, expected) in
        [("10/hour", "rate: 60/hour"), ("'${NOT_SET:-10/hour}'", "rate: 60/hour")]
    {
        let plans = format!("{keys}plans: {{ free: {{ rate: {rate} }} }}\ndefault_plan: free\n");
        let yaml = proposed(
            &lab,
            &plans,
            "limits: [{ name: k, by: api_key, rate: plan }]\n",
            "access.log",
        );
        assert!(yaml.contains(expected) && yaml.contains("rate: plan\n"), "{yaml}");
    }
    let plans =
        format!("{keys}plans: {{ free: {{ rate: 10/hour, q: 100/hour }} }}\ndefault_plan: free\n");
    let yaml =
        proposed(&lab, &plans, "limits: [{ name: k, by: api_key, rate: plan.q }]\n", "access.log");
    assert!(
        yaml.contains("q: 60/hour") && yaml.contains("rate: plan.q\n  burst: 1\n")
            || yaml.contains("burst: 1"),
        "{yaml}"
    );
    // A candidate keeps the numbers that it had.
    let limits =
        "limits: [{ name: k, by: ip, rate: 100/minute, candidate: { rate: 50/minute } }]\n";
    let yaml = proposed(&lab, "", limits, "access.log");
    assert!(yaml.contains("rate: 50/minute\n      burst: 50\n"), "{yaml}");
    let limits = "limits: [{ name: k, by: ip, rate: 100/minute, candidate: { rate: 50/minute, algorithm: fixed_window } }]\n";
    let yaml = proposed(&lab, "", limits, "access.log");
    assert!(yaml.contains("not written: its candidate has another algorithm"), "{yaml}");
    // No shard is left without a token.
    let limits = "limits: [{ name: g, by: global, rate: 100/minute, shards: 50 }]\n";
    let yaml =
        proposed(&lab, "store: { redis: { url: 'redis://127.0.0.1:9' } }\n", limits, "access.log");
    assert!(yaml.contains("rate: 50/minute") && yaml.contains("burst: 50"), "{yaml}");
}

#[test]
fn no_limit_hides_callers_from_another() {
    let lab = Lab::new();
    // More than a log can remember, in each minute.
    let mut lines: Vec<Asked> =
        (0..11_000).map(|n| Asked::new(START + n * 5, &format!("10.0.0.{}", n % 5), "/")).collect();
    lines.push(Asked::new(START + 61_000, "10.0.0.1", "/"));
    lab.write("access.log", log(&lines, Asked::own));
    let k = "{ name: k, by: ip, rate: 5/minute, algorithm: fixed_window }";
    let g = "{ name: g, by: global, rate: 100/minute, algorithm: sliding_log }";
    let count = |limits: &str| {
        lab.config(
            "gateway.yaml",
            &format!("limits: [{limits}]\nroutes: [{{ path: /, upstream: app }}]\n"),
        );
        let suggested = lab.json(&["suggest", "access.log", "--margin", "0%"]);
        let limits = suggested["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["limit"] == "k").unwrap().clone()
    };
    let (alone, beside) = (count(k), count(&format!("{k}, {g}")));
    assert_eq!(alone["proposed"]["count"], 2200);
    assert_eq!((&beside["proposed"], &beside["rejects"]), (&alone["proposed"], &alone["rejects"]));
}

#[test]
fn where_nothing_is_known_nothing_is_proposed() {
    let lab = Lab::new();
    lab.config("gateway.yaml", "routes: [{ path: /, upstream: app }]\n");
    lab.write("short.log", log(&traffic(1, 15, 50), Asked::own));
    let suggested = lab.json(&["suggest", "short.log"]);
    assert_eq!(suggested["together"]["requests"], 0);
    let yaml = suggested["yaml"].as_str().unwrap();
    assert!(yaml.starts_with("limits: []\n  # per-ip: none is proposed\n"), "{yaml}");
    assert!(!yaml.contains("rate:"), "{yaml}");
    // A pipe is read three times as well.
    let path = lab.write("access.log", log(&traffic(5, 3000, 300), Asked::own));
    let fifo = lab.folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let expected = lab.json(&["suggest", "access.log"]);
    let writer = std::thread::spawn(move || std::fs::copy(path, fifo).unwrap());
    let suggested = lab.json(&["suggest", "pipe"]);
    writer.join().unwrap();
    assert_eq!(suggested["yaml"], expected["yaml"]);
}
