# SPDX-License-Identifier: Apache-2.0
"""Debian's Prometheus and promtool, unpacked by `make prometheus`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from trtspec.core.ports import free_ports
from trtspec.core.processes import die_with_parent

ROOT = Path(__file__).parents[3]
START_S = 20.0


def tool(name: str) -> str:
    """Return a program of Prometheus; skip the test if it is missing."""
    unpacked = Path(os.environ.get("ENGINES", ROOT)) / ".prometheus" / "usr" / "bin" / name
    found = str(unpacked) if unpacked.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here: make prometheus")
    return found


def promtool(*arguments: object, given: str = "") -> str:
    """Return the output of promtool; fail the test on an error."""
    command = [tool("promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self._base}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current series of an expression."""
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an API response."""
        with urlopen(f"{self._base}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus(root: Path, config: dict[str, Any]) -> Iterator[Prometheus]:
    """Run Prometheus with a configuration."""
    executable, [port] = tool("prometheus"), free_ports(1)
    (root / "prometheus.yml").write_text(json.dumps(config))  # JSON is valid YAML
    command = [executable, f"--config.file={root / 'prometheus.yml'}", f"--storage.tsdb.path={root / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (root / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent())  # noqa: PLW1509
    running, deadline = Prometheus(port), time.monotonic() + START_S
    try:
        while not running.is_ready():
            assert process.poll() is None, (root / "prometheus.log").read_text()
            assert time.monotonic() < deadline, "Prometheus was not ready in time"
            time.sleep(0.1)
        yield running
    finally:
        process.terminate()
        process.wait(10)
