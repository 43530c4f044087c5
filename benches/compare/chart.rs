//! The bar chart that the README shows: CPU per request, as a ratio to nginx.

use crate::load::Sample;
use crate::report::{Report, Row, median};
use std::fmt::Write;

const STYLE: &str = "
    .ground { fill: #fff; stroke: #d0d7de }
    .title { font-size: 16px; font-weight: 600; fill: #14293d }
    .group { font-weight: 600; fill: #14293d }
    .name { fill: #14293d } .what { font-size: 12px; fill: #52616f }
    .bar { fill: #b9c4ce } .ours { fill: #2268a8 }
    .one { stroke: #8795a1; stroke-dasharray: 4 3 }
";

/// Scenarios that are drawn, and what they are called there.
const GROUPS: [(&str, &str); 4] = [
    ("forwarded", "Forwarded, limits on (ours: three layers, theirs: one)"),
    ("rejected", "Rejected with 429"),
    ("down", "1 MiB down"),
    ("up", "1 MiB up"),
];

const WIDTH: f64 = 820.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 150.0;
const ROW: f64 = 24.0;

pub(crate) fn draw(report: &Report) -> String {
    let groups: Vec<(&str, Vec<&Row>)> = GROUPS
        .iter()
        .map(|(key, title)| (*title, report.rows.iter().filter(|r| r.scenario == *key).collect()))
        .collect();
    let cpu = |sample: &Sample| sample.cpu_micros_per_request;
    let ratio = |row: &Row| report.ratio(row, "nginx", cpu).unwrap_or_default();
    let widest = groups.iter().flat_map(|(_, rows)| rows).map(|row| ratio(row)).fold(1.0, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / widest;

    let mut body = String::new();
    let mut y = 76.0;
    for (title, rows) in &groups {
        let _ = writeln!(body, r#"<text class="group" x="24" y="{y}">{title}</text>"#);
        y += 12.0;
        for row in rows {
            let micros = median(row.samples.iter().map(cpu)).unwrap_or_default();
            let (ratio, middle) = (ratio(row), y + ROW / 2.0 + 4.0);
            let class = if row.contestant == "sluice" { "ours" } else { "bar" };
            let length = ratio * scale;
            let _ = writeln!(
                body,
                r#"<text class="name" x="{:.0}" y="{middle:.0}" text-anchor="end">{}</text>
<rect class="{class}" x="{LEFT}" y="{:.0}" width="{length:.1}" height="{:.0}" rx="2"/>
<text class="what" x="{:.1}" y="{middle:.0}">× {ratio:.2} · {micros:.1} µs</text>"#,
                LEFT - 10.0,
                row.contestant,
                y + 3.0,
                ROW - 6.0,
                LEFT + length + 8.0,
            );
            y += ROW;
        }
        y += 30.0;
    }
    let one = LEFT + scale;
    let height = y;
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="CPU time per request of sluice and its peers as a ratio to nginx" font-family="ui-sans-serif, system-ui, sans-serif" font-size="14">
<style>{STYLE}</style>
<rect class="ground" x=".5" y=".5" width="{:.0}" height="{:.0}" rx="8"/>
<text class="title" x="24" y="32">CPU time of the proxy per request, as a ratio to nginx (less is better)</text>
<text class="what" x="24" y="50">{}; medians of {} rounds, one core</text>
<line class="one" x1="{one:.1}" y1="84" x2="{one:.1}" y2="{:.0}"/>
{body}</svg>
"#,
        WIDTH - 1.0,
        height - 1.0,
        report.machine,
        report.rounds,
        height - 30.0,
    )
}
