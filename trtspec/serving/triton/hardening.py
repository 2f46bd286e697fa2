# SPDX-License-Identifier: Apache-2.0
"""Hardening of tritonserver: no secrets in its environment, a token for its control APIs, limited request bodies.

A model loaded through the control APIs may contain code, and a client may register the shared memory of a model's
process. Both act with this user's rights. Web pages can send such requests too, but they cannot set a custom header
without a CORS preflight, so the token is sent in a header. Unused endpoints are disabled.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.core.processes import group_processes, process_argv, wait_until
from trtspec.serving.triton.client import HEADER, Client
from trtspec.serving.triton.server import TritonServer

log = logging.getLogger(__name__)

CONTROL = "shared-memory,model-repository,trace,logging"
MAX_BODY_BYTES = 16 << 20
HELP_TIMEOUT_S = 30.0
PARSED_TIMEOUT_S = 10.0  # for a server to parse its options and write its first output
POLL_S = 0.01
ASK_TIMEOUT_S = 10.0
PLACEHOLDER = "x"
GUESSABLE_TOKEN = "its control APIs accept a token that anyone can guess"
ARG_START = 45  # field of /proc/PID/stat, counted after the process name
PASS = "TRTSPEC_PASS_ENV"  # comma-separated names
_NAMES = re.compile(
    r"(^|_)(TOKENS?|KEYS?|APIKEY|SECRETS?|CREDENTIALS?|PASSPHRASE|PASS|PASSWD|AUTH|COOKIES?)(_|$)|PASSWORD"
    r"|^(AWS|AZURE)_",
    re.IGNORECASE,
)
_VALUES = re.compile(r"://[^/@\s]*:[^/@\s]+@")  # a URL with a password, such as a proxy's or package index's


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables that look like secrets, except those in `TRTSPEC_PASS_ENV`."""
    passed = {name.strip() for name in environment.get(PASS, "").split(",")}
    return {
        name: value
        for name, value in environment.items()
        if name == PASS or name in passed or not (_NAMES.search(name) or _VALUES.search(value))
    }


@dataclass(frozen=True)
class ServerOption:
    """An option of tritonserver and the first version that has it; servers without a `required` one are rejected."""

    name: str
    value: str
    since: str
    required: bool = False


RESTRICTED = f"{CONTROL}:{HEADER}={{token}}"
SERVER_OPTIONS = (  # docs/security.md names the sources
    ServerOption("http-restricted-api", RESTRICTED, "2.40 (23.11)", required=True),
    ServerOption("grpc-restricted-protocol", RESTRICTED, "2.33 (23.04)", required=True),
    ServerOption("http-max-input-size", str(MAX_BODY_BYTES), "2.59 (25.06)"),
    # These endpoints serve the same requests on separate ports; versions before 2.67 do not restrict them.
    ServerOption("allow-vertex-ai", "false", "any"),
    ServerOption("allow-sagemaker", "false", "any"),
)


def hardening_options(server: TritonServer, token: str) -> tuple[str, ...]:
    """Return the options that harden a server; raises DeployError if it cannot restrict its control APIs to `token`."""
    known = supported_options(server)
    for flag in SERVER_OPTIONS:
        if flag.required and flag.name not in known:
            raise DeployError(
                f"it does not support --{flag.name}, so any client could run code in it",
                where=str(server.executable),
                hint=f"use tritonserver {flag.since} or newer",
            )
    return tuple(f"--{flag.name}={flag.value.format(token=token)}" for flag in SERVER_OPTIONS if flag.name in known)


def supported_options(server: TritonServer) -> frozenset[str]:
    """Return the option names in a server's `--help`, because builds vary; raises DeployError if it fails."""
    try:
        completed = subprocess.run(
            [str(server.executable), "--help"],
            capture_output=True,
            text=True,
            timeout=HELP_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **server.environment},
            check=False,  # 2.51 exits with 1
        )
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        raise DeployError(f"cannot list its options: {error}", where=str(server.executable)) from None
    return frozenset(re.findall(r"^\s*--([a-z0-9-]+)", completed.stdout + completed.stderr, re.MULTILINE))


def scrub_token(process: subprocess.Popen[bytes], token: str) -> None:
    """Overwrite the token in a server's command line, which every user can read, once the server has parsed it.

    tritonserver accepts the token only on the command line. A process that has written any output has parsed its
    arguments. Its log file does not prove that, because other processes write to it too. If the kernel denies the
    write, the denial is logged and the server keeps running.
    """
    secret, refused = token.encode(), dict[int, Exception]()

    def is_hidden() -> bool:
        # an MPI launch has several processes, and its launcher may write no output
        group = group_processes(process.pid)
        wrote = {pid for pid in group if _written(pid)}
        for pid in (each for each in group if each in wrote or (wrote and each == process.pid)):
            try:
                _overwrite(Path(f"/proc/{pid}"), secret)
            except (OSError, IndexError, ValueError) as error:
                refused[pid] = error
        words = (word for pid in group if pid not in refused for word in process_argv(pid))
        return process.poll() is not None or not any(token in word for word in words)

    wait_until(is_hidden, PARSED_TIMEOUT_S, POLL_S)
    for pid, error in refused.items():
        log.info("cannot remove the token from the command line of process %d: %s", pid, error)


def accepts_placeholder_token(url: str, token: str) -> bool:
    """Return True if a server's control APIs accept the placeholder of a hidden token, which anyone can send."""
    return Client.at(url, ASK_TIMEOUT_S, PLACEHOLDER * len(token)).controls()


def _written(pid: int) -> bool:
    """Return True if a process has written any output; False if /proc does not report it."""
    try:
        counts = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return False
    return re.search(r"^wchar: 0$", counts, re.MULTILINE) is None


def _overwrite(process: Path, secret: bytes) -> None:
    start = int((process / "stat").read_text().rpartition(")")[2].split()[ARG_START])
    with (process / "mem").open("r+b", buffering=0) as memory:
        for found in re.finditer(re.escape(secret), (process / "cmdline").read_bytes()):
            memory.seek(start + found.start())
            memory.write(PLACEHOLDER.encode() * len(secret))
