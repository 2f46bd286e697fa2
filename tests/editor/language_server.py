# SPDX-License-Identifier: Apache-2.0
"""The language server that editors use for YAML, as package-lock.json pins it, and how it is talked to."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any, BinaryIO

from tests._support.npm import modules

ANSWER_S = 60


def install() -> Path:
    """Return the server's script, installed if it was not; raises Unavailable with the reason."""
    return modules(Path(__file__).parent) / "yaml-language-server" / "bin" / "yaml-language-server"


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
