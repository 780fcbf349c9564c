"""A headless Chromium that the tests steer over its DevTools protocol."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
FLAGS = (
    *("--headless=new", "--remote-debugging-port=0", "--no-first-run", "--no-default-browser-check", "--disable-gpu"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--disable-features=Translate,OptimizationHints,MediaRouter", "--no-pings"),
    "--window-size=1280,900",
)


def find() -> str | None:
    """The browser of this machine; FEDVEIL_BROWSER names another."""
    return os.environ.get("FEDVEIL_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser; every page is a tab of its own."""

    def __init__(self, program: str) -> None:
        self.open_things = ExitStack()
        self.home = tempfile.mkdtemp(prefix="fedveil-browser-")
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, *FLAGS, *root, f"--user-data-dir={self.home}", "about:blank"]
        self.log = (Path(self.home) / "log").open("wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, start_new_session=True)
        port = Path(self.home) / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not (port.exists() and port.read_text().count("\n") >= 1):
            if self.process.poll() is not None or time.monotonic() > end:
                said = (Path(self.home) / "log").read_text(errors="replace")[-2000:]
                self.close()
                raise RuntimeError(f"{program} did not start: {said}")
            time.sleep(0.02)
        number, path = port.read_text().split("\n")[:2]
        made = connect(f"ws://127.0.0.1:{number}{path}", max_size=None, compression=None)
        self.socket = self.open_things.enter_context(made)
        self.numbers = itertools.count(1)
        self.pages: dict[str, Page] = {}

    def send(self, method: str, session: str | None = None, **params):
        """A command and its answer; events that arrive before it go to their pages."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        self.socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = self.receive(60)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def receive(self, timeout: float):
        message = json.loads(self.socket.recv(timeout))
        if "method" in message and message.get("sessionId") in self.pages:
            self.pages[message["sessionId"]].note(message["method"], message["params"])
        return message

    def open(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        """A page that has loaded, with everything it says and asks for on record from the first moment."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        page.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        page.goto(address)
        return page

    def close(self) -> None:
        """End the browser and everything it started."""
        if hasattr(self, "socket"):
            with suppress(Exception):  # it may be gone already
                self.socket.send(json.dumps({"id": 0, "method": "Browser.close", "params": {}}))
                self.process.wait(5)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.open_things.close()
        self.log.close()
        shutil.rmtree(self.home, ignore_errors=True)


class Page:
    """A tab: what it logged, what it asked the network for, and a way to run scripts in it."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.events: list[str] = []

    def send(self, method: str, **params):
        return self.browser.send(method, self.session, **params)

    def note(self, method: str, params) -> None:
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(params["entry"])[:500])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def goto(self, address: str) -> None:
        self.events.clear()
        self.send("Page.navigate", url=address)
        end = time.monotonic() + 60
        while "Page.loadEventFired" not in self.events:
            self.browser.receive(max(0.01, end - time.monotonic()))

    def run(self, script: str):
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(json.dumps(found["exceptionDetails"])[:1000])
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60.0):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while (value := self.run(script)) in (None, False, 0, ""):  # an element comes as {}, which is something
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)
        return value

    def key(self, name: str) -> None:
        """Press a key."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        text = {"text": "\r"} if name == "Enter" else {"text": " "} if name == " " else {}
        common = {"key": name, "windowsVirtualKeyCode": codes[name]}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self.browser.send("Target.closeTarget", targetId=self.target)
