"""Bad days: a file with a mistake, a gateway that is away, and one that comes back as another process."""

from kit import check, equal, expect
from lab import held_ports


@check()
def a_failed_reload_is_shown_until_a_good_one(lab):
    with lab.open() as page:
        expect(not page.visible("#reload-failed"), "a failure is shown before there is one")
        try:
            lab.write(lambda text: text.replace("rate: 5/hour", "rat: 5/hour"))
            page.wait_visible("#reload-failed")
            page.wait_text("#reload-failed pre", "did you mean 'rate'?")
            page.wait_text("#reload-failed h2", "stays in force")
            page.tab.screenshot(lab.shots / "failed-reload.png")
            before = page.run("() => latest().config.generation")
            page.click("[popovertarget=menu]")
            page.click("#reload")
            page.click("#dialog .confirm")
            page.wait_text("#dialog .wrong", "rat")
            page.click("#dialog .cancel")
        finally:
            lab.write(lambda text: text.replace("rate: 5/hour", "rate: 5/1h"))
        page.wait_gone("#reload-failed")
        page.wait("the next generation", "(before) => latest().config.generation > before", before)
        page.wait_text(".marks", "generation")


@check()
def an_endpoint_that_is_gone_is_shown(lab):
    """The upstream's only one may stay in service; what it fails is shown either way."""
    gone = held_ports(1)[0]
    try:
        lab.write(lambda text: text.replace("upstreams:\n", f"upstreams:\n  gone: http://127.0.0.1:{gone}\n")
                  .replace("routes:\n", "routes:\n  - { name: gone, path: /gone, upstream: gone }\n"))
        with lab.open() as page:
            page.wait_text("#upstreams", f"127.0.0.1:{gone}", seconds=15)
            equal("the answers", set(lab.send("/gone", 5, ip="198.51.100.30")), {502})
            page.wait_text("#upstreams", "failures: unreachable")
            page.wait_cell("#routes", "gone", "requests", "5")
    finally:
        lab.write()


@check(seconds=90)
def survives_the_gateways_restart(lab):
    with lab.open() as page:
        lab.send("/anything", 20, ip="198.51.100.31")
        page.wait("they are counted", "() => all(latest().by.routes.get('rest').statuses) >= 20")
        started = page.run("() => latest().started")
        equal("marks before", page.run("() => seen.marks.map((mark) => mark.text)"), [])
        lab.stop_gateway()
        page.wait_text("#state", "no answer since", seconds=15)
        page.wait_text("#silence", "No answer from the gateway since")
        page.tab.screenshot(lab.shots / "no-answer.png")
        lab.run_gateway()
        page.wait_text("#state", "ready", seconds=15)
        page.wait_gone("#silence")
        page.wait("it is another process", "(started) => latest().started > started + 1", started)
        page.wait_text(".marks", "restarted")
        lab.send("/anything", 7, ip="198.51.100.32")
        page.wait("counted from nought", "() => all(latest().by.routes.get('rest').statuses) === 7")
        page.wait_cell("#routes", "rest", "requests", "7")


@check("page")
def a_wrong_token_is_told_and_not_asked_about_for_ever(lab):
    """The gateway's answer is made up, so that this works whatever token it has."""
    with lab.open() as page:
        page.run("""() => {
            globalThis.real = globalThis.fetch;
            globalThis.asked = 0;
            globalThis.fetch = async (url) => {
                if (String(url).endsWith("/live")) asked++;
                return new Response('{"error": "a token is needed"}', { status: 401 });
            };
        }""")
        page.wait_text("#silence", "wants a token")
        # For as long as it would have asked several times.
        asked = page.run("""async () => {
            await new Promise((done) => setTimeout(done, 1500));
            globalThis.fetch = real;
            return asked;
        }""")
        equal("how often it asked", asked, 1)
        page.click("#silence button", "Try again")
        page.wait_gone("#silence")


@check("page")
def too_many_wrong_tokens_are_waited_out(lab):
    with lab.open() as page:
        page.run("""() => {
            const old = globalThis.fetch;
            globalThis.fetch = async () => {
                globalThis.fetch = old;
                return new Response('{"error": "too many"}', { status: 429, headers: { "Retry-After": "2" } });
            };
        }""")
        page.wait_text("#silence", "Too many wrong tokens")
        page.wait_gone("#silence")
