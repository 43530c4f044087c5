"""The dashboard as somebody sees it who reads, clicks and types."""

from kit import Failed, equal, eventually, expect

VISIBLE = "!!node && node.checkVisibility() && node.getClientRects().length > 0"


class Page:
    """A tab with the dashboard. As a context it is closed, and must not have complained of anything."""

    def __init__(self, tab):
        self.tab = tab
        self.wait_drawn()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        complaints, elsewhere = self.tab.complaints(), self.elsewhere()
        self.tab.__exit__()
        if kind is None:
            equal("what the page complains of", complaints, [])
            equal("what was asked of other origins", elsewhere, [])

    def wait_drawn(self):
        self.wait("the page is drawn", "() => !globalThis.old && document.querySelectorAll('#routes tbody tr').length > 0")

    def reload(self):
        self.run("() => { globalThis.old = true; }")
        self.tab.call("Page.reload")
        self.wait_drawn()

    def elsewhere(self):
        """What the page asked of others than where it came from; data: asks nobody."""
        urls = [url for url in self.tab.requested() if not url.startswith("data:")]
        own = urls[0].split("/")[2].split("@")[-1]
        return [url for url in urls if url.split("/")[2].split("@")[-1] != own]

    def run(self, script, *arguments):
        return self.tab.run(script, *arguments)

    def wait(self, what, script, *arguments, seconds=10):
        """Waits until a JavaScript function returns something, and returns it."""
        return eventually(what, lambda: self.run(script, *arguments), seconds)

    def text(self, selector):
        return self.run("(selector) => document.querySelector(selector)?.innerText ?? ''", selector)

    def visible(self, selector):
        return self.run(f"(selector) => {{ const node = document.querySelector(selector); return {VISIBLE}; }}", selector)

    def wait_visible(self, selector, seconds=10):
        eventually(f"{selector} is shown", lambda: self.visible(selector), seconds)

    def wait_gone(self, selector, seconds=10):
        eventually(f"{selector} is gone", lambda: not self.visible(selector), seconds)

    def wait_text(self, selector, part, seconds=10):
        """Waits until an element's text contains a part; what it says instead is told otherwise."""
        try:
            eventually(selector, lambda: part in self.text(selector), seconds)
        except Failed:
            raise Failed(f"{selector} says {self.text(selector)[:300]!r}, which lacks {part!r}") from None

    def wait_cell(self, table, key, head, wanted, seconds=10):
        """Waits until a cell of a table says something; rows are known by their key, cells by their column's head."""
        def seen():
            return self.run("""(table, key, head) => {
                const row = [...document.querySelectorAll(`${table} tbody tr`)].find((row) => row.dataset.key.split(" ")[0] === key);
                return row && [...row.children].find((cell) => cell.dataset.label === head)?.innerText;
            }""", table, key, head)
        try:
            eventually(key, lambda: seen() == wanted, seconds)
        except Failed:
            raise Failed(f"{head} of {key} in {table} is {seen()!r}, not {wanted!r}") from None

    def click(self, selector, text=None, within=None):
        """Clicks with the mouse, where the thing is; what something else covers cannot be clicked."""
        place = self.wait(f"{text or selector} to click", """(selector, text, within) => {
            const nodes = [...(within ? document.querySelector(within) : document).querySelectorAll(selector)];
            const node = nodes.find((node) => node.checkVisibility() && !node.disabled && (text == null || node.innerText.trim() === text));
            if (!node) return null;
            node.scrollIntoView({ block: "center" });
            const { left, top, width, height } = node.getBoundingClientRect(), x = left + width / 2, y = top + height / 2;
            const hit = document.elementFromPoint(x, y);
            return hit && (node === hit || node.contains(hit) || hit.contains(node)) ? [x, y] : null;
        }""", selector, text, within)
        self.tab.click_at(*place)

    def fill(self, selector, text):
        """Replaces what stands in a field by typing."""
        self.run("(selector) => { const field = document.querySelector(selector); field.focus(); field.select(); }", selector)
        self.tab.type(text)

    def choose(self, selector, value):
        self.run("""(selector, value) => { const field = document.querySelector(selector); field.value = value;
            field.dispatchEvent(new Event("input", { bubbles: true })); }""", selector, value)

    def look_up(self, who):
        self.fill("#search input", who)
        self.tab.press("Enter", text="\r")
        self.wait("the caller is shown", """() => !document.querySelector("#caller").hidden
            && !document.querySelector("#caller .about").innerText.includes("looking")""")

    def confirm(self, wanted_words=()):
        """Reads what the dialog says will happen, and agrees."""
        self.wait_visible("#dialog")
        says = self.text("#dialog .says")
        for word in wanted_words:
            expect(word in says, f"the dialog says {says!r}, which lacks {word!r}")
        self.click("#dialog .confirm")
        self.wait_gone("#dialog")

    def told(self, part):
        self.wait_text("#message", part)
