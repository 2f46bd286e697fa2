# SPDX-License-Identifier: Apache-2.0
"""The OpenAI gateway of a deployment: its configuration, its process spec, readiness, and the wait for first texts."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trtspec.core.errors import DeployError, SmokeTestFailed, StepTimeout
from trtspec.core.files import private_file
from trtspec.core.http import http_request, http_status, split_url
from trtspec.deployment.health import PROMPT, request_text
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.process_group import ProcessSpec
from trtspec.deployment.revision import revision_dir
from trtspec.serving.gateway.command import gateway_command, gateway_config, ready_url, write_config
from trtspec.serving.gateway.config import GatewayConfig, Route, Routes, write_routes

GATEWAY_NAME = "openai"
GATEWAY_CONFIG_FILE, ROUTES, KEYS_FILE = "openai.json", "openai.routes", "openai.keys"
KEYS = "TRTSPEC_OPENAI_KEYS"
ANSWER_S = 2.0
HTTP_OK = 200
TOKENS = 16  # length of a first text
MAX_SAID = 200


def gateway_process(journal: DeploymentJournal, record: DeploymentRecord) -> ProcessSpec:
    """Return the process spec of a deployment's gateway; raises DeployError if it cannot be started.

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
    keys_file = journal.root / KEYS_FILE
    config = gateway_config(
        revision_dir(journal, record.revision) / "artifact",
        grpc=record.endpoints["grpc"],
        port=record.openai,
        host=record.bind_address("openai"),
        model=journal.name,
        keys_file=str(keys_file) if keys_file.exists() else "",
        routes_file=str(journal.root / ROUTES),
    )
    return replace(config, limits=replace(config.limits, drain_s=float(record.drain_s)))


def is_gateway_ready(url: str) -> bool:
    """Return True if a gateway's readiness URL answers with status 200."""
    return http_status(url, ANSWER_S) == HTTP_OK


def wait_for_first_response(
    record: DeploymentRecord, root: Path, deadline: float, hint: Callable[[], str]
) -> list[str]:
    """Wait until each endpoint has served a text, and return the names of the endpoints.

    `deadline` is a time of the monotonic clock, `root` the deployment's directory. `hint` returns the hint of errors.
    Raises StepTimeout for a slow endpoint, and SmokeTestFailed for one that fails.
    """
    asks: dict[str, Callable[[float], object]] = {}
    asks["Triton"] = lambda left: request_text(record.endpoints["http"], left, TOKENS)
    if "openai" in record.endpoints:
        asks["OpenAI"] = lambda left: _request_gateway_text(record, root / KEYS_FILE, left)
    for entry, ask in asks.items():
        try:
            ask(max(0.1, deadline - time.monotonic()))
        except StepTimeout as error:
            message = f"no first text from the {entry} endpoint in time: {error.message}"
            raise StepTimeout(message, hint=hint()) from None
        except DeployError as error:
            message = f"the first text from the {entry} endpoint failed: {error.message}"
            raise SmokeTestFailed(message, hint=hint()) from None
    return [*asks]


def _request_gateway_text(record: DeploymentRecord, keys: Path, timeout_s: float) -> None:
    """Request a text from the gateway; raises DeployError if it fails, StepTimeout after `timeout_s` seconds."""
    body = {"model": record.name, "prompt": PROMPT, "max_tokens": TOKENS}
    headers = {"Content-Type": "application/json"}
    if keys.is_file():
        headers["Authorization"] = f"Bearer {keys.read_text().split()[0]}"
    address, path = split_url(f"{record.endpoints['openai']}/completions")
    try:
        with http_request(
            address, path, method="POST", body=json.dumps(body).encode(), headers=headers, timeout_s=timeout_s
        ) as answer:
            content = answer.read()
        if answer.status != HTTP_OK:
            raise DeployError(f"the gateway answered {answer.status}: {content[:MAX_SAID].decode(errors='replace')}")
        has_text = bool(json.loads(content)["choices"])
    except TimeoutError:
        raise StepTimeout(f"no answer within {timeout_s:.3g} s") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DeployError(f"the gateway returned no text: {error or type(error).__name__}") from None
    if not has_text:
        raise DeployError("the gateway returned no text")
