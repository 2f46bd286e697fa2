# SPDX-License-Identifier: Apache-2.0
"""Container health probe: request one text from a live deployment.

Usage: `python3 -m trtspec.deployment.health.request NAME --within SECONDS`.

Triton's readiness is not sufficient: it reports ready with dead models, and briefly not ready after a successful
reload. A queue-full reply counts as healthy. If the server hangs with a full queue, the supervisor, which observes its
threads and counters, moves the deployment out of `live`, and this probe fails.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from trtspec.core.errors import DeployError, StepTimeout, TrtspecError
from trtspec.deployment.journal import DeploymentJournal
from trtspec.serving.front.command import UNAVAILABLE_MESSAGE
from trtspec.serving.triton.client import Client

REQUEST = {"text_input": "Hello", "max_tokens": 1}
FULL = ("the server answered 429", "the server answered 503")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 for a text or a queue-full reply; otherwise print the error to standard error and return 1."""
    parser = ArgumentParser(prog="trtspec.deployment.health.request")
    parser.add_argument("name")
    parser.add_argument("--within", type=float, default=10.0, help="seconds")
    options = parser.parse_args(arguments)
    try:
        probe(options.name, options.within)
    except TrtspecError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def probe(name: str, within_s: float) -> None:
    """Send a probe request to a deployment of this machine; raise DeployError or StepTimeout if it fails."""
    record = DeploymentJournal(name).known()
    if record.state != "live":
        raise DeployError(f"{name} is {record.state}, not live")
    try:
        answer = Client.at(record.endpoints["http"], within_s).generate(REQUEST)
    except StepTimeout:
        raise
    except DeployError as error:
        if error.message.startswith(FULL) and UNAVAILABLE_MESSAGE not in error.message:
            return
        raise
    if "text_output" not in answer:
        raise DeployError("the response lacks text_output")


if __name__ == "__main__":
    sys.exit(main())
