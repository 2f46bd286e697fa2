# SPDX-License-Identifier: Apache-2.0
"""The container probe succeeds only for a text from a live server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trtspec.deployment import health
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.serving.front import UNAVAILABLE_MESSAGE

ANSWERS = {
    "text": (200, {"text_output": "x"}),
    "full": (503, {"error": "the queue is full"}),
    "broken": (500, {"error": "the stub is dead"}),
    "odd": (200, {"other": "x"}),
    "down": (503, {"error": UNAVAILABLE_MESSAGE}),
}


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        says = "text"
        wait = threading.Event()

        def do_POST(self) -> None:
            if self.says == "late":
                self.wait.wait(5)
            status, document = ANSWERS.get(self.says, ANSWERS["text"])
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.handle_error = lambda *of: None  # the client has disconnected
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        Handler.wait.set()
        found.shutdown()


def note(server: ThreadingHTTPServer, state: str = "live") -> None:
    journal = DeploymentJournal("tiny")
    journal.root.mkdir(parents=True, exist_ok=True)
    port = server.server_address[1]
    journal.write(DeploymentRecord("tiny", state, "", 0, None, port, port, port, "", detached=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "code", "said"),
    [
        ("text", 0, ""),
        ("full", 0, ""),
        ("broken", 1, "the stub is dead"),
        ("odd", 1, "the response lacks text_output"),
        ("down", 1, "is not accepting requests"),
        ("late", 1, "no answer within"),
    ],
)
def test_health_check_exit_code_follows_the_server_response(
    says: str, code: int, said: str, server, workplace: Path, capsys
) -> None:
    note(server)
    server.RequestHandlerClass.says = says
    assert health.main(["tiny", "--within=0.5"]) == code
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_health_check_of_a_deployment_that_is_not_live_fails(server, workplace: Path, capsys) -> None:
    note(server, "smoke")
    assert health.main(["tiny"]) == 1
    assert "tiny is smoke, not live" in capsys.readouterr().err


def test_health_check_of_an_unknown_name_fails(workplace: Path, capsys) -> None:
    assert health.main(["tiny"]) == 1
    assert "no deployment 'tiny'" in capsys.readouterr().err


def test_health_module_imports_no_heavy_packages(workplace: Path) -> None:
    heavy = "any(n in sys.modules for n in ('torch', 'numpy', 'typer'))"
    program = f"import sys, trtspec.deployment.health; sys.exit(int({heavy}))"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
