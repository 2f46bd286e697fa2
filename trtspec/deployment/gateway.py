# SPDX-License-Identifier: Apache-2.0
"""The OpenAI gateway of a deployment: configuration, process spec, readiness, and the wait for first texts."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from trtspec.core.errors import DeployError, SmokeTestFailed, StepTimeout
from trtspec.core.files import private_file
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.process_group import ProcessSpec
from trtspec.deployment.revision import revision_dir
from trtspec.serving.gateway.command import gateway_command, gateway_config, ready_url, write_config
from trtspec.serving.gateway.config import GatewayConfig, Route, Routes, write_routes
from trtspec.serving.triton.client import Client

GATEWAY_NAME = "openai"
GATEWAY_CONFIG_FILE, ROUTES, KEYS_FILE = "openai.json", "openai.routes", "openai.keys"
KEYS = "TRTSPEC_OPENAI_KEYS"
ANSWER_S = 2.0


def gateway_process(journal: DeploymentJournal, record: DeploymentRecord) -> ProcessSpec:
    """Return the process spec of a deployment's gateway; raise DeployError if it cannot be started.

    API keys from the environment are written to a file that only this user can read, so that the other processes of the
    deployment do not see them.
    """
    if missing := [name for name in ("uvicorn", "httptools") if importlib.util.find_spec(name) is None]:
        hint = "pip install 'trtspec[triton]', or build with serving.openai: false"
        raise DeployError(f"the OpenAI gateway requires {missing[0]}, which is not installed", hint=hint)
    keys_file = journal.root / KEYS_FILE
    keys_file.unlink(missing_ok=True)
    if keys := os.environ.get(KEYS):
        with private_file(keys_file) as file:
            file.write("\n".join(keys.split(",")).encode())
    config = revision_config(journal, record)
    write_config(config, journal.root / GATEWAY_CONFIG_FILE)
    write_routes(journal.root / ROUTES, Routes(0, (Route(record.revision, 100, config),)))
    command, listens = gateway_command(journal.root / GATEWAY_CONFIG_FILE), {GATEWAY_NAME: record.openai}
    return ProcessSpec(GATEWAY_NAME, command, ready_url(config), listens=listens, host=config.host)


def revision_config(journal: DeploymentJournal, record: DeploymentRecord) -> GatewayConfig:
    """Return the gateway configuration for a revision."""
    keys_file = journal.root / KEYS_FILE
    config = gateway_config(
        revision_dir(journal, record.revision) / "artifact",
        grpc=record.endpoints["grpc"],
        port=record.openai,
        host=record.host_of("openai"),
        model=journal.name,
        keys_file=str(keys_file) if keys_file.exists() else "",
        routes_file=str(journal.root / ROUTES),
    )
    return replace(config, limits=replace(config.limits, drain_s=float(record.drain_s)))


def returns_ok(url: str) -> bool:
    """Return whether a URL answers with status 200."""
    try:
        with urlopen(url, timeout=ANSWER_S) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False


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
