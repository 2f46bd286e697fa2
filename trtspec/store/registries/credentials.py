# SPDX-License-Identifier: Apache-2.0
"""Credentials of registries from docker's configuration: `auths`, `credHelpers` and `credsStore`.

The configuration is the JSON in DOCKER_AUTH_CONFIG, then config.json in DOCKER_CONFIG (default: ~/.docker), then
podman's auth.json. Secrets are read when they are needed, passed by value and never part of a log record, a message or
a command line: a credential helper gets the registry on its standard input.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, read_bounded

log = logging.getLogger(__name__)

MAX_CONFIG_BYTES = 1 << 20
HELPER_TIMEOUT_S = 60.0
DOCKER_HUB = "docker.io"
DOCKER_HUB_KEY = "https://index.docker.io/v1/"
INLINE = "DOCKER_AUTH_CONFIG"
TOKEN_USER = "<token>"


@dataclass(frozen=True)
class Credentials:
    """A user with a password, or an identity token that is exchanged for access tokens."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """Return the value of the Authorization header."""
        return f"Basic {base64.b64encode(f'{self.username}:{self.password}'.encode()).decode()}"


def find_credentials(host: str, environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return the credentials of a registry HOST[:PORT], or None for anonymous access.

    Raises TrtspecError for an unreadable configuration or a credential helper that fails.
    """
    for where, config in _configurations(environment):
        if found := _in_configuration(where, config, host):
            log.info("credentials of %s: %s", host, where)
            return found
    return None


def _configurations(environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    if inline := environment.get(INLINE):
        yield INLINE, _parse(INLINE, inline.encode())
    home = Path(environment.get("HOME") or Path.home())
    docker = Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    runtime = environment.get("XDG_RUNTIME_DIR")
    podman = environment.get("REGISTRY_AUTH_FILE") or (f"{runtime}/containers/auth.json" if runtime else "")
    for path in [docker, *([Path(podman)] if podman else [])]:
        try:
            yield str(path), _parse(str(path), read_bounded(path, MAX_CONFIG_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise TrtspecError(describe_read_error(error), where=str(path), hint="docker login writes it") from error


def _parse(where: str, data: bytes, hint: str = "docker login writes it") -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        # No part of the content is repeated: it contains secrets.
        raise TrtspecError("not a JSON object", where=where, hint=hint)
    return document


def _in_configuration(where: str, config: Mapping[str, Any], host: str) -> Credentials | None:
    names = _names(host)
    helpers = config.get("credHelpers")
    for name in names:
        if isinstance(helpers, dict) and isinstance(helper := helpers.get(name), str):
            return _from_helper(where, helper, name)
    auths = found if isinstance(found := config.get("auths"), dict) else {}
    for name in (*names, *_old_names(auths, host)):
        if isinstance(entry := auths.get(name), dict) and (known := _from_entry(entry)):
            return known
    if isinstance(store := config.get("credsStore"), str) and store:
        return next(filter(None, (_from_helper(where, store, name) for name in names)), None)
    return None


def _names(host: str) -> list[str]:
    """Return the names under which the credentials of a host may be stored."""
    if host == DOCKER_HUB:
        return [DOCKER_HUB_KEY, "index.docker.io", DOCKER_HUB]
    return [host, f"https://{host}", f"https://{host}/"]


def _old_names(auths: Mapping[str, Any], host: str) -> list[str]:
    """Return the URLs of a host, such as https://HOST/v1/, under which old versions of docker store credentials."""
    return [name for name in auths if re.fullmatch(rf"https?://{re.escape(host)}(/.*)?", name)]


def _from_entry(entry: Mapping[str, Any]) -> Credentials | None:
    if isinstance(token := entry.get("identitytoken"), str) and token:
        return Credentials(identity_token=token)
    if isinstance(entry.get("username"), str) and isinstance(entry.get("password"), str):
        return Credentials(entry["username"], entry["password"])
    try:
        username, colon, password = base64.b64decode(str(entry.get("auth") or "")).decode().partition(":")
    except ValueError:
        return None
    return Credentials(username, password.rstrip("\0")) if colon else None


def _from_helper(where: str, helper: str, name: str) -> Credentials | None:
    """Run docker-credential-HELPER; return None if it has no credentials of that name."""
    program = f"docker-credential-{helper}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", helper):
        raise TrtspecError("the name of a credential helper is malformed", where=where)
    hint = f"printf {name} | {program} get"
    try:
        done = subprocess.run(
            [program, "get"], input=name.encode(), capture_output=True, timeout=HELPER_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise TrtspecError(
            f"{program} is not installed", where=where, hint="install it, or docker login again"
        ) from None
    except OSError as error:
        raise TrtspecError(f"{program} cannot be started: {error.strerror}", where=where, hint=hint) from None
    except subprocess.TimeoutExpired:
        raise TrtspecError(f"{program} did not reply within {HELPER_TIMEOUT_S:.0f} s", where=where, hint=hint) from None
    if done.returncode:
        if b"credentials not found" in done.stdout + done.stderr:
            return None
        raise TrtspecError(f"{program} failed with exit status {done.returncode}", where=where, hint=hint)
    answer = _parse(program, done.stdout[:MAX_CONFIG_BYTES], hint)
    username, secret = answer.get("Username"), answer.get("Secret")
    if not isinstance(username, str) or not isinstance(secret, str):
        raise TrtspecError(f"{program} returned no Username and Secret", where=where, hint=hint)
    return Credentials(identity_token=secret) if username == TOKEN_USER else Credentials(username, secret)
