//! What is told of a replay: how much, whom, when, how near; compared with another configuration;
//! to people, machines and browsers.

use super::kit::{Asked, Lab, START, log, stderr, stdout, traffic};
use serde_json::{Value, json};

const FILE: &str = "
identity: { trusted_proxies: [127.0.0.1], user: { header: X-User } }
limits:
  - { name: per-ip, by: ip, rate: 10/minute }
routes:
  - { name: api, path: /api/*, upstream: app, limits: [{ name: users, by: user, rate: 4/minute, algorithm: fixed_window }] }
  - { name: rest, path: /, upstream: app }
";

/// So many requests of an address, so many milliseconds apart.
fn many(ip: &str, path: &str, count: u64, from: u64, apart: u64) -> Vec<Asked> {
    (0..count).map(|n| Asked::new(START + from + n * apart, ip, path)).collect()
}

/// Twelve at once and three a minute later; seven of a user; eight that use most of it.
fn lines() -> Vec<Asked> {
    let mut lines = many("10.0.0.1", "/", 12, 1000, 1);
    lines.extend(many("10.0.0.1", "/", 3, 121_000, 1));
    let of_user = many("10.0.0.2", "/api/x", 7, 5000, 10);
    lines.extend(of_user.into_iter().map(|a| Asked { user: Some("anna".into()), ..a }));
    lines.extend(many("10.0.0.3", "/", 8, 9000, 1));
    lines.sort_by_key(|asked| asked.time);
    lines
}

#[test]
fn it_tells_how_much_whom_when_and_how_near() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    lab.write("access.log", log(&lines(), Asked::own));
    let report = lab.json(&["simulate", "access.log", "--top", "2"]);
    assert_eq!(report["requests"]["all"], 30);
    assert_eq!(report["requests"]["rejected"], 2 + 3);
    assert_eq!(report["callers"], json!({ "all": 3, "rejected": 2, "hurt": 0, "relieved": 0 }));
    let [per_ip, users] = &report["limits"].as_array().unwrap()[..] else { panic!() };
    assert_eq!((&per_ip["requests"], &per_ip["rejected"]), (&json!(30), &json!(2)));
    assert_eq!((&per_ip["callers"], &per_ip["rejected_callers"]), (&json!(3), &json!(1)));
    // Four of ten are admitted of anna's address; eight of ten are 80%.
    assert_eq!(per_ip["used"], json!([0, 1, 0, 1, 0]));
    assert_eq!(
        (&users["requests"], &users["rejected"], &users["alone"]),
        (&json!(7), &json!(3), &json!(3))
    );
    assert_eq!(users["routes"], json!(["api"]));
    assert_eq!(
        report["rejected"],
        json!([
            {
                "caller": "user:anna",
                "requests": 7,
                "rejected": 3,
                "share": 3.0 / 7.0,
                "limits": [{ "limit": "users", "rejected": 3 }],
                "worst_minute": { "at": "2024-02-08T22:50:00.000Z", "requests": 7, "rejected": 3 },
            },
            {
                "caller": "ip:10.0.0.1",
                "requests": 15,
                "rejected": 2,
                "share": 2.0 / 15.0,
                "limits": [{ "limit": "per-ip", "rejected": 2 }],
                "worst_minute": { "at": "2024-02-08T22:50:00.000Z", "requests": 12, "rejected": 2 },
            },
        ])
    );
    assert_eq!(
        report["nearest"],
        json!([
            { "caller": "ip:10.0.0.3", "limit": "per-ip", "used": 8, "capacity": 10, "share": 0.8, "requests": 8 },
            { "caller": "ip:10.0.0.2", "limit": "per-ip", "used": 4, "capacity": 10, "share": 0.4, "requests": 7 },
        ])
    );
    assert_eq!(report["over_time"]["seconds"], 1);
    let intervals = report["over_time"]["intervals"].as_array().unwrap();
    assert_eq!(intervals.len(), 121, "those in which nobody came, too");
    assert_eq!(
        intervals[0],
        json!({ "at": "2024-02-08T22:50:01.000Z", "requests": 12, "rejected": 2 })
    );
    assert_eq!(intervals[1]["requests"], 0);

    let text = stdout(&lab.sluice(&["simulate", "access.log", "--time-zone", "Europe/Berlin"]));
    for part in [
        "gateway.yaml on access.log\n",
        "30 requests of 3 callers, 2024-02-08 23:50:01 to 2024-02-08 23:52:01 Europe/Berlin (2 min)\n",
        "rejected  5 (16.7%) of 30 requests, from 2 of 3 callers\n",
        "the worst is from 2024-02-08 23:50:05: 3 of 7 rejected\n",
        "  per-ip  10/minute token_bucket        30         2   6.7%      2        3         1     0     1     0     1     0\n",
        "  user:anna           7         3  42.9%  2024-02-08 23:50         7         3  users 3\n",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "no colours where nobody sees them");
}

#[test]
fn two_files_are_compared() {
    let lab = Lab::new();
    lab.config("old.yaml", FILE);
    // Addresses have more, users less, and a limit is new.
    let new = FILE.replace("10/minute", "13/minute").replace("4/minute", "2/minute");
    let new = new.replace("name: per-ip", "name: addresses");
    lab.config("new.yaml", &new);
    lab.write("access.log", log(&lines(), Asked::own));
    let arguments = ["simulate", "-c", "new.yaml", "--baseline", "old.yaml", "access.log"];
    let report = lab.json(&arguments);
    assert_eq!(
        report["requests"]["baseline"],
        json!({ "rejected": 5, "share": 5.0 / 30.0, "newly": 2, "relieved": 2 })
    );
    assert_eq!(report["callers"], json!({ "all": 3, "rejected": 1, "hurt": 1, "relieved": 1 }));
    assert_eq!(report["hurt"][0]["caller"], "user:anna");
    assert_eq!(
        (&report["hurt"][0]["rejected"], &report["hurt"][0]["baseline"]),
        (&json!(5), &json!(3))
    );
    assert_eq!(report["relieved"][0]["caller"], "ip:10.0.0.1");
    assert_eq!(report["limits"][0]["baseline"], 0, "a new one");
    assert_eq!(report["limits"][1]["baseline"], 3);
    assert_eq!(
        (&report["gone"][0]["limit"], &report["gone"][0]["rejected"]),
        (&json!("per-ip"), &json!(2))
    );
    let alone = lab.json(&["simulate", "-c", "new.yaml", "access.log"]);
    assert_eq!(
        report["requests"]["rejected"], alone["requests"]["rejected"],
        "neither sees the other"
    );
    let text = stdout(&lab.sluice(&arguments));
    for part in [
        "compared with old.yaml",
        "before    5 (16.7%): 2 newly rejected, 2 no longer\n",
        "callers   1 rejected more often than before, 1 less often\n",
        "REJECTED MORE OFTEN",
        "REJECTED LESS OFTEN",
        "gone",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
}

#[test]
fn too_many_rejects_can_fail_a_build() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    lab.write("access.log", log(&lines(), Asked::own));
    let code = |most| lab.sluice(&["simulate", "access.log", "--fail-above", most]).status.code();
    assert_eq!((code("16%"), code("17%")), (Some(3), Some(0)));
    lab.write("access.log", "");
    assert_eq!(code("17%"), Some(3), "nothing was tried");
}

#[test]
fn what_logs_do_not_tell_is_told() {
    let lab = Lab::new();
    let asked = traffic(1, 100, 500);
    lab.write("combined.log", log(&asked, Asked::combined));
    let own = log(&asked, Asked::own);
    lab.write("own.log", &own);
    lab.write("sampled.log", own.replace("\"bytes\"", "\"sample\":0.01,\"bytes\""));
    lab.config(
        "gateway.yaml",
        "
identity:
  trusted_proxies: [10.0.0.0/8]
  api_key: { header: X-Key, keys: [{ id: a, sha256: '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08' }] }
routes:
  - name: shop
    hosts: [shop.example]
    path: /
    upstream: app
    limits:
      - { name: tenants, by: header:X-Tenant, rate: 1/s }
      - { name: keys, by: api_key, rate: 1/s }
      - { name: busy, by: ip, concurrency: 3 }
      - { name: tokens, by: ip, rate: 10/s, cost: { response_header: X-Cost, reserve: 2 } }
",
    );
    let warnings = |arguments: &[&str]| -> Vec<String> {
        let report = lab.json(&[&["simulate"], arguments].concat());
        serde_json::from_value(report["warnings"].clone()).unwrap()
    };
    let has = |warnings: &[String], part: &str| {
        assert!(warnings.iter().any(|warning| warning.contains(part)), "{part}: {warnings:#?}");
    };
    let said = warnings(&["combined.log"]);
    has(&said, "100 requests of a trusted proxy, and nothing says for whom");
    has(&said, "100 of 100 requests match no route; the logs tell no host (--host NAME)");
    let said = warnings(&["combined.log", "--host", "shop.example"]);
    has(&said, "'tenants' never applies: no line tells x-tenant");
    has(&said, "'keys' never applies: no line tells an API key (--fields api_key=NAME)");
    has(&said, "'busy' counts requests in flight, and the logs do not tell how long they took");
    has(&said, "'tokens': the logs do not tell what");
    let said = warnings(&["sampled.log"]);
    has(&said, "100 lines of requests of which only a share was logged, 10000 or so");
    let keyed = own.replace("\"host\"", "\"api_key\":\"b\",\"host\"");
    lab.write("keyed.log", keyed);
    let said = warnings(&["keyed.log", "--host", "shop.example"]);
    has(&said, "100 requests with an API key that the file does not know: refused with 401");
    let said = warnings(&["keyed.log", "--accept-any-key"]);
    assert!(!said.iter().any(|warning| warning.contains("does not know")), "{said:?}");
    // Lines that come too late are judged all the same.
    let mut late = traffic(1, 20_000, 40);
    late.rotate_left(1);
    lab.write("late.log", log(&late, Asked::own));
    has(&warnings(&["late.log"]), "1 line came too late to be put in order");
    let report = lab.json(&["simulate", "late.log", "--late", "7d"]);
    assert_eq!((&report["logs"]["late"], &report["requests"]["all"]), (&json!(0), &json!(20_000)));
}

#[test]
fn hostile_names_are_text_and_nothing_else() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    let name = "<img src=x onerror=alert(1)>\u{1b}[31m\u{202e}\n\"&'";
    let of_user = many("10.0.0.2", "/api/x", 9, 0, 1);
    let lines: Vec<Asked> =
        of_user.into_iter().map(|asked| Asked { user: Some(name.into()), ..asked }).collect();
    lab.write("<b>.log", log(&lines, Asked::own) + "{\"<script>\u{1b}\n");
    let arguments = ["simulate", "<b>.log", "--html", "r.html", "--tolerate", "50%"];
    let output = lab.sluice(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
    assert!(text.contains("user:<img src=x onerror=alert(1)>?[31m??\"&'"), "{text}");
    let page = lab.read("r.html");
    for markup in ["<img", "<script", "<b>"] {
        assert!(!page.contains(markup), "{markup}");
    }
    assert!(page.contains("user:&lt;img src=x onerror=alert(1)&gt;"));
    let report: Value = lab.json(&arguments);
    assert_eq!(report["rejected"][0]["caller"], format!("user:{name}"));
}

#[test]
fn nothing_that_is_read_is_written_over() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    lab.write("access.log", log(&lines(), Asked::own));
    let before = (lab.read("access.log"), lab.read("gateway.yaml"));
    std::os::unix::fs::symlink("access.log", lab.folder.path().join("link.log")).unwrap();
    for arguments in [
        &["--rejected", "access.log"][..],
        &["--html", "link.log"],
        &["--html", "gateway.yaml"],
        &["--html", "same", "--rejected", "same"],
        &["--html", "-"],
    ] {
        let output = lab.sluice(&[&["simulate", "access.log"], arguments].concat());
        assert!(!output.status.success(), "{arguments:?}");
        let said = stderr(&output);
        assert!(said.contains("would be written over") || said.contains("'-' is none"), "{said}");
    }
    assert_eq!((lab.read("access.log"), lab.read("gateway.yaml")), before);
    assert!(
        !lab.sluice(&["simulate", "access.log", "--top", "18446744073709551615"]).status.success()
    );
    assert!(lab.sluice(&["simulate", "access.log", "--top", "0"]).status.success());
}

#[test]
fn a_clock_that_was_wrong_once_does_not_spoil_the_order() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    let mut lines = traffic(1, 30_000, 20);
    lines.insert(10_000, Asked::new(START + 400_000_000_000, "10.0.0.9", "/"));
    // Somewhat out of order, as logs are.
    for pair in lines.chunks_mut(2) {
        pair.reverse();
    }
    lab.write("access.log", log(&lines, Asked::own));
    assert_eq!(lab.json(&["simulate", "access.log"])["logs"]["late"], 0);
}

#[test]
fn neighbours_of_the_exempt_are_limited() {
    let lab = Lab::new();
    lab.config(
        "gateway.yaml",
        "
exempt: { ips: ['2001:db8::1'] }
routes: [{ path: /, upstream: app, limits: [{ name: per-ip, by: ip, rate: 2/hour }] }]
",
    );
    let from = |ip: &str| many(ip, "/", 5, 0, 10);
    let all =
        [from("2001:db8::1"), from("2001:db8::2"), from("2001:db8::3"), from("2001:db8:0:1::1")];
    lab.write("access.log", log(&all.concat(), Asked::own));
    let report = lab.json(&["simulate", "access.log"]);
    assert_eq!(
        (&report["requests"]["exempt"], &report["requests"]["rejected"]),
        (&json!(5), &json!(8 + 3))
    );
    assert_eq!(report["rejected"][0]["caller"], "ip:2001:db8::");
    assert_eq!(report["limits"][0]["callers"], 2);
}
