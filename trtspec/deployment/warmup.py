# SPDX-License-Identifier: Apache-2.0
"""Warm-up wait: request a first text from each endpoint of a deployment, Triton's and OpenAI's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from trtspec.core.errors import DeployError, SmokeTestFailed, StepTimeout
from trtspec.deployment.gateway import KEYS_FILE
from trtspec.deployment.journal import DeploymentRecord
from trtspec.serving.triton.client import Client

TOKENS = 16
PROMPT = "Hello"
MAX_SAID = 200


def wait_for_first_response(
    record: DeploymentRecord, root: Path, deadline: float, hint: Callable[[], str]
) -> list[str]:
    """Return the endpoints after each has served a text, by `deadline` of the monotonic clock.

    `root` is the deployment's directory, `hint` returns the hint of errors. Raises StepTimeout for a slow endpoint,
    SmokeTestFailed for one that fails.
    """
    asks: dict[str, Callable[[float], None]] = {"Triton": lambda left: _ask_triton(record, left)}
    if "openai" in record.endpoints:
        asks["OpenAI"] = lambda left: _ask_openai(record, root / KEYS_FILE, left)
    for entry, ask in asks.items():
        try:
            ask(max(0.1, deadline - time.monotonic()))
        except StepTimeout as error:
            raise StepTimeout(
                f"no first text from the {entry} endpoint in time: {error.message}", hint=hint()
            ) from None
        except DeployError as error:
            raise SmokeTestFailed(
                f"the first text from the {entry} endpoint failed: {error.message}", hint=hint()
            ) from None
    return [*asks]


def _ask_triton(record: DeploymentRecord, timeout_s: float) -> None:
    answer = Client.at(record.endpoints["http"], timeout_s).generate({"text_input": PROMPT, "max_tokens": TOKENS})
    if "text_output" not in answer:
        raise DeployError("the response lacks text_output")


def _ask_openai(record: DeploymentRecord, keys: Path, timeout_s: float) -> None:
    body = {"model": record.name, "prompt": PROMPT, "max_tokens": TOKENS}
    headers = {"Content-Type": "application/json"}
    if keys.is_file():
        headers["Authorization"] = f"Bearer {keys.read_text().split()[0]}"
    url = f"{record.endpoints['openai']}/completions"
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=timeout_s) as answer:
            choices = json.loads(answer.read())["choices"]
    except HTTPError as error:
        said = error.read(MAX_SAID).decode(errors="replace")
        raise DeployError(f"the gateway answered {error.code}: {said}") from None
    except TimeoutError:
        raise StepTimeout(f"no answer within {timeout_s:.3g} s") from None
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        raise DeployError(f"the gateway returned no text: {error or type(error).__name__}") from None
    if not choices:
        raise DeployError("the gateway returned no text")
