# SPDX-License-Identifier: Apache-2.0
"""Driver of Debian's Chromium (unpacked by `make browser`) over pipes with the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trtspec.core.processes import die_with_parent

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
HIGH = 10  # descriptors above those that the child uses
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--force-color-profile=srgb", "--hide-scrollbars", "--remote-debugging-pipe"),
)
SEEN = [(width, dark) for width in (1280, 390) for dark in (False, True)]  # desktop and phone
# After axe-core itself: the serious and critical violations of the page.
AXE = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations
.filter(each => ["serious", "critical"].includes(each.impact))
.map(each => `${each.id}: ${each.help}; ${each.nodes.map(node => node.html).join(" ")}`))"""


def chromium() -> tuple[Path, dict[str, str]]:
    """Return the program and its environment; skip the test if it is missing."""
    unpacked = Path(os.environ.get("ENGINES", ROOT)) / ".browser" / "usr" / "lib"
    program = unpacked / "chromium" / "chromium"
    if program.is_file():
        libraries = [str(folder) for folder in (*unpacked.glob("*-linux-gnu"), *unpacked.glob("*-linux-gnu/*/"))]
        return program, {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("no chromium here: make browser")
    return Path(found), dict(os.environ)


class Browser:
    """A running Chromium with one page; all waits are bounded."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._number, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a DevTools command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, page: Path, width: int, *, dark: bool = False, media: str = "") -> None:
        """Open a file in a window of this width."""
        self.events.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self) -> bytes:
        """Return the whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def paper(self) -> bytes:
        """Return the page as PDF on A4."""
        return base64.b64decode(self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])

    def requested(self) -> list[str]:
        """Return the URLs requested since the page was opened."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent]

    def complaints(self) -> list[str]:
        """Return console messages, blocked requests and exceptions."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in kinds]

    def _next(self) -> dict[str, Any]:
        give_up = time.monotonic() + WAIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, give_up - time.monotonic()))
            assert ready, "Chromium did not respond in time"
            read = os.read(self._reading, 1 << 20)
            assert read, "Chromium has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run Chromium with a profile in a directory; it reads commands from descriptor 3 and responds on 4."""
    program, environment = chromium()
    theirs, ours = map(_high, os.pipe())
    mine, its = map(_high, os.pipe())
    shell = f'exec "$@" 3<&{theirs} 4>&{its}'
    command = ["bash", "-c", shell, "bash", str(program), *FLAGS, f"--user-data-dir={folder}"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=(theirs, its),
            preexec_fn=die_with_parent(),  # noqa: PLW1509
        )
    for descriptor in (theirs, its):
        os.close(descriptor)
    try:
        yield Browser(mine, ours)
    finally:
        process.terminate()
        process.wait(WAIT_S)
        for descriptor in (mine, ours):
            os.close(descriptor)


def _high(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(descriptor)
    return moved
