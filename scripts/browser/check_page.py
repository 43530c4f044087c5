"""The page as such: its policy, its looks, its keyboard. Any dashboard will do, whoever serves it."""

from kit import check, equal, expect

SIZES = [(1280, 900), (375, 812)]


@check("page")
def nothing_is_complained_of_and_nothing_asked_elsewhere(lab):
    with lab.open() as page:
        page.wait_text("#facts", "generation")
        # By then every part of it has been drawn, and filled again.
        page.wait("three answers", "() => seen.answers.length > 2")


@check("page")
def its_policy_lets_only_its_own_script_run(lab):
    with lab.open().tab as tab:
        ran = tab.run("""() => {
            const script = document.createElement("script");
            script.textContent = "globalThis.intruder = true";
            document.body.append(script);
            return globalThis.intruder === true;
        }""")
        expect(not ran, "a script that was put into the page ran")


@check("page")
def polls_about_three_times_a_second_one_at_a_time(lab):
    with lab.open() as page:
        most, took = page.run("""() => new Promise((done) => {
            const old = globalThis.fetch, began = performance.now();
            let now = 0, most = 0, asked = 0;
            globalThis.fetch = async (...given) => {
                if (!String(given[0]).endsWith("/live")) return old(...given);
                if (++asked === 10) {
                    globalThis.fetch = old;
                    done([most, performance.now() - began]);
                }
                most = Math.max(most, ++now);
                try { return await old(...given); } finally { now--; }
            };
        })""")
        equal("polls at the same time", most, 1)
        expect(2500 <= took <= 6000, f"ten polls took {took:.0f} ms")


@check("page")
def percentiles_are_interpolated_from_differences(lab):
    with lab.open() as page:
        seen = page.run("""() => {
            const now = { buckets: [[0.001, 150], [0.00125, 100], [0.01, 3]] }, before = { buckets: [[0.001, 150]] };
            const grown = between(now, before);
            return [grown, quantile(grown, 0.5), quantile([[0.001, 100], [0.00125, 100]], 0.75), quantile([], 0.5)];
        }""")
        equal("what grew", seen[0], [[0.00125, 100], [0.01, 3]])
        expect(0.001 < seen[1] < 0.00125, f"p50 is {seen[1]}")
        expect(abs(seen[2] - 0.001125) < 1e-9, f"p75 is {seen[2]}")
        equal("p50 of nothing", seen[3], None)


@check("page")
def numbers_are_written_as_people_read_them(lab):
    with lab.open() as page:
        rates = page.run("() => [0, 0.333, 9.96, 47.2, 999.6, 1234, 34000, 5.6e6].map(few)")
        equal("rates", rates, ["0", "0.3", "10", "47", "1.0k", "1.2k", "34k", "5.6M"])
        times = page.run("() => [0.00034, 0.0018, 0.012, 2.5, 0.0000042].map(took)")
        equal("times", times, ["340 µs", "1.8 ms", "12 ms", "2.5 s", "4.2 µs"])
        spans = page.run("() => [0, 12, 99, 130, 3600, 7500, 90061].map(span)")
        equal("spans", spans, ["0 s", "12 s", "99 s", "2 min", "1 h", "2 h 5 min", "1 d 1 h"])


@check("page")
def fits_a_phone_and_a_desk_in_light_and_dark(lab):
    for width, height in SIZES:
        for theme in ("light", "dark"):
            with lab.open(width=width, height=height, theme=theme) as page:
                page.wait("rates are known", "() => document.querySelector('#requests').innerText.trim()[0] !== '–'")
                page.tab.screenshot(lab.shots / f"dashboard-{width}-{theme}.png")
                wide = page.run("() => document.documentElement.scrollWidth")
                expect(wide <= width, f"at {width} px the page is {wide} px wide")
                ground = page.run("() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
                expect((ground[0] > 128) == (theme == "light"), f"{theme} is {ground}")


@check("page")
def texts_have_enough_contrast_in_both_themes(lab):
    """WCAG AA: 4.5 to 1 for all text that is visible, 3 to 1 for large."""
    for theme in ("light", "dark"):
        with lab.open(theme=theme) as page:
            page.wait_text("#facts", "generation")
            poor = page.run(CONTRAST)
            equal(f"texts too faint in {theme}", poor, [])


@check("page")
def a_theme_that_was_chosen_is_remembered(lab):
    with lab.open(theme="light") as page:
        for _ in range(2):
            page.click("#theme")
        equal("theme", page.run("() => document.documentElement.dataset.theme"), "dark")
        page.reload()
        equal("theme after a reload", page.run("() => document.documentElement.dataset.theme"), "dark")


@check("page")
def everything_that_can_be_operated_has_a_name(lab):
    with lab.open() as page:
        page.wait_text("#facts", "generation")
        page.tab.call("Accessibility.enable")
        nodes = page.tab.call("Accessibility.getFullAXTree")["nodes"]
        kinds = {"button", "link", "searchbox", "textbox", "radio", "slider", "meter", "combobox", "dialog", "table"}
        nameless = [node["role"]["value"] for node in nodes if not node.get("ignored")
                    and node["role"]["value"] in kinds and not node.get("name", {}).get("value")]
        equal("what has no name", nameless, [])


@check("page")
def the_keyboard_alone_is_enough(lab):
    with lab.open() as page:
        page.tab.press("/", code="Slash", text="/")
        page.wait("the search has the focus", "() => document.activeElement.matches('#search input')")
        page.tab.type("user:keyboard")
        page.tab.press("Enter", text="\r")
        page.wait_visible("#caller")
        page.wait("the answer", "() => !document.querySelector('[data-act=ban]').disabled")
        page.run("() => document.querySelector('[data-act=ban]').focus()")
        page.tab.press("Enter", text="\r")
        page.wait_visible("#dialog")
        page.wait("a field has the focus", "() => document.activeElement.name === 'for'")
        ring = page.run("() => getComputedStyle(document.activeElement).outlineStyle")
        equal("the focus' outline", ring, "solid")
        page.tab.press("Escape")
        page.wait_gone("#dialog")
        page.wait("focus is back", "() => document.activeElement.dataset.act === 'ban'")
        page.run("() => document.querySelector('.plot').focus()")
        page.tab.press("ArrowLeft")
        page.wait_text(".cursor", "s ago")


@check("page")
def a_dialog_says_what_is_wrong_and_does_nothing(lab):
    with lab.open("#caller=user:dialog") as page:
        page.click("[data-act=ban]")
        page.wait_text("#dialog .says", "Every request of user:dialog gets 429")
        page.fill("#dialog [name=for]", "soon")
        page.wait_text("#dialog .says", "Say how long")
        expect(page.run("() => document.querySelector('#dialog .confirm').disabled"), "it can be confirmed all the same")
        page.click("#dialog .cancel")
        page.wait_gone("#dialog")


@check("page")
def the_address_keeps_the_caller(lab):
    with lab.open() as page:
        page.look_up("user:somebody else")
        equal("the hash", page.run("() => location.hash"), "#caller=user:somebody%20else")
        page.reload()
        page.wait_text("#caller-name", "user:somebody else")
        page.click("[data-act=close]")
        page.wait_gone("#caller")
        equal("the hash", page.run("() => location.hash"), "")
        page.run("() => history.back()")
        page.wait_text("#caller-name", "user:somebody else")


@check("page")
def the_chart_tells_its_values(lab):
    with lab.open() as page:
        page.wait("a line", "() => document.querySelector('.allowed-line').getAttribute('d')?.includes('L')")
        x, y = page.run("() => { const box = document.querySelector('.plot').getBoundingClientRect(); return [box.right - 2, box.top + 50]; }")
        page.tab.hover(x, y)
        page.wait_text(".cursor", "/s allowed")


@check("page")
def pauses_while_it_is_hidden(lab):
    with lab.open() as page:
        page.run("""() => { Object.defineProperty(document, "hidden", { value: true, configurable: true });
            document.dispatchEvent(new Event("visibilitychange")); }""")
        # That nothing comes can only be seen by waiting for it: three polls' time.
        page.wait("polling has stopped", """async () => {
            const before = latest().now;
            await new Promise((done) => setTimeout(done, 1000));
            return latest().now === before;
        }""")
        page.run("""() => { delete document.hidden; document.dispatchEvent(new Event("visibilitychange")); }""")
        page.wait("polling goes on", "(before) => latest().now > before", page.run("() => latest().now"))


@check("page")
def the_configuration_is_shown_on_demand(lab):
    with lab.open() as page:
        equal("asked before", [url for url in page.tab.requested() if url.endswith("/config")], [])
        page.click("#config summary")
        page.wait_text("#config pre", "routes")
        page.wait_text("#config p", "secrets are masked")


@check("page")
def a_thousand_routes_do_not_freeze_it(lab):
    """Drawn by the page itself, from an answer that is made up: the real gateway's with 1,000 routes and limits."""
    with lab.open() as page:
        longest, rows = page.run("""() => {
            const live = structuredClone({ ...latest(), by: undefined });
            const of = (list, name) => Array.from({ length: 1000 }, (_, number) => ({ ...list[0], name: `${name}-${number}` }));
            Object.assign(live, { routes: of(live.routes, "route"), limits: of(live.limits, "limit") });
            let longest = 0;
            for (let round = 1; round <= 5; round++) {
                const next = structuredClone(live);
                next.now += round / 3;
                const began = performance.now();
                heard(next);
                longest = Math.max(longest, performance.now() - began);
            }
            return [longest, document.querySelectorAll("#routes tbody tr").length];
        }""")
        expect(rows <= 25, f"{rows} rows are shown")
        expect(longest < 150, f"drawing took {longest:.0f} ms")
        page.fill("#routes input", "route-77")
        page.wait("only those that match", """() => [...document.querySelectorAll("#routes tbody tr")].every((row) => row.dataset.key.includes("route-77"))""")


# Every element with text of its own: its colour against the nearest ground that is not transparent.
CONTRAST = """() => {
    const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        paint.clearRect(0, 0, 1, 1);
        paint.fillStyle = colour;
        paint.fillRect(0, 0, 1, 1);
        return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const ground = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const colour = rgba(getComputedStyle(at).backgroundColor);
            if (colour[3] > 250) return colour;
        }
        return rgba(getComputedStyle(document.body).backgroundColor);
    };
    const light = (colour) => colour.slice(0, 3).map((part) => part / 255)
        .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((all, part, place) => all + part * [0.2126, 0.7152, 0.0722][place], 0);
    const poor = [];
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
        if (!own || !node.checkVisibility() || node.closest("script, :disabled, [aria-hidden=true]")) continue;
        const style = getComputedStyle(node), [a, b] = [light(rgba(style.color)), light(ground(node))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) poor.push(`${node.textContent.trim().slice(0, 30)}: ${contrast.toFixed(2)}`);
    }
    return poor;
}"""
