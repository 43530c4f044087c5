//! The same traffic is the same, whatever its log looks like; and what no log looks like is told.

use super::kit::{Asked, Lab, log, stderr, stdout, traffic};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use std::io::Write;

const FILE: &str = "
identity: { trusted_proxies: [127.0.0.1], user: { header: X-User } }
limits:
  - { name: per-ip, by: ip, rate: 7/2s, burst: 5 }
routes:
  - name: a
    path: /a/*
    upstream: app
    limits: [{ name: a-user, by: user, rate: 6/3s, algorithm: fixed_window }]
  - { name: rest, path: /, upstream: app }
";

/// What does not depend on how a log is written.
fn essence(report: &Value) -> Value {
    let mut report = report.clone();
    report["logs"] = Value::Null;
    report["warnings"] = Value::Null;
    report
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &str) -> Vec<u8> {
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    ruzstd::encoding::compress_to_vec(text.as_bytes(), level)
}

#[test]
fn all_formats_tell_the_same() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    // Whole seconds: the combined format knows nothing finer.
    let lines: Vec<Asked> = traffic(1, 2000, 60)
        .into_iter()
        .map(|asked| Asked { time: asked.time / 1000 * 1000, ..asked })
        .collect();
    let own = log(&lines, Asked::own);
    lab.write("own.log", &own);
    lab.write("combined.log", log(&lines, Asked::combined));
    lab.write("other.json", log(&lines, Asked::json));
    lab.write("named.csv", "time;ip;path;agent;user\n".to_owned() + &log(&lines, Asked::csv));
    lab.write("nameless.csv", log(&lines, Asked::csv));
    lab.write("own.log.gz", gzip(&own));
    lab.write("own.log.zst", zstd(&own));
    let (first, second) = own.split_at(own.len() / 3);
    lab.write("parts.log.gz", [gzip(first), gzip(second)].concat());
    let skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc".to_vec();
    lab.write("parts.log.zst", [zstd(first), skippable, zstd(second)].concat());
    lab.write("windows.log", format!("\u{feff}{}", own.replace('\n', "\r\n")));

    let expected = lab.json(&["simulate", "own.log"]);
    assert!(expected["requests"]["rejected"].as_u64().unwrap() > 200, "{expected:#}");
    // A user in a log of ours is whom the gateway believed; in others it is whom they name.
    let mapped = "time=ts,ip=request.remote,path=request.uri,user=who";
    for arguments in [
        &["combined.log"][..],
        &["other.json", "--fields", mapped],
        &["other.json", "--format", "json", "--fields", mapped],
        &["named.csv", "--time-zone", "Europe/Berlin"],
        &["nameless.csv", "--time-zone", "Europe/Berlin", "--fields", "time=1,ip=2,path=3,user=5"],
        &["own.log.gz"],
        &["own.log.zst"],
        &["parts.log.gz"],
        &["parts.log.zst"],
        &["windows.log"],
        &["own.log", "--format", "sluice"],
    ] {
        let report = lab.json(&[&["simulate"], arguments].concat());
        assert_eq!(report["logs"]["unreadable"], 0, "{arguments:?}: {:#}", report["logs"]);
        assert_eq!(essence(&report), essence(&expected), "{arguments:?}");
    }
    for arguments in [&["simulate", "--json"][..], &["simulate", "--json", "-"]] {
        let output = lab.sluice_with(arguments, &gzip(&own));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(essence(&report), essence(&expected));
        assert_eq!(report["logs"]["files"][0], "standard input");
    }
}

#[test]
fn lines_that_cannot_be_read_are_counted_and_shown() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    let lines: Vec<String> = traffic(2, 300, 60).iter().map(Asked::own).collect();
    let mut text = lines.concat();
    text.push_str("\n\n{\"time\":\"2024-02-08T22:51:00.000Z\",\"method\":\"GET\",\"pa");
    lab.write("torn.log", &text);
    let report = lab.json(&["simulate", "torn.log"]);
    assert_eq!((&report["logs"]["lines"], &report["logs"]["unreadable"]), (&301.into(), &1.into()));
    let shown = report["logs"]["examples"][0].as_str().unwrap();
    assert!(shown.starts_with("torn.log:303: this is no JSON object: {\"time\":"), "{shown}");

    let mut bad = lines.clone();
    for (at, line) in [
        (3, "nonsense"),
        (10, "{\"time\":\"yesterday\",\"ip\":\"10.0.0.1\",\"path\":\"/\"}"),
        (20, "{\"time\":\"2024-02-08T22:50:01Z\",\"ip\":\"me\",\"path\":\"/\"}"),
        (30, "{\"time\":\"2024-02-08T22:50:01Z\",\"path\":\"/\"}"),
        (40, "{\"ip\":\"10.0.0.1\",\"path\":\"/\"}"),
        (50, "{\"time\":\"2024-02-08T22:50:01Z\",\"ip\":\"10.0.0.1\",\"status\":\"fine\"}"),
    ] {
        bad.insert(at, format!("{line}\n"));
    }
    lab.write("bad.log", bad.concat());
    let report = lab.json(&["simulate", "bad.log"]);
    let shown: Vec<&str> = report["logs"]["examples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e.as_str().unwrap())
        .collect();
    assert_eq!(report["logs"]["unreadable"], 6);
    let expected = [
        "bad.log:4: this is no JSON object: nonsense",
        "bad.log:11: a time that cannot be read: ",
        "bad.log:21: an address that is none: ",
        "bad.log:31: no address: ",
        "bad.log:41: no time: ",
    ];
    assert_eq!(shown.len(), expected.len());
    for (shown, expected) in shown.iter().zip(expected) {
        assert!(shown.starts_with(expected), "{shown}");
    }
    let output = lab.sluice(&["simulate", "bad.log", "--tolerate", "1%"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).is_empty());
    let said = stderr(&output);
    assert!(said.starts_with("6 of 306 lines cannot be read; at most 1% may be (--tolerate)\n"));
    assert!(said.contains("bad.log:4: this is no JSON object: nonsense"), "{said}");
}

#[test]
fn what_is_no_log_is_told_with_a_way_out() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    lab.write("prose.log", "Once upon a time\nthere was a log.\n");
    lab.write(
        "odd.json",
        "{\"when\":\"2024-02-08T22:50:01Z\",\"from\":\"10.0.0.1\",\"what\":\"/\"}\n",
    );
    lab.write("odd.csv", "when,from,what\n2024-02-08T22:50:01Z,10.0.0.1,/\n");
    lab.write("empty.log", "");
    lab.write("broken.gz", &gzip("a line\n")[..12]);
    let asked = traffic(1, 10, 50);
    lab.write("good.log", log(&asked, Asked::own));
    for (arguments, said) in [
        (&["prose.log"][..], "prose.log: the format cannot be told by its first line; name it by"),
        (
            &["prose.log", "--format", "json"],
            "its first line is no JSON object\n  Once upon a time",
        ),
        (
            &["odd.json"],
            "no field is known to be the time; name it, for example: --fields time=NAME",
        ),
        (&["odd.json"], "fields there are: from, what, when"),
        (&["odd.json", "--fields", "time=when"], "no field is known to be the ip"),
        (
            &["odd.csv", "--fields", "time=wann"],
            "there is no column 'wann'\n  columns there are: when",
        ),
        (&["good.log", "--fields", "tme=x"], "'tme' is nothing that is looked for; time, ip,"),
        (&["good.log", "--fields", "time"], "'time' names no field; it looks like time=ts"),
        (&["good.log", "--fields", "header:X-A=x"], "no limit counts by the header X-A"),
        (&["good.log", "--time-zone", "Mars"], "there is no time zone 'Mars'"),
        (&["good.log", "--host", "a b"], "'a b' is no host"),
        (&["missing.log"], "missing.log: No such file"),
        (&["broken.gz"], "broken.gz: "),
        (&["-", "-"], "standard input can be read once"),
        (&["good.log", "-c", "missing.yaml"], "cannot read missing.yaml"),
        (&["good.log", "--html", "no/folder.html"], "cannot write no/folder.html"),
        (&["good.log", "--rejected", "no/folder.json"], "cannot write no/folder.json"),
    ] {
        let output = lab.sluice(&[&["simulate"], arguments].concat());
        assert!(!output.status.success(), "{arguments:?}");
        assert!(stdout(&output).is_empty(), "{arguments:?}");
        assert!(stderr(&output).contains(said), "{arguments:?}: {}", stderr(&output));
    }
    let report = lab.json(&["simulate", "empty.log"]);
    assert_eq!(
        (&report["requests"]["all"], &report["limits"][0]["callers"]),
        (&0.into(), &0.into())
    );
    assert_eq!(report["warnings"][0], "the logs have no requests");
    let output = lab.sluice(&["simulate", "empty.log"]);
    assert!(stdout(&output).contains("0 requests of 0 callers"));
}

#[test]
fn a_line_that_never_ends_is_left_out() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    let asked = traffic(1, 20, 50);
    let long = format!("{{\"time\":\"{}\"}}\n", "x".repeat(1 << 20));
    let text = [log(&asked[..10], Asked::own), long, log(&asked[10..], Asked::own)].concat();
    lab.write("long.log", text);
    let report = lab.json(&["simulate", "long.log", "--tolerate", "50%"]);
    assert_eq!((&report["logs"]["lines"], &report["logs"]["unreadable"]), (&21.into(), &1.into()));
    let shown = report["logs"]["examples"][0].as_str().unwrap();
    assert!(
        shown.starts_with("long.log:11: longer than a line may be: {\"time\":\"xxx"),
        "{shown}"
    );
    lab.write("after.log", format!("{}nonsense\n", lab.read("long.log")));
    let report = lab.json(&["simulate", "after.log", "--tolerate", "50%"]);
    let shown = report["logs"]["examples"][1].as_str().unwrap();
    assert!(shown.starts_with("after.log:22: this is no JSON object"), "{shown}");
}

#[test]
fn other_peoples_logs_are_read_as_they_are() {
    let lab = Lab::new();
    lab.config("gateway.yaml", "
identity: { trusted_proxies: [192.0.2.1], user: { header: X-User } }
limits: [{ name: per-ip, by: ip, rate: 1/hour }]
routes: [{ name: shop, hosts: [shop.example], path: /a/*, upstream: app }, { name: rest, path: /, upstream: app }]
");
    for (name, line) in [
        (
            "nginx",
            r#"10.0.0.7 - anna [08/Feb/2024:22:50:01 +0000] "GET /a/b?c=d HTTP/1.1" 200 5 "-" "x y""#,
        ),
        ("common", r#"10.0.0.7 - - [08/Feb/2024:22:50:01 +0000] "GET /a/b HTTP/1.0" 304 -"#),
        (
            "vhost",
            r#"shop.example:443 10.0.0.7 - - [08/Feb/2024:22:50:01 +0000] "POST /a/b HTTP/2.0" 200 5 "-" "x""#,
        ),
        (
            "behind a proxy",
            r#"192.0.2.1 - - [08/Feb/2024:22:50:01 +0000] "GET /a/b HTTP/1.1" 200 5 "-" "x" "10.0.0.7, 192.0.2.1""#,
        ),
        (
            "caddy",
            r#"{"level":"info","ts":1707432601.5,"logger":"http.log.access","request":{"remote_ip":"10.0.0.7","client_ip":"10.0.0.7","proto":"HTTP/2.0","method":"GET","host":"shop.example","uri":"/a/b"},"duration":0.01,"size":5,"status":200}"#,
        ),
        (
            "traefik",
            r#"{"ClientAddr":"10.0.0.7:4711","ClientHost":"10.0.0.7","DownstreamStatus":200,"Duration":1200000,"RequestHost":"shop.example","RequestMethod":"GET","RequestPath":"/a/b?c","StartUTC":"2024-02-08T22:50:01.123456789Z"}"#,
        ),
        (
            "envoy",
            r#"{"start_time":"2024-02-08T22:50:01.123Z","method":"GET","path":"/a/b","authority":"shop.example","response_code":200,"downstream_remote_address":"10.0.0.7:4711","duration":12}"#,
        ),
        (
            "nginx as JSON",
            r#"{"time_iso8601":"2024-02-08T23:50:01+01:00","remote_addr":"10.0.0.7","request":"GET /a/b HTTP/1.1","http_host":"shop.example","status":"200","request_time":"0.012"}"#,
        ),
    ] {
        lab.write("a.log", format!("{line}\n{line}\n"));
        let report = lab.json(&["simulate", "a.log", "--host", "shop.example"]);
        assert_eq!(report["logs"]["unreadable"], 0, "{name}: {:#}", report["logs"]);
        assert_eq!(report["routes"][0]["route"], "shop", "{name}");
        assert_eq!(report["routes"].as_array().unwrap().len(), 1, "{name}");
        assert_eq!(report["requests"]["rejected"], 1, "{name}");
        assert_eq!(report["over_time"]["intervals"][0]["at"], "2024-02-08T22:50:01.000Z", "{name}");
    }
}

#[test]
fn what_some_lines_lack_or_have_elsewhere_is_found() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    let lines = traffic(3, 400, 60);
    lab.write("own.log", log(&lines, Asked::own));
    let expected = essence(&lab.json(&["simulate", "own.log"]));
    // Sorted keys, as other programs write them.
    let sorted = |asked: &Asked| {
        let line: serde_json::Map<String, Value> = serde_json::from_str(&asked.own()).unwrap();
        let line: std::collections::BTreeMap<String, Value> = line.into_iter().collect();
        serde_json::to_string(&line).unwrap() + "\n"
    };
    lab.write("sorted.log", log(&lines, sorted));
    assert_eq!(essence(&lab.json(&["simulate", "sorted.log"])), expected);
    // What is said of fields is said of other logs.
    let said = ["simulate", "own.log", "--fields", "user=sub,time=ts"];
    assert_eq!(essence(&lab.json(&said)), expected);
    // A torn first line, and users who come later than the lines that are looked at.
    let plain = |asked: &Asked| {
        let mut line = serde_json::json!({
            "timestamp": asked.time, "client": { "ip": asked.ip }, "url": { "path": asked.path },
            "client_ip": asked.ip, "uri": asked.path, "host": "example.test",
        });
        if let Some(user) = &asked.user {
            line["user_id"] = user.as_str().into();
        }
        format!("{line}\n")
    };
    let mut late: Vec<Asked> = lines.clone();
    for asked in late.iter_mut().take(100) {
        asked.user = None;
    }
    lab.write("late.own", log(&late, Asked::own));
    lab.write("late.json", log(&late, plain));
    let expected = essence(&lab.json(&["simulate", "late.own"]));
    assert_eq!(essence(&lab.json(&["simulate", "late.json"])), expected);
    lab.write("torn.json", "1,2}}\n".to_owned() + &log(&late, plain));
    let report = lab.json(&["simulate", "torn.json"]);
    assert_eq!(report["logs"]["unreadable"], 1);
    assert_eq!(essence(&report), expected);
}

#[test]
fn columns_may_be_padded_and_hosts_may_be_addresses() {
    let lab = Lab::new();
    lab.config("gateway.yaml", "
identity: { trusted_proxies: [127.0.0.1], user: { header: X-User } }
routes: [{ path: /a, upstream: app, limits: [{ name: users, by: user, rate: 1/hour }, { name: per-ip, by: ip, rate: 2/hour }] }]
");
    lab.write("a.csv", "time, ip, path, user\n2024-02-08T22:50:01Z, 10.0.0.7, /a , anna\n2024-02-08T22:50:01Z,10.0.0.7,/a,anna\n");
    let report = lab.json(&["simulate", "a.csv"]);
    assert_eq!(
        (&report["rejected"][0]["caller"], &report["requests"]["rejected"]),
        (&"user:anna".into(), &1.into())
    );
    let line = |ip| {
        format!("192.0.2.1:80 {ip} - - [08/Feb/2024:22:50:01 +0000] \"GET /a HTTP/1.1\" 200 5\n")
    };
    lab.write("vhost.log", ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"].map(line).concat());
    let report = lab.json(&["simulate", "vhost.log"]);
    assert_eq!(
        (&report["callers"]["all"], &report["requests"]["rejected"]),
        (&3.into(), &0.into())
    );
    let output = lab.sluice(&["simulate", "vhost.log", "--fields", "ip=x"]);
    assert!(
        stderr(&output)
            .contains("lines of the combined format have no names of fields, such as 'x'")
    );
}

#[test]
fn a_damaged_archive_is_no_log() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    let text = log(&traffic(1, 500, 50), Asked::own);
    for (name, packed) in [("a.gz", gzip(&text)), ("a.zst", zstd(&text))] {
        let mut damaged = 0;
        for at in (packed.len() / 2..packed.len()).step_by(packed.len() / 40) {
            let mut bytes = packed.clone();
            bytes[at] ^= 4;
            lab.write(name, bytes);
            let output =
                lab.sluice(&["simulate", name, "--format", "sluice", "--tolerate", "100%"]);
            damaged += usize::from(!output.status.success());
        }
        assert!(damaged >= 19, "{name}: {damaged} were noticed");
    }
}

#[test]
fn nobody_draws_on_the_terminal() {
    let lab = Lab::new();
    lab.config("gateway.yaml", FILE);
    lab.write("esc.log", "hello \u{1b}[31mred\u{1b}]0;pwned\u{7}\n");
    for arguments in
        [&["esc.log"][..], &["esc.log", "--format", "json"], &["esc.log", "--format", "sluice"]]
    {
        let output = lab.sluice(&[&["simulate"], arguments].concat());
        assert!(!stderr(&output).contains(['\u{1b}', '\u{7}']), "{}", stderr(&output));
        assert!(stderr(&output).contains("hello ?[31mred"), "{}", stderr(&output));
    }
}
