"""A headless Chromium over the DevTools protocol: as much of it as the checks need."""

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path

from kit import Failed, eventually, start, stop
from websockets.sync.client import connect

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-proxy-server", "--remote-debugging-port=0"]


class Chromium:
    """The browser. As a context it is stopped again, with all that it started."""

    def __init__(self, folder):
        self.profile = Path(folder) / "profile"

    def __enter__(self):
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if not program:
            raise SystemExit("this needs Chromium; install it, for example: sudo apt-get install chromium")
        self.process = start([program, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port, path = eventually("Chromium listens", self.address, 30)
            # Events are read only while a call waits: no ping may go unanswered, and no queue be full meanwhile.
            self.socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, max_queue=None, ping_interval=None, proxy=None)
        except BaseException:
            stop(self.process)
            raise
        self.sent, self.events = 0, []
        return self

    def __exit__(self, *_):
        self.socket.close()
        stop(self.process)

    def address(self):
        """Where it listens: it writes the port, and then the path."""
        file = self.profile / "DevToolsActivePort"
        lines = file.read_text().split() if file.exists() else []
        return lines if len(lines) == 2 else None

    def call(self, method, session=None, **parameters):
        """Calls a method and returns its result. Events that come before it are kept."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        end = time.monotonic() + 20
        while time.monotonic() < end:
            answer = json.loads(self.socket.recv(timeout=20))
            if answer.get("id") != self.sent:
                self.events.append(answer)
            elif "error" in answer:
                raise Failed(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]
        raise Failed(f"{method}: no answer")

    def open(self, url, **how):
        return Tab(self, url, **how)


class Tab:
    """A page of its own, in a profile of its own. As a context it is closed again."""

    def __init__(self, browser, url, headers=None, width=1280, height=900, theme="light"):
        self.browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        if headers:
            self.call("Network.setExtraHTTPHeaders", headers=headers)
        self.look(width, height, theme)
        self.go(url)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def go(self, url):
        self.call("Page.navigate", url=url)

    def look(self, width, height, theme):
        """The size of the window, and what the system says of light and dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def run(self, script, *arguments):
        """Calls a JavaScript function with arguments, and returns what it returns."""
        given = ", ".join(json.dumps(argument) for argument in arguments)
        done = self.call("Runtime.evaluate", expression=f"({script})({given})", returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise Failed(done["exceptionDetails"]["exception"].get("description", "a script failed"))
        return done["result"].get("value")

    def press(self, key, code=None, text=None):
        """A key, down and up. What types something has a `text`."""
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, **typed,
                      windowsVirtualKeyCode={"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "/": 191}.get(key, 0))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click_at(self, x, y):
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file, full=False):
        done = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        Path(file).write_bytes(base64.b64decode(done["data"]))

    def events(self, method):
        return [event["params"] for event in self.browser.events
                if event.get("sessionId") == self.session and event["method"] == method]

    def requested(self):
        """Every URL that the page asked for."""
        return [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]

    def complaints(self):
        """Exceptions, what the console was told, and what the browser itself complains of.
        That a request failed is not for the page to prevent: the gateway may be away, or refuse an act."""
        said = [event["exceptionDetails"].get("exception", {}).get("description", event["exceptionDetails"]["text"])
                for event in self.events("Runtime.exceptionThrown")]
        said += [" ".join(str(part.get("value", part.get("description"))) for part in event["args"])
                 for event in self.events("Runtime.consoleAPICalled") if event["type"] in ("error", "warning", "assert")]
        said += [event["entry"]["text"] for event in self.events("Log.entryAdded")
                 if event["entry"]["level"] in ("error", "warning") and event["entry"]["source"] != "network"]
        return said
