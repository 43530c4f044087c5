"""What an operator does in the page takes effect on real requests."""

from kit import check, equal, eventually, expect


@check()
def a_caller_that_is_looked_up_shows_its_limits(lab):
    lab.send("/login", 2, ip="198.51.100.20")
    with lab.open() as page:
        page.look_up("198.51.100.20")
        page.wait_text("#caller-name", "ip:198.51.100.20")
        page.wait_cell("#caller", "login-attempts", "used", "2 of 5")
        page.wait_cell("#caller", "login-attempts", "remaining", "3")
        lab.send("/login", 4, ip="198.51.100.20")
        page.wait_cell("#caller", "login-attempts", "used", "5 of 5")
        page.wait_text("#caller table", "rejects, again in")
        page.tab.screenshot(lab.shots / "caller.png")


@check()
def a_ban_takes_effect_and_lifting_it_too(lab):
    with lab.open("#caller=ip:198.51.100.21") as page:
        equal("before", lab.send("/anything", ip="198.51.100.21"), [200])
        page.click("[data-act=ban]")
        page.fill("#dialog [name=for]", "10m")
        page.fill("#dialog [name=reason]", "a check")
        page.confirm(["198.51.100.21", "429", "10 min"])
        page.told("is banned for 10 min")
        equal("while banned", lab.send("/anything", ip="198.51.100.21"), [429])
        equal("others", lab.send("/anything", ip="198.51.100.22"), [200])
        page.wait_text("#bans", "198.51.100.21")
        page.wait_text("#bans", "a check")
        page.wait_text("#caller .badges", "banned")
        page.click("#bans button", "Lift…")
        page.confirm()
        page.told("is lifted")
        equal("after", lab.send("/anything", ip="198.51.100.21"), [200])
        page.wait_text("#overrides", "nobody is banned")


@check()
def a_grant_doubles_what_passes(lab):
    equal("before", lab.send("/login", 6, ip="198.51.100.23"), [200] * 5 + [429])
    with lab.open("#caller=ip:198.51.100.23") as page:
        page.wait_text("#caller table", "rejects")
        page.click("[data-act=grant]")
        page.fill("#dialog [name=factor]", "2")
        page.choose("#dialog [name=limit]", "login-attempts")
        page.confirm(["2 times", "login-attempts"])
        page.told("is granted ×2")
        page.wait_text("#grants", "198.51.100.23")
        equal("with the grant", lab.send("/login", 6, ip="198.51.100.23"), [200] * 5 + [429])
        page.wait_text("#caller table", "×2")
        page.click("#grants button", "Withdraw…")
        page.confirm()
        page.told("is withdrawn")
        page.wait_text("#overrides", "nobody is granted more")
        equal("without it", lab.send("/login", ip="198.51.100.23"), [429])


@check()
def a_reset_lets_a_caller_begin_anew(lab):
    equal("before", lab.send("/login", 6, ip="198.51.100.24"), [200] * 5 + [429])
    with lab.open("#caller=ip:198.51.100.24") as page:
        page.wait_cell("#caller", "login-attempts", "remaining", "0")
        page.click("button", "Reset…", within="#caller table")
        page.confirm(["login-attempts"])
        page.told("Begun anew")
        page.wait_cell("#caller", "login-attempts", "remaining", "5")
        equal("after", lab.send("/login", 6, ip="198.51.100.24"), [200] * 5 + [429])
        page.click("[data-act=reset]")
        page.confirm()
        page.told("Begun anew")
        equal("after all", lab.send("/login", ip="198.51.100.24"), [200])


@check()
def the_bare_name_of_a_key_is_found_and_acted_on(lab):
    with lab.open() as page:
        page.look_up("acme")
        page.wait_text("#caller-name", "api_key:acme")
        page.wait_text("#caller .badges", "plan pro")
        lab.send("/search", 4, key="acme")
        page.wait_cell("#caller", "search-rate", "used", "4 of 12")
        page.click("button", "Reset…", within="#caller tr[data-key^=search-rate]")
        page.confirm(["api_key:acme", "search-rate"])
        page.wait_cell("#caller", "search-rate", "used", "0 of 12")


@check()
def an_act_that_is_refused_says_why(lab):
    with lab.open("#caller=ip:198.51.100.25") as page:
        page.click("[data-act=ban]")
        # Too long for any gateway: the page itself has nothing against it.
        page.fill("#dialog [name=for]", "99999999999999999d")
        page.click("#dialog .confirm")
        page.wait("the reason", "() => document.querySelector('#dialog .wrong').innerText.length > 10")
        expect(page.visible("#dialog"), "the dialog is gone")
        page.tab.press("Escape")
        page.wait_gone("#dialog")


@check()
def draining_and_back(lab):
    with lab.open() as page:
        page.click("[popovertarget=menu]")
        page.click("#drain")
        page.confirm(["/readyz says 503"])
        page.wait_text("#state", "draining")
        equal("requests are served", lab.send("/anything", ip="198.51.100.26"), [200])
        page.click("[popovertarget=menu]")
        page.click("#drain", "Stop draining…")
        page.confirm()
        page.wait_text("#state", "ready")


@check()
def reload_now(lab):
    with lab.open() as page:
        before = page.run("() => latest().config.generation")
        page.click("[popovertarget=menu]")
        page.click("#reload")
        page.confirm(["gateway.yaml"])
        page.told("is in force")
        eventually("another generation", lambda: page.run("() => latest().config.generation") >= before)
