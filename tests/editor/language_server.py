# SPDX-License-Identifier: Apache-2.0
"""The language server that editors use for YAML: how it is installed, outside the tree, and how it is talked to.

`python tests/editor/language_server.py` installs what package-lock.json pins; tests do so on demand.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

HERE = Path(__file__).parent
PINNED = ("package.json", "package-lock.json")
INSTALL_S, ANSWER_S = 180, 60


class Unavailable(Exception):
    """The server cannot be had on this machine; the message says why."""


def cached() -> Path:
    """Return where what is pinned is installed, once for each lock file."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    return base / "trtspec-tests" / f"yaml-language-server-{digest[:12]}"


def install() -> Path:
    """Return the server's script, installed if it was not; raises Unavailable with the reason."""
    root = cached()
    script = root / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait
        if not (root / "installed").exists():
            _install(root)
    return script


def _install(root: Path) -> None:
    for name in PINNED:
        shutil.copy(HERE / name, root)
    command = (
        "npm",
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=1000",
    )
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm did not install yaml-language-server in {INSTALL_S} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(f"npm cannot install yaml-language-server: {lines[0] if lines else done.returncode}")
    (root / "installed").touch()


class LanguageServer:
    """A running server, asked over its standard input and output; every wait for it has a bound."""

    def __init__(self, script: Path, root: Path) -> None:
        self._process = subprocess.Popen(
            ["node", str(script), "--stdio"], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._number = 0
        self.ask("initialize", {"processId": os.getpid(), "rootUri": root.as_uri(), "capabilities": {}})
        self._send({"method": "initialized", "params": {}})
        settings = {"yaml": {"schemaStore": {"enable": False}, "completion": True, "validate": True}}
        self._send({"method": "workspace/didChangeConfiguration", "params": {"settings": settings}})

    def open(self, path: Path, text: str) -> list[dict[str, Any]]:
        """Show the server a file with this text, and return its diagnostics."""
        document = {"uri": path.as_uri(), "languageId": "yaml", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        while True:
            message = self._next()
            if message.get("method") == "textDocument/publishDiagnostics" and message["params"]["uri"] == path.as_uri():
                found: list[dict[str, Any]] = message["params"]["diagnostics"]
                return found

    def complete(self, path: Path, line: int, character: int) -> dict[str, dict[str, Any]]:
        """Return what is offered at a place counted from 0, by its label."""
        asked = {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": character}}
        found = self.ask("textDocument/completion", asked)
        return {item["label"]: item for item in (found["items"] if isinstance(found, dict) else found or ())}

    def ask(self, method: str, params: dict[str, Any] | None) -> Any:
        """Return the answer to a request."""
        self._number += 1
        number = self._number
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._next()
            if message.get("id") == number and "method" not in message:
                assert "error" not in message, message
                return message.get("result")
            if "id" in message and "method" in message:  # the server asks: we have nothing to say
                self._send({"id": message["id"], "result": None})

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait(ANSWER_S)

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _next(self) -> dict[str, Any]:
        message = self._messages.get(timeout=ANSWER_S)
        assert message, "the language server has ended"
        return message

    def _read(self) -> None:
        assert self._process.stdout is not None
        while message := _message(self._process.stdout):
            self._messages.put(message)
        self._messages.put({})


def _message(stream: BinaryIO) -> dict[str, Any]:
    """Return the next message, {} at the end."""
    size = 0
    while line := stream.readline().strip():
        name, _, value = line.partition(b":")
        size = int(value) if name.lower() == b"content-length" else size
    message: dict[str, Any] = json.loads(stream.read(size)) if size else {}
    return message


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{install()}\n")
    except Unavailable as error:
        sys.stdout.write(f"the editor's tests will be skipped: {error}\n")
