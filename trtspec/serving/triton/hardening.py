# SPDX-License-Identifier: Apache-2.0
"""What of a tritonserver is closed: its control APIs behind a token, entries that nobody asked for, large bodies.

A model that is loaded by request may bring its own code, and a region of shared memory that a client registers may be
that of a model's process: both run with this user's rights. A web page can send such requests too, but it can set no
header of another origin's without being asked first; so the token goes in one.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.core.processes import group_of, wait_until
from trtspec.serving.triton.client import HEADER, Client
from trtspec.serving.triton.server import Server

log = logging.getLogger(__name__)

CONTROL = "shared-memory,model-repository,trace,logging"
MAX_BODY_BYTES = 16 << 20
HELP_TIMEOUT_S = 30.0
PARSED_TIMEOUT_S = 10.0  # until a server has read its options and says its first words
POLL_S = 0.01
ASK_TIMEOUT_S = 10.0
FILLER = "x"
OPEN = "its control APIs are open to a token that everybody can tell"
ARG_START = 45  # where /proc/PID/stat has it, behind the process's name


@dataclass(frozen=True)
class Flag:
    """An option of tritonserver; without a `required` one nothing is started. `since` and `source` are for people."""

    name: str
    value: str
    since: str
    source: str
    required: bool = False


FLAGS = (
    Flag(
        "http-restricted-api",
        f"{CONTROL}:{HEADER}={{token}}",
        "2.40 (23.11)",
        "triton-inference-server/server@4b481a6f6",
        required=True,
    ),
    Flag(
        "grpc-restricted-protocol",
        f"{CONTROL}:{HEADER}={{token}}",
        "2.33 (23.04)",
        "triton-inference-server/server@980bd76b0",
        required=True,
    ),
    Flag("http-max-input-size", str(MAX_BODY_BYTES), "2.59 (25.06)", "triton-inference-server/server@af8bb9302"),
    # these two answer the same requests on a port of their own, until 2.67 whatever is restricted
    Flag("allow-vertex-ai", "false", "any", "triton-inference-server/server@6b0539b92"),
    Flag("allow-sagemaker", "false", "any", "triton-inference-server/server@a5b45da57"),
)


def closing_options(server: Server, token: str) -> tuple[str, ...]:
    """Return the options that close a server; DeployError for one that cannot keep its control APIs to `token`."""
    known = known_options(server)
    for flag in FLAGS:
        if flag.required and flag.name not in known:
            raise DeployError(
                f"it has no --{flag.name}, so that whoever reaches its port could run code in it",
                where=str(server.executable),
                hint=f"tritonserver has it since {flag.since}; use a newer one",
            )
    return tuple(f"--{flag.name}={flag.value.format(token=token)}" for flag in FLAGS if flag.name in known)


def known_options(server: Server) -> frozenset[str]:
    """Return the options that a server lists: what it says of itself holds where a build left something out."""
    try:
        said = subprocess.run(
            [str(server.executable), "--help"],
            capture_output=True,
            text=True,
            timeout=HELP_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **server.environment},
            check=False,  # 2.51 ends with 1
        )
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        raise DeployError(f"its options cannot be asked: {error}", where=str(server.executable)) from None
    return frozenset(re.findall(r"^\s*--([a-z0-9-]+)", said.stdout + said.stderr, re.MULTILINE))


def hide_token(process: subprocess.Popen[bytes], token: str) -> None:
    """Overwrite the token among a server's arguments, which every user may read, as soon as it has read them itself.

    tritonserver takes it nowhere else. A process that has written anything has read its arguments; its log tells less,
    because others write there too. Where the kernel lets no parent write there, the log of this program says so and
    the server runs on.
    """
    secret, refused = token.encode(), dict[int, Exception]()

    def is_hidden() -> bool:
        group = group_of(process.pid)  # several of an MPI launch, whose launcher may say nothing itself
        wrote = {pid for pid in group if _written(pid)}
        for pid in (each for each in group if each in wrote or (wrote and each == process.pid)):
            try:
                _overwrite(Path(f"/proc/{pid}"), secret)
            except (OSError, IndexError, ValueError) as error:
                refused[pid] = error
        return process.poll() is not None or not any(_holds(pid, secret) for pid in group if pid not in refused)

    wait_until(is_hidden, PARSED_TIMEOUT_S, POLL_S)
    for pid, error in refused.items():
        log.info("the token stays among the arguments of process %d: %s", pid, error)


def opens_to_filler(url: str, token: str) -> bool:
    """Return whether a server's control APIs are open to what a hidden token reads as, which anybody can send."""
    return Client.at(url, ASK_TIMEOUT_S, FILLER * len(token)).controls()


def _written(pid: int) -> bool:
    """Return whether a process has written a byte anywhere."""
    try:
        counts = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return False
    return re.search(r"^wchar: 0$", counts, re.MULTILINE) is None


def _holds(pid: int, secret: bytes) -> bool:
    try:
        return secret in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _overwrite(process: Path, secret: bytes) -> None:
    start = int((process / "stat").read_text().rpartition(")")[2].split()[ARG_START])
    with (process / "mem").open("r+b", buffering=0) as memory:
        for found in re.finditer(re.escape(secret), (process / "cmdline").read_bytes()):
            memory.seek(start + found.start())
            memory.write(FILLER.encode() * len(secret))
