//! A report as people read it on a terminal.

use crate::cli::paint::{Paint, printable};
use crate::cli::table::{Look, Table};
use crate::simulate::figures::{Times, counted, grouped, length, percent};
use crate::simulate::report::{Caller, During, Limit, Report, USE, share};
use std::fmt::Write as _;

/// Names are cut after so many characters.
const WIDEST: usize = 44;

/// Columns of the chart.
const CHART: usize = 72;

/// The whole report.
pub(super) fn text(report: &Report, times: &Times, paint: Paint) -> String {
    let page = Page { report, times, paint, compared: report.baseline.is_some() };
    let parts = [
        page.head(),
        page.warnings(),
        page.figures(),
        page.over_time(),
        page.limits(),
        page.routes(),
        page.callers(),
        page.nearest(),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

struct Page<'r> {
    report: &'r Report,
    times: &'r Times,
    paint: Paint,
    compared: bool,
}

/// What a number looks like that had better be none.
fn unwanted(number: u64) -> (String, Look) {
    (grouped(number), Look::bad_if(number > 0))
}

fn plain(text: impl Into<String>) -> (String, Look) {
    (text.into(), Look::Plain)
}

fn number(number: u64) -> (String, Look) {
    (grouped(number), if number == 0 { Look::Dim } else { Look::Plain })
}

impl Page<'_> {
    fn draw(&self, title: &str, table: &Table) -> String {
        format!("{}\n{}", self.paint.bold(title), table.draw(self.paint, WIDEST))
    }

    /// A column that is there only in a comparison.
    fn before(&self, count: Option<u64>) -> Option<(String, Look)> {
        self.compared.then(|| (grouped(count.unwrap_or(0)), Look::Dim))
    }

    fn columns<'c>(&self, before: &'c [&'c str], after: &'c [&'c str]) -> Vec<&'c str> {
        let between: &[&str] = if self.compared { &[">before"] } else { &[] };
        [before, between, after].concat()
    }

    fn head(&self) -> String {
        let Report { logs, requests, callers, .. } = self.report;
        let files = match logs.files.as_slice() {
            [] => "nothing".to_owned(),
            [one] => printable(one),
            [first, rest @ ..] => format!("{} and {} more", printable(first), rest.len()),
        };
        let mut out = format!("{} on {files}", self.paint.bold(&printable(&self.report.config)));
        if let Some(baseline) = &self.report.baseline {
            let _ = write!(out, ", compared with {}", self.paint.bold(&printable(baseline)));
        }
        let _ = write!(
            out,
            "\n{} of {}",
            counted(requests.all, "request"),
            counted(callers.all, "caller")
        );
        if let (Some(from), Some(to)) = (logs.from, logs.to) {
            let _ = write!(
                out,
                ", {} to {} {} ({})",
                self.times.second(from.0),
                self.times.second(to.0),
                self.times.zone(),
                length((to.0 - from.0) / 1_000_000)
            );
        }
        out + "\n"
    }

    fn warnings(&self) -> String {
        let mut out = String::new();
        for warning in &self.report.warnings {
            let _ = writeln!(out, "{} {}", self.paint.bad("!"), printable(warning));
        }
        for example in &self.report.logs.examples {
            let _ = writeln!(out, "  {}", self.paint.dim(&printable(example)));
        }
        out
    }

    fn figures(&self) -> String {
        let Report { requests, callers, .. } = self.report;
        let mut rows = vec![(
            "rejected",
            format!(
                "{} of {} requests, from {} of {} callers",
                self.paint.bad(&format!(
                    "{} ({})",
                    grouped(requests.rejected),
                    percent(requests.share)
                )),
                grouped(requests.all),
                grouped(callers.rejected),
                grouped(callers.all),
            ),
        )];
        if let Some(before) = requests.baseline {
            rows.push((
                "before",
                format!(
                    "{} ({}): {} newly rejected, {} no longer",
                    grouped(before.rejected),
                    percent(before.share),
                    grouped(before.newly),
                    grouped(before.relieved)
                ),
            ));
            rows.push((
                "callers",
                format!(
                    "{} rejected more often than before, {} less often",
                    grouped(callers.hurt),
                    grouped(callers.relieved)
                ),
            ));
        }
        if requests.banned > 0 {
            rows.push(("banned", format!("{} of the rejected", grouped(requests.banned))));
        }
        if requests.exempt > 0 {
            rows.push(("exempt", grouped(requests.exempt)));
        }
        if requests.shed > 0 {
            let shed = grouped(requests.shed);
            rows.push(("shed", format!("{shed} had no room when they came, and are not judged")));
        }
        if !requests.refused.is_empty() {
            let refused = requests.refused.iter();
            let refused: Vec<String> =
                refused.map(|(status, count)| format!("{status}: {}", grouped(*count))).collect();
            rows.push(("refused", format!("{} (by no limit)", refused.join("  "))));
        }
        if requests.logged_429 > 0 {
            rows.push(("logged", format!("{} were answered 429", grouped(requests.logged_429))));
        }
        let row = |(name, value): (&str, String)| {
            format!("{} {value}\n", self.paint.bold(&format!("{name:<9}")))
        };
        rows.into_iter().map(row).collect()
    }

    fn over_time(&self) -> String {
        let over_time = &self.report.over_time;
        if over_time.intervals.len() < 2 {
            return String::new();
        }
        let each = over_time.intervals.len().div_ceil(CHART);
        let columns: Vec<During> = over_time.intervals.chunks(each).map(together).collect();
        let most = columns.iter().map(|column| column.requests).max().unwrap_or(0);
        let requests = columns.iter().map(|column| share(column.requests, most));
        let worst = columns.iter().map(|c| share(c.rejected, c.requests)).fold(0.0, f64::max);
        let rejected = columns.iter().map(|column| {
            let share = share(column.rejected, column.requests);
            if worst > 0.0 { share / worst } else { 0.0 }
        });
        let seconds = over_time.seconds * each as u64;
        let mut out = format!(
            "{} {}\n",
            self.paint.bold("OVER TIME"),
            self.paint.dim(&format!("{} a column", length(seconds)))
        );
        let _ = writeln!(out, "  requests  {}  at most {}", bars(requests), grouped(most));
        let bars = self.paint.bad(&bars(rejected));
        let _ = writeln!(out, "  rejected  {bars}  at most {}", percent(worst));
        if let Some(column) = columns
            .iter()
            .filter(|column| column.rejected > 0)
            .max_by(|a, b| share(a.rejected, a.requests).total_cmp(&share(b.rejected, b.requests)))
        {
            let _ = writeln!(
                out,
                "  {}",
                self.paint.dim(&format!(
                    "the worst is from {}: {} of {} rejected",
                    self.times.interval(column.at.0, seconds),
                    grouped(column.rejected),
                    grouped(column.requests)
                ))
            );
        }
        out
    }

    fn limits(&self) -> String {
        let Report { limits, gone, .. } = self.report;
        if limits.is_empty() && gone.is_empty() {
            return "the configuration has no limits: sluice suggest proposes some\n".to_owned();
        }
        let below: Vec<String> = USE.iter().map(|use_| format!("><{use_}%")).collect();
        let mut after = vec![">alone", ">callers", ">rejected"];
        after.extend(below[..USE.len() - 1].iter().map(String::as_str));
        after.extend([">more", ""]);
        let first = ["limit", "rate", ">requests", ">rejected", ">share"];
        let mut table = Table::new(&self.columns(&first, &after));
        let of = |limit: &Limit, look: Look, note: &str| {
            let mut cells = vec![
                (printable(&limit.limit), look),
                (format!("{} {}", limit.rate, limit.algorithm), look),
                number(limit.requests),
                unwanted(limit.rejected),
                plain(percent(limit.share)),
            ];
            cells.extend(self.before(limit.baseline));
            cells.extend([number(limit.alone), number(limit.callers)]);
            cells.push(unwanted(limit.rejected_callers));
            cells.extend(limit.used.iter().map(|callers| number(*callers)));
            cells.push((note.to_owned(), Look::Dim));
            cells
        };
        for limit in limits {
            table.row(of(limit, Look::Plain, &notes(limit)));
        }
        for limit in gone {
            let mut limit = limit.clone();
            limit.baseline = Some(std::mem::take(&mut limit.rejected));
            (limit.share, limit.alone, limit.rejected_callers) = (0.0, 0, 0);
            (limit.requests, limit.callers, limit.used) = (0, 0, [0; USE.len()]);
            table.row(of(&limit, Look::Dim, "gone"));
        }
        let title = "LIMITS";
        let what = "  alone: no other limit rejects them; <25%: callers who never used more\n";
        self.draw(title, &table) + &self.paint.dim(what)
    }

    fn routes(&self) -> String {
        let columns = self.columns(&["route", ">requests", ">rejected", ">share"], &[]);
        let mut table = Table::new(&columns);
        for route in &self.report.routes {
            let name = route.route.as_deref().map_or("(none)".to_owned(), printable);
            let mut cells = vec![
                plain(name),
                number(route.requests),
                unwanted(route.rejected),
                plain(percent(route.share)),
            ];
            cells.extend(self.before(route.baseline));
            table.row(cells);
        }
        self.draw("ROUTES", &table)
    }

    fn callers(&self) -> String {
        let Report { callers, rejected, hurt, relieved, .. } = self.report;
        if !self.compared {
            return self.callers_of("REJECTED CALLERS", rejected, callers.rejected);
        }
        let lists = [
            self.callers_of("REJECTED MORE OFTEN", hurt, callers.hurt),
            self.callers_of("REJECTED LESS OFTEN", relieved, callers.relieved),
        ];
        lists.into_iter().filter(|list| !list.is_empty()).collect::<Vec<_>>().join("\n")
    }

    fn callers_of(&self, title: &str, list: &[Caller], all: u64) -> String {
        if list.is_empty() {
            return String::new();
        }
        let first = ["caller", ">requests", ">rejected", ">share"];
        let columns = self.columns(&first, &["worst minute", ">requests", ">rejected", "by"]);
        let mut table = Table::new(&columns);
        for caller in list {
            let mut cells = vec![
                plain(printable(&caller.caller)),
                number(caller.requests),
                unwanted(caller.rejected),
                plain(percent(caller.share)),
            ];
            cells.extend(self.before(caller.baseline));
            match &caller.worst_minute {
                Some(worst) => cells.extend([
                    plain(self.times.minute(worst.at.0)),
                    number(worst.requests),
                    number(worst.rejected),
                ]),
                None => cells.extend([plain(""), plain(""), plain("")]),
            }
            let by = caller.limits.iter();
            let by: Vec<String> =
                by.map(|of| format!("{} {}", printable(&of.limit), grouped(of.rejected))).collect();
            cells.push(plain(by.join(", ")));
            table.row(cells);
        }
        let title = match all.saturating_sub(list.len() as u64) {
            0 => title.to_owned(),
            _ => format!("{title}, {} of {}", list.len(), grouped(all)),
        };
        self.draw(&title, &table)
    }

    fn nearest(&self) -> String {
        if self.report.nearest.is_empty() {
            return String::new();
        }
        let mut table = Table::new(&["caller", "limit", ">used at most", ">of", "", ">requests"]);
        for near in &self.report.nearest {
            table.row([
                plain(printable(&near.caller)),
                plain(printable(&near.limit)),
                number(near.used),
                number(near.capacity),
                plain(percent(near.share)),
                number(near.requests),
            ]);
        }
        self.draw("NEAREST TO A LIMIT, AND NOT REJECTED BY IT", &table)
    }
}

/// Intervals as one.
fn together(intervals: &[During]) -> During {
    let sum = |of: fn(&During) -> u64| intervals.iter().map(of).sum();
    During {
        at: intervals[0].at,
        requests: sum(|during| during.requests),
        rejected: sum(|during| during.rejected),
        baseline: None,
    }
}

/// A bar for each share; what is not nothing is seen.
#[expect(clippy::cast_sign_loss, reason = "shares are not negative")]
fn bars(shares: impl Iterator<Item = f64>) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    shares.map(|share| BARS[((share * 8.0).ceil() as usize).min(8)]).collect()
}

/// What else there is to say of a limit.
fn notes(limit: &Limit) -> String {
    let mut notes = Vec::new();
    if limit.shadow {
        notes.push("a shadow: rejects nobody".to_owned());
    }
    if limit.banned > 0 {
        notes.push(format!("{} more of banned callers", grouped(limit.banned)));
    }
    if limit.delayed > 0 {
        let delayed = grouped(limit.delayed);
        notes.push(format!("{delayed} wait, {:.1} s at most", limit.longest_wait));
    }
    notes.join("; ")
}
