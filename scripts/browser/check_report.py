"""The report of `sluice simulate --html`, opened from its file: what it shows is what `--json` says."""

import json
import subprocess
from pathlib import Path

from kit import check, equal, expect

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "calibrating"

CELLS = """(id) => [...document.querySelectorAll(`#${id} tbody tr`)].map((row) =>
    [...row.cells].map((cell) => cell.firstChild?.nodeType === 3 ? cell.firstChild.data : cell.textContent))"""


def simulate(lab, *arguments):
    """What is said to machines, and the page."""
    page = lab.folder / "report.html"
    command = [lab.binary, "simulate", *arguments, "access.log.gz", "--html", page, "--json"]
    done = subprocess.run(command, cwd=SAMPLE, capture_output=True, timeout=50)
    equal("how it ended", (done.returncode, done.stderr.decode()), (0, ""))
    return json.loads(done.stdout), page


def percent(share):
    """As figures.rs writes it."""
    value = share * 100
    if value in (0, 100):
        return f"{value:.0f}%"
    return "<0.01%" if value < 0.01 else f"{min(value, 0.99):.2f}%" if value < 1 else f"{min(value, 99.9):.1f}%"


def count(number):
    return f"{number:,}"


def opened(lab, page, theme="light", **how):
    return lab.chromium.open(page.as_uri(), theme=theme, **how)


def ready(tab):
    for _ in range(200):
        if tab.run("() => document.readyState === 'complete' && !!document.querySelector('footer')"):
            return
    expect(False, "the page is not complete")


@check()
def a_report_shows_what_is_said_to_machines(lab):
    report, page = simulate(lab, "-c", "enforced.yaml", "--baseline", "first.yaml", "--top", "7")
    with opened(lab, page) as tab:
        ready(tab)
        figures = tab.run("() => [...document.querySelectorAll('#figures div')].map((d) => d.innerText.split('\\n'))")
        requests, before = report["requests"], report["requests"]["baseline"]
        shown = {name: (value.strip(), note) for name, value, note in figures}
        equal("requests", shown["requests"][0], count(requests["all"]))
        equal("rejected", shown["rejected"], (count(requests["rejected"]), percent(requests["share"])))
        equal("rejected callers", shown["rejected callers"][0], count(report["callers"]["rejected"]))
        equal("rejected before", shown["rejected before"], (count(before["rejected"]), percent(before["share"])))
        equal("newly rejected", shown["newly rejected"][0], count(before["newly"]))
        equal("no longer rejected", shown["no longer rejected"][0], count(before["relieved"]))
        equal("exempt", shown["exempt"][0], count(requests["exempt"]))
        limits = [[limit["limit"], limit["rate"], count(limit["requests"]), count(limit["rejected"]), percent(limit["share"]),
                   count(limit["baseline"]), count(limit["alone"]), count(limit["callers"]), count(limit["rejected_callers"])]
                  for limit in report["limits"]]
        equal("limits", [row[:9] for row in tab.run(CELLS, "limits")], limits)
        routes = [[route["route"], count(route["requests"]), count(route["rejected"]), percent(route["share"]),
                   count(route["baseline"])] for route in report["routes"]]
        equal("routes", tab.run(CELLS, "routes"), routes)
        for which in ["hurt", "relieved"]:
            callers = [[caller["caller"], count(caller["requests"]), count(caller["rejected"]), percent(caller["share"]),
                        count(caller["baseline"])] for caller in report[which]]
            expect(callers, f"nobody is {which}")
            equal(which, [row[:5] for row in tab.run(CELLS, which)], callers)
        nearest = [[near["caller"], near["limit"], count(near["used"]), count(near["capacity"]), percent(near["share"])]
                   for near in report["nearest"]]
        equal("nearest", [row[:5] for row in tab.run(CELLS, "nearest")], nearest)
        equal("rows", len(nearest), 7)


@check()
def the_charts_of_a_report_are_its_figures(lab):
    report, page = simulate(lab, "-c", "first.yaml")
    intervals = report["over_time"]["intervals"]
    with opened(lab, page) as tab:
        ready(tab)
        hints = tab.run("() => [...document.querySelectorAll('figure')].map((f) => [...f.querySelectorAll('title')].map((t) => t.textContent))")
        equal("charts", len(hints), 2)
        for chart in hints:
            equal("bars", len(chart), len(intervals))
            for hint, during in zip(chart, intervals):
                told = f"{count(during['rejected'])} of {count(during['requests'])} rejected"
                expect(told in hint, f"{hint} does not say {told}")
        # Heights are in proportion: the tallest stack is that of the busiest interval.
        tallest = tab.run("""() => {
            const figure = document.querySelector("figure"), heights = {};
            for (const bar of figure.querySelectorAll("rect.allowed, rect.rejected")) {
                const x = bar.getAttribute("x");
                heights[x] = (heights[x] ?? 0) + Number(bar.getAttribute("height"));
            }
            const all = Object.entries(heights).sort((a, b) => a[0] - b[0]).map((entry) => entry[1]);
            return Math.max(...all) / all.reduce((a, b) => a + b);
        }""")
        busiest = max(during["requests"] for during in intervals) / sum(during["requests"] for during in intervals)
        expect(abs(tallest - busiest) < 0.01, f"the tallest bar is {tallest:.3f} of all, not {busiest:.3f}")


@check()
def a_report_needs_nothing_else_and_reads_well_in_light_and_dark(lab):
    _, page = simulate(lab, "-c", "enforced.yaml", "--baseline", "first.yaml")
    for theme, darker in [("light", False), ("dark", True)]:
        for width in [1280, 375]:
            with opened(lab, page, theme, width=width, height=900) as tab:
                ready(tab)
                equal("what it complains of", tab.complaints(), [])
                equal("what it asks for", [url for url in tab.requested() if not url.startswith("data:")], [page.as_uri()])
                equal("scripts", tab.run("() => document.scripts.length"), 0)
                ground, ink, wide = tab.run("""() => {
                    const style = getComputedStyle(document.body);
                    const light = (color) => color.match(/[0-9.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 3;
                    return [light(style.backgroundColor), light(style.color), document.documentElement.scrollWidth];
                }""")
                expect((ground < ink) == darker and abs(ground - ink) > 150, f"{theme}: {ink} on {ground}")
                expect(wide <= width, f"the page is {wide} wide in a window of {width}")
                tab.screenshot(lab.shots / f"report-{theme}-{width}.png", full=True)
