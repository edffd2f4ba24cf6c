"""A Chromium for tests: started headless, driven over its own protocol, so that no driver has to be installed."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from websockets.sync.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from websockets.sync.client import ClientConnection

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 180.0
_PR_SET_PDEATHSIG = 1
_LARGEST_ANSWER = 64 << 20


def found() -> str | None:
    """Return the Chromium of this machine, None when there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def page(folder: Path, url: str, width: int = 1280, height: int = 900) -> Iterator[Page]:
    """Start a browser with one empty page; it ends with the block.

    :param folder: of its profile, empty.
    :param url: of the server; the page's paths are below it.
    """
    path = found()
    assert path is not None, "there is no Chromium on this machine"
    command = [
        path,
        "--headless=new",
        "--no-sandbox",  # root has no other way; it opens nothing but this server
        "--disable-gpu",
        "--no-first-run",
        "--no-proxy-server",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        f"--window-size={width},{height}",
        "about:blank",
    ]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, preexec_fn=_end_with_starter)  # noqa: PLW1509  (one call)
    try:
        with connect(_page_of(folder, process), max_size=_LARGEST_ANSWER, proxy=None) as connection:
            yield Page(url, _Protocol(connection))
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_with_starter() -> None:
    """Have the system end this process when the one that started it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _page_of(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Return where the protocol of the first page is spoken."""
    from urllib.request import ProxyHandler, build_opener

    note, deadline = folder / "DevToolsActivePort", time.monotonic() + PATIENCE
    while not (note.exists() and note.read_text().strip()):
        assert process.poll() is None, "Chromium has ended"
        assert time.monotonic() < deadline, "Chromium does not listen"
        time.sleep(0.05)
    port = note.read_text().split()[0]
    with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE) as answer:
        pages = json.load(answer)
    return str(next(each["webSocketDebuggerUrl"] for each in pages if each["type"] == "page"))


class NavigatedError(Exception):
    """The document that was asked is being replaced by another one."""


class _Protocol:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._numbers = connection, count(1)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._connection.recv(PATIENCE))
            if said.get("id") == number:
                if any(text in said.get("error", {}).get("message", "") for text in ("navigated", "context")):
                    raise NavigatedError(said)
                assert "error" not in said, said
                return said["result"]
            self.events.append(said)


@dataclass
class Page:
    """A page of the browser."""

    url: str
    protocol: _Protocol

    def sign_in(self, token: str) -> None:
        """Be the user of a token of Airflow's."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.protocol.call(f"{domain}.enable")
        self.protocol.call("Emulation.setFocusEmulationEnabled", enabled=True)  # as if somebody sat in front of it
        self.protocol.call("Network.setCookie", name="_token", value=token, url=self.url)

    def go(self, path: str) -> None:
        """Open a path of the server."""
        self.protocol.call("Page.navigate", url=self.url + path)

    def prepare(self, script: str) -> None:
        """Run a script in every page that is opened from now on, before its own."""
        self.protocol.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def run(self, script: str) -> Any:
        """Return the value of an expression."""
        answer = self.protocol.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self) -> str:
        """Return the text of the page as it is seen."""
        return str(self.run("document.body.innerText"))

    def until(self, script: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(NavigatedError):
                if value := self.run(f"(() => {{ try {{ return {script} }} catch (error) {{ return null }} }})()"):
                    return value
                assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {script}\n{self.text()}\n{self.complaints()}"
            time.sleep(0.1)

    def until_text(self, text: str, seconds: float = PATIENCE) -> None:
        """Wait until a text is to be seen."""
        self.until(f"document.body.innerText.includes({json.dumps(text)})", seconds)

    def click(self, text: str) -> None:
        """Click on the link or button with this text."""
        wanted = f"[...document.querySelectorAll('a, button')].find((each) => each.innerText.trim() === {json.dumps(text)})"
        self.until(f"({wanted}.click(), true)")  # found and clicked in one go: React may replace it in between

    def fill(self, field: str, text: str) -> None:
        """Write a text into a field, as a person does.

        :param field: a CSS selector.
        """
        self.run(f"document.querySelector({json.dumps(field)}).focus()")
        self.protocol.call("Input.insertText", text=text)

    def complaints(self) -> list[str]:
        """Return what the browser has complained about so far: errors of scripts and of loading."""
        found = [event["params"] for event in self.protocol.events if event.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}]
        return [json.dumps(each) for each in found if each.get("entry", {"level": "error"})["level"] == "error"]

    def screenshot(self, path: Path) -> None:
        """Write what is to be seen as a PNG."""
        path.write_bytes(base64.b64decode(self.protocol.call("Page.captureScreenshot", format="png")["data"]))
