"""What was sent is what is shown. Each check has callers of its own."""

from base64 import b64encode

from kit import check, equal, expect

TOKEN = "a-token-of-the-browser-checks"
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@check()
def requests_are_shown_by_route_limit_and_caller(lab):
    with lab.open() as page:
        before = page.run("() => Object.fromEntries(latest().routes.map((route) => [route.name, all(route.statuses)]))")
        rejected = page.run("() => latest().by.limits.get('login-attempts').decisions.rejected")
        equal("the answers", lab.send("/login", 12, ip="198.51.100.1"), [200] * 5 + [429] * 7)
        equal("the answers", lab.send("/anything", 30, ip="198.51.100.1"), [200] * 30)
        page.wait_cell("#routes", "login", "requests", str(before["login"] + 12))
        page.wait_cell("#routes", "rest", "requests", str(before["rest"] + 30))
        page.wait_cell("#limits", "login-attempts", "rejected", str(rejected + 7))
        page.wait_text("#busiest", "198.51.100.1")
        page.wait_text("#most-rejected", "198.51.100.1")
        statuses = page.text("#routes tr[data-key=login] .statuses")
        expect("429" in statuses and "200" in statuses, f"statuses are {statuses!r}")


@check()
def the_headline_and_the_chart_move_while_there_is_traffic(lab):
    with lab.open() as page:
        page.wait("two answers", "() => seen.answers.length > 1")
        lab.send("/anything", 60, ip="198.51.100.2")
        page.wait("requests a second", "() => parseFloat(document.querySelector('#requests').innerText) > 5")
        page.wait("a latency", "() => /\\d (µs|ms|s)/.test(document.querySelector('#latency [data-key=request]').innerText)")
        page.wait("the upstream's rate", "() => parseFloat(document.querySelector('#upstreams .aside').innerText) > 5")
        page.wait("the chart rises", "() => [...seen.bins.values()].some((bin) => bin.allowed > 10)")
        page.wait("rates fall to nought again", """() => ["#requests", "#upstreams .aside"].every((each) =>
            parseFloat(document.querySelector(each).innerText) === 0)""")


@check()
def a_shadow_limit_is_marked_and_says_what_it_would_reject(lab):
    with lab.open() as page:
        lab.send("/watched", 9, ip="198.51.100.3")
        page.wait("six would have been rejected", "() => latest().by.limits.get('watched-shadow').decisions.shadow_rejected >= 6")
        page.wait_text("#limits tr[data-key=watched-shadow]", "shadow")
        page.wait_cell("#limits", "watched-shadow", "rejected", "0")


@check()
def a_limit_by_plan_is_split_by_plan(lab):
    with lab.open() as page:
        lab.send("/search", 3, key="initech")
        page.wait_text("#limits tr[data-key=search-rate]", "plan free")


@check()
def a_caller_named_in_html_is_shown_as_text(lab):
    equal("the answers", lab.send("/anything", 40, ip="198.51.100.4", user=HOSTILE), [200] * 40)
    with lab.open() as page:
        page.click("#callers .tabs label", "users")
        page.wait_text("#busiest", HOSTILE)
        page.click("#busiest button", HOSTILE)
        page.wait_text("#caller-name", f"user:{HOSTILE}")
        page.wait_text("#caller table", "per-user")
        page.click("[data-act=ban]")
        page.fill("#dialog [name=reason]", HOSTILE)
        page.confirm([HOSTILE])
        page.wait_text("#bans", HOSTILE)
        equal("pictures in the page", page.run("() => document.querySelectorAll('img').length"), 0)
        expect("owned" not in page.run("() => document.title"), "the caller's name ran as a script")
        page.click("#bans button", "Lift…")
        page.confirm()
        page.told("is lifted")


@check()
def a_caller_that_is_clicked_is_looked_up(lab):
    lab.send("/search", 2, key="globex")
    with lab.open() as page:
        page.click("#callers .tabs label", "API keys")
        page.click("#busiest button", "globex")
        page.wait_text("#caller-name", "api_key:globex")
        page.wait_text("#caller table", "search-rate")
        equal("the search", page.run("() => document.querySelector('#search input').value"), "api_key:globex")


@check()
def works_with_a_token_through_basic_credentials(lab):
    with lab.restarted(token=TOKEN):
        credentials = b64encode(f"operator:{TOKEN}".encode()).decode()
        with lab.open(headers={"Authorization": f"Basic {credentials}"}) as page:
            page.wait_text("#state", "ready")
        # As a browser does it by itself once it has asked for them.
        with lab.open(credentials=f"operator:{TOKEN}@") as page:
            page.wait_text("#state", "ready")
            page.look_up("user:ada")
            page.wait_text("#caller table", "per-user")
