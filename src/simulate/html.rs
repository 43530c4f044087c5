//! A report as one page for browsers: charts and tables, no script, nothing from elsewhere. What logs
//! and files say is only ever text in it, never markup.

use super::figures::{Times, counted, grouped, length, percent};
use super::plot;
use super::report::{Caller, Limit, Report, share};
use std::fmt::Write as _;

/// The page's own colours and type: those of the dashboard.
const STYLE: &str = include_str!("report.css");

/// The page.
pub fn page(report: &Report, times: &Times) -> String {
    let page = Page { report, times, compared: report.baseline.is_some() };
    let sections = [
        page.head(),
        page.warnings(),
        page.figures(),
        page.over_time(),
        page.limits(),
        page.routes(),
        page.callers(),
        page.nearest(),
        page.foot(),
    ];
    let title = format!("{}: what would be rejected", escaped(&report.config));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n{HATCH}\n\
         {}\n</body>\n</html>\n",
        sections.concat()
    )
}

/// The hatching of what is rejected, for all charts.
const HATCH: &str = "<svg width=\"0\" height=\"0\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" \
                     width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
                     patternTransform=\"rotate(45)\"><rect class=\"ground\" width=\"5\" height=\"5\"/>\
                     <rect class=\"stripe\" width=\"2.6\" height=\"5\"/></pattern></defs></svg>";

/// Text, whatever is in it.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

struct Page<'r> {
    report: &'r Report,
    times: &'r Times,
    compared: bool,
}

/// A cell of a table.
fn text(text: &str) -> String {
    format!("<td>{}</td>", escaped(text))
}

fn name(name: &str) -> String {
    format!("<td class=\"name\">{}</td>", escaped(name))
}

fn number(number: u64) -> String {
    let zero = if number == 0 { " zero" } else { "" };
    format!("<td class=\"number{zero}\">{}</td>", grouped(number))
}

/// A number that had better be none.
fn unwanted(count: u64) -> String {
    if count == 0 {
        return number(count);
    }
    format!("<td class=\"number hot\">{}</td>", grouped(count))
}

fn share_cell(share: f64) -> String {
    format!("<td class=\"number\">{}</td>", percent(share))
}

/// A table with these columns; those that begin with `>` hold numbers.
fn table(id: &str, columns: &[&str], rows: &str) -> String {
    let mut head = String::new();
    for column in columns {
        let (class, name) = match column.strip_prefix('>') {
            Some(name) => (" class=\"number\"", name),
            None => ("", *column),
        };
        let _ = write!(head, "<th scope=\"col\"{class}>{}</th>", escaped(name));
    }
    format!(
        "<div class=\"wide\"><table id=\"{id}\"><thead><tr>{head}</tr></thead>\n\
         <tbody>{rows}</tbody></table></div>\n"
    )
}

impl Page<'_> {
    fn section(title: &str, note: &str, inside: &str) -> String {
        let note = match note {
            "" => String::new(),
            note => format!("<p class=\"soft\">{note}</p>"),
        };
        format!("<section><h2>{title}</h2>{note}\n{inside}</section>\n")
    }

    fn before(&self, count: Option<u64>) -> String {
        if self.compared { number(count.unwrap_or(0)) } else { String::new() }
    }

    fn columns<'c>(&self, before: &[&'c str], after: &[&'c str]) -> Vec<&'c str> {
        let between: &[&str] = if self.compared { &[">before"] } else { &[] };
        [before, between, after].concat()
    }

    fn head(&self) -> String {
        let Report { logs, config, baseline, .. } = self.report;
        let files = logs.files.iter().map(|file| format!("<li>{}</li>", escaped(file)));
        let compared = baseline.as_ref().map(|old| format!(", compared with {}", escaped(old)));
        let mut when = String::new();
        if let (Some(from), Some(to)) = (logs.from, logs.to) {
            let _ = write!(
                when,
                "{} to {} {} ({})",
                self.times.second(from.0),
                self.times.second(to.0),
                escaped(&self.times.zone()),
                length((to.0 - from.0) / 1_000_000)
            );
        }
        format!(
            "<header><h1>What <span class=\"name\">{}</span> would have rejected{}</h1>\n\
             <p class=\"soft\">{when}</p><ul class=\"files\">{}</ul></header>\n",
            escaped(config),
            compared.unwrap_or_default(),
            files.collect::<String>()
        )
    }

    fn warnings(&self) -> String {
        let mut out = String::new();
        for warning in &self.report.warnings {
            let _ = writeln!(out, "<p class=\"notice\">{}</p>", escaped(warning));
        }
        if !self.report.logs.examples.is_empty() {
            let examples = self.report.logs.examples.join("\n");
            let _ = writeln!(out, "<pre class=\"notice\">{}</pre>", escaped_lines(&examples));
        }
        out
    }

    fn figures(&self) -> String {
        let Report { requests, callers, .. } = self.report;
        let mut figures = vec![
            ("requests", grouped(requests.all), format!("of {}", counted(callers.all, "caller"))),
            ("rejected", grouped(requests.rejected), percent(requests.share)),
            (
                "rejected callers",
                grouped(callers.rejected),
                format!(
                    "{} of {}",
                    percent(share(callers.rejected, callers.all)),
                    grouped(callers.all)
                ),
            ),
        ];
        if let Some(before) = requests.baseline {
            figures.extend([
                ("rejected before", grouped(before.rejected), percent(before.share)),
                (
                    "newly rejected",
                    grouped(before.newly),
                    format!("{} hurt", counted(callers.hurt, "caller")),
                ),
                (
                    "no longer rejected",
                    grouped(before.relieved),
                    format!("{} relieved", counted(callers.relieved, "caller")),
                ),
            ]);
        }
        let others = [
            ("banned", requests.banned, "callers who ignore limits"),
            ("exempt", requests.exempt, "no limit applies"),
            ("shed", requests.shed, "no room; not judged"),
            ("answered 429", requests.logged_429, "when they were logged"),
        ];
        for (what, count, note) in others.into_iter().filter(|(_, count, _)| *count > 0) {
            figures.push((what, grouped(count), note.to_owned()));
        }
        if !requests.refused.is_empty() {
            let all = requests.refused.values().sum();
            let each = requests.refused.iter();
            let each: Vec<String> =
                each.map(|(status, count)| format!("{status}: {}", grouped(*count))).collect();
            figures.push(("refused by no limit", grouped(all), each.join(", ")));
        }
        let mut out = String::new();
        for (what, value, note) in figures {
            let _ = write!(
                out,
                "<div><dt>{what}</dt><dd>{value} <small>{}</small></dd></div>",
                escaped(&note)
            );
        }
        format!("<dl class=\"figures\" id=\"figures\">{out}</dl>\n")
    }

    fn over_time(&self) -> String {
        let over_time = &self.report.over_time;
        if over_time.intervals.len() < 2 {
            return String::new();
        }
        let before = if self.compared {
            "<span><i class=\"key before\"></i>rejected before</span>"
        } else {
            ""
        };
        let legend = format!(
            "<p class=\"legend\"><span><i class=\"key allowed\"></i>not rejected</span>\
             <span><i class=\"key rejected\"></i>rejected</span>{before}\
             <span class=\"aside\">{} a bar, by the clocks of {}</span></p>",
            length(over_time.seconds),
            escaped(&self.times.zone())
        );
        let charts = format!(
            "{legend}\n<figure><figcaption>Requests</figcaption>{}</figure>\n\
             <figure><figcaption>Share rejected</figcaption>{}</figure>\n",
            plot::requests(over_time, self.times),
            plot::shares(over_time, self.times)
        );
        Self::section("Over time", "", &charts)
    }

    fn limits(&self) -> String {
        let Report { limits, gone, .. } = self.report;
        if limits.is_empty() && gone.is_empty() {
            let none = "<p class=\"soft\">The configuration has none.</p>";
            return Self::section("Limits", "", none);
        }
        let mut rows = String::new();
        for limit in limits {
            rows.push_str(&self.limit(limit));
        }
        for limit in gone {
            let _ = write!(
                rows,
                "<tr class=\"gone\">{}<td>gone</td>{}{}",
                name(&limit.limit),
                "<td></td>".repeat(3),
                self.before(Some(limit.rejected))
            );
            let _ = writeln!(rows, "{}</tr>", "<td></td>".repeat(4));
        }
        let columns = self.columns(
            &["limit", "rate", ">requests", ">rejected", ">share"],
            &[">alone", ">callers", ">rejected", "how near callers came"],
        );
        let note = "Alone: no other limit rejects them. How near: the most that each caller used of \
                    the limit, under 25% at the left, then 50%, 75%, 90% and more; who is rejected is \
                    hatched.";
        Self::section("Limits", note, &table("limits", &columns, &rows))
    }

    fn limit(&self, limit: &Limit) -> String {
        let mut notes = Vec::new();
        if limit.shadow {
            notes.push("shadow: rejects nobody, and says whom it would".to_owned());
        }
        if limit.banned > 0 {
            notes.push(format!("{} more of banned callers", grouped(limit.banned)));
        }
        if limit.delayed > 0 {
            let (delayed, most) = (grouped(limit.delayed), limit.longest_wait);
            notes.push(format!("{delayed} wait, {most:.1} s at most"));
        }
        let notes: String = notes
            .iter()
            .map(|note| format!("<span class=\"soft\">{}</span>", escaped(note)))
            .collect();
        format!(
            "<tr><td class=\"name\">{}{notes}</td><td>{}<span class=\"soft\">{}</span></td>\
             {}{}{}{}{}{}{}<td>{}</td></tr>\n",
            escaped(&limit.limit),
            escaped(&limit.rate),
            escaped(limit.algorithm),
            number(limit.requests),
            unwanted(limit.rejected),
            share_cell(limit.share),
            self.before(limit.baseline),
            number(limit.alone),
            number(limit.callers),
            unwanted(limit.rejected_callers),
            plot::pressure(limit)
        )
    }

    fn routes(&self) -> String {
        let mut rows = String::new();
        for route in &self.report.routes {
            let _ = writeln!(
                rows,
                "<tr>{}{}{}{}{}</tr>",
                name(route.route.as_deref().unwrap_or("(none)")),
                number(route.requests),
                unwanted(route.rejected),
                share_cell(route.share),
                self.before(route.baseline)
            );
        }
        let columns = self.columns(&["route", ">requests", ">rejected", ">share"], &[]);
        Self::section("Routes", "", &table("routes", &columns, &rows))
    }

    fn callers(&self) -> String {
        let Report { callers, rejected, hurt, relieved, .. } = self.report;
        if !self.compared {
            return self.callers_of("rejected", "Rejected callers", rejected, callers.rejected);
        }
        self.callers_of("hurt", "Rejected more often than before", hurt, callers.hurt)
            + &self.callers_of("relieved", "Rejected less often", relieved, callers.relieved)
    }

    fn callers_of(&self, id: &str, title: &str, list: &[Caller], all: u64) -> String {
        if list.is_empty() {
            return Self::section(title, "Nobody.", "");
        }
        let mut rows = String::new();
        for caller in list {
            let worst = match &caller.worst_minute {
                Some(worst) => format!(
                    "{}{}{}",
                    text(&self.times.minute(worst.at.0)),
                    number(worst.requests),
                    number(worst.rejected)
                ),
                None => "<td></td>".repeat(3),
            };
            let by = caller.limits.iter();
            let by: Vec<String> =
                by.map(|of| format!("{} {}", of.limit, grouped(of.rejected))).collect();
            let _ = writeln!(
                rows,
                "<tr>{}{}{}{}{}{worst}{}</tr>",
                name(&caller.caller),
                number(caller.requests),
                unwanted(caller.rejected),
                share_cell(caller.share),
                self.before(caller.baseline),
                name(&by.join(", "))
            );
        }
        let columns = self.columns(
            &["caller", ">requests", ">rejected", ">share"],
            &["worst minute", ">requests then", ">rejected then", "by"],
        );
        let note = format!("{} of {}.", list.len(), grouped(all));
        Self::section(title, &note, &table(id, &columns, &rows))
    }

    fn nearest(&self) -> String {
        if self.report.nearest.is_empty() {
            return String::new();
        }
        let mut rows = String::new();
        for near in &self.report.nearest {
            let _ = writeln!(
                rows,
                "<tr>{}{}{}{}{}<td><span class=\"meter\"><i style=\"width:{:.0}%\"></i></span></td>\
                 {}</tr>",
                name(&near.caller),
                name(&near.limit),
                number(near.used),
                number(near.capacity),
                share_cell(near.share),
                (near.share * 100.0).min(100.0),
                number(near.requests)
            );
        }
        let columns = ["caller", "limit", ">used at most", ">of", ">share", "", ">requests"];
        Self::section(
            "Nearest to a limit, and not rejected by it",
            "",
            &table("nearest", &columns, &rows),
        )
    }

    fn foot(&self) -> String {
        format!(
            "<footer class=\"soft\">sluice simulate {}. Replayed in virtual time by the code that \
             limits live traffic; {} read, {} of them unreadable.</footer>",
            self.report.sluice,
            counted(self.report.logs.lines, "line"),
            grouped(self.report.logs.unreadable)
        )
    }
}

fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_markup() {
        let hostile = "<script>alert('a' & \"b\")</script>\u{1b}";
        let expected =
            "&lt;script&gt;alert(&#39;a&#39; &amp; &quot;b&quot;)&lt;/script&gt;\u{fffd}";
        assert_eq!(escaped(hostile), expected);
    }
}
