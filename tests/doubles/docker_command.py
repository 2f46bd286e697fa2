# SPDX-License-Identifier: Apache-2.0
"""A double of docker's command line, for the documentation: it accepts the documented options only, and runs nothing.

Options and their forms are those of docs.docker.com/reference/cli/docker: container/run, buildx/build, image/push,
image/pull, image/inspect, inspect, buildx/imagetools/inspect, buildx/version and compose. Beyond docker's own rules,
images must be named by a digest (directly or by a shell variable), ports must be published on loopback, and a variable
that looks like a secret may be passed on by name only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NAME = r"[a-zA-Z0-9][a-zA-Z0-9_.-]*"
VARIABLE = r"\$\{?[A-Z_]+\}?"
REFERENCE = rf"({NAME}(:\d+)?/)*{NAME}(:{NAME})?"
BY_DIGEST = rf"({NAME}(:\d+)?/)*{NAME}@sha256:[0-9a-f]{{64}}"
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
BY_TAG = ("registry:3",)  # the registry of the pages, which holds nothing that is served unchecked
FLAG = ""  # an option without a value

RUN = {
    "--cap-drop": r"[A-Z_]+",
    "--cidfile": r".+",
    "--detach": FLAG,
    "--entrypoint": r".+",
    "--env": r"[A-Z_]+(=.*)?",
    "--env-file": r".+",
    "--gpus": r"all|\d+|\"?device=[\d,]+\"?",
    "--init": FLAG,
    "--interactive": FLAG,
    "--ipc": r"host|private|shareable|none",
    "--name": NAME,
    "--network": rf"{NAME}",
    "--publish": r"127\.0\.0\.1:\d+:\d+(/tcp|/udp)?",
    "--read-only": FLAG,
    "--restart": r"no|always|unless-stopped|on-failure(:\d+)?",
    "--rm": FLAG,
    "--security-opt": r".+",
    "--shm-size": r"\d+[bkmg]?",
    "--tmpfs": r"/.*",
    "--tty": FLAG,
    "--ulimit": r"[a-z]+=-?\d+(:-?\d+)?",
    "--user": r".+",
    "--volume": r"[^:]+:/[^:]*(:(ro|rw))?",
    "--workdir": r"/.*",
}
BUILD = {
    "--build-arg": r"[A-Z_]+=.+",
    "--file": r".+",
    "--no-cache": FLAG,
    "--platform": r"[a-z0-9/,]+",
    "--pull": FLAG,
    "--tag": REFERENCE,
}
SHORT = {"-d": "--detach", "-e": "--env", "-f": "--file", "-i": "--interactive", "-p": "--publish", "-t": "--tty"}
SHORT |= {"-u": "--user", "-v": "--volume", "-w": "--workdir"}
UP = {"--detach": FLAG, "--wait": FLAG, "--wait-timeout": r"\d+"}
PS = {"--all": FLAG, "--format": r"json|table"}
LOGS = {"--follow": FLAG, "--no-color": FLAG, "--no-log-prefix": FLAG}
INSPECT = {"--format": r"\{\{.+\}\}", "--type": r"[a-z]+"}


class DockerUsageError(AssertionError):
    """Docker, or a rule of these pages, rejects the command."""


def read_docker(words: Sequence[str]) -> list[str]:
    """Return the command that runs in the container, [] for other subcommands; DockerUsageError for wrong usage."""
    match list(words):
        case ["docker", "run", *rest]:
            return _run(rest)
        case ["docker", "build", *rest]:
            _, operands = _parse(rest, BUILD, SHORT | {"-t": "--tag"})
            _count(operands, 1)
        case ["docker", "buildx", "imagetools", "inspect", *rest]:
            _, operands = _parse(rest, {"--format": INSPECT["--format"], "--raw": FLAG})
            _count(operands, 1)
            _matches(operands[0], f"{REFERENCE}|{VARIABLE}")
        case ["docker", "push" | "pull", *rest]:
            _, operands = _parse(rest, {"--quiet": FLAG})
            _count(operands, 1)
            _matches(operands[0], f"{REFERENCE}|{BY_DIGEST}|{VARIABLE}")
        case ["docker", "inspect", *rest] | ["docker", "image", "inspect", *rest]:
            _, operands = _parse(rest, INSPECT, {"-f": "--format"})
            _count(operands, 1)
        case ["docker", "compose" | "buildx", "version"]:
            pass
        case ["docker", "compose", *rest]:
            _compose(rest)
        case _:
            raise DockerUsageError(f"unknown: {' '.join(words)}")
    return []


def _run(words: list[str]) -> list[str]:
    options, operands = _parse(words, RUN, SHORT, stops=True)
    if not operands:
        raise DockerUsageError("docker run requires an image")
    image, *command = operands
    if image not in BY_TAG:
        _matches(image, f"{BY_DIGEST}|{VARIABLE}")
    if "--rm" in options and "--restart" in options:
        raise DockerUsageError("conflicting options: cannot specify both --restart and --rm")
    for variable in options.get("--env", []):
        name, _, value = variable.partition("=")
        if value and SECRET.search(name):
            raise DockerUsageError(f"{name} would be in the process list; pass it by name")
    return command


def _compose(words: list[str]) -> None:
    options, operands = _parse(words, {"--file": r".+"}, {"-f": "--file"}, stops=True)
    if "--file" not in options or not operands:
        raise DockerUsageError("docker compose requires --file and a command")
    verb, *rest = operands
    known = {"up": UP, "down": {}, "ps": PS, "logs": LOGS}
    if verb not in known:
        raise DockerUsageError(f"unknown docker compose command: {verb}")
    _parse(rest, known[verb], {"-d": "--detach"})


def _parse(
    words: Sequence[str], known: Mapping[str, str], short: Mapping[str, str] | None = None, *, stops: bool = False
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the options and the operands; with `stops`, everything after the first operand is an operand."""
    options: dict[str, list[str]] = {}
    rest, operands = list(words), []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            operands.append(word)
            if stops:
                return options, operands + rest
            continue
        name, equals, value = word.partition("=")
        name = (short or {}).get(name, name)
        if name not in known:
            raise DockerUsageError(f"unknown flag: {name}")
        if known[name] == FLAG:
            if equals and value not in ("true", "false"):
                raise DockerUsageError(f"{name} takes no value")
        else:
            if not equals:
                if not rest:
                    raise DockerUsageError(f"flag needs an argument: {name}")
                value = rest.pop(0)
            _matches(value, f"{known[name]}|{VARIABLE}")
        options.setdefault(name, []).append(value)
    return options, operands


def _matches(word: str, pattern: str) -> None:
    if not re.fullmatch(pattern, word):
        raise DockerUsageError(f"{word!r} is not {pattern}")


def _count(operands: Sequence[str], number: int) -> None:
    if len(operands) != number:
        raise DockerUsageError(f"requires {number} argument, got {list(operands)}")
