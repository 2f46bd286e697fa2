# SPDX-License-Identifier: Apache-2.0
"""The OpenAI gateway of a deployment: its configuration, process spec and readiness check."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from http.client import HTTPException
from urllib.request import urlopen

from trtspec.core.errors import DeployError
from trtspec.core.files import private_file
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.process_specs import ProcessSpec
from trtspec.deployment.revision import revision_dir
from trtspec.serving.gateway.command import gateway_command, gateway_config, ready_url, write_config
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.routing_state import Route, Routes, write_routes

GATEWAY_NAME = "openai"
GATEWAY_CONFIG_FILE, ROUTES, KEYS_FILE = "openai.json", "openai.routes", "openai.keys"
KEYS = "TRTSPEC_OPENAI_KEYS"
ANSWER_S = 2.0


def gateway_process(journal: DeploymentJournal, record: DeploymentRecord) -> ProcessSpec:
    """Return the process spec of a deployment's gateway; raise DeployError if it cannot be started.

    API keys from the environment are written to a file that only this user can read, so that the other processes of the
    deployment do not see them.
    """
    if importlib.util.find_spec("uvicorn") is None:
        hint = "pip install 'trtspec[triton]', or build with serving.openai: false"
        raise DeployError("the OpenAI gateway requires uvicorn, which is not installed", hint=hint)
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
