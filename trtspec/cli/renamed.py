# SPDX-License-Identifier: Apache-2.0
"""Former names of commands and options, which work for one more release with a note on stderr."""

from __future__ import annotations

from collections.abc import Sequence

_COMMANDS = {"checklist": "readiness", "prompts": "datasets", "prune": "prune-layers", "swift": "search-skips"}
_SEARCH = {"--samples": "--num-prompts", "--minutes": "--max-minutes"}
_OPTIONS: dict[str, dict[str, str]] = {
    "bench": {
        "--absolute": "--ignore-baseline",
        "--interval": "--ci-width",
        "--min-ratio": "--fail-below",
        "--samples": "--samples-out",
    },
    "build": {"--cell": "--variant"},
    "check": {"--cell": "--variant"},
    "deploy": {"--option": "--target-option", "--wait-warm": "--wait-for-warmup"},
    "inspect": {"--tensor": "--tp", "--pipeline": "--pp"},
    "plan": {"--cell": "--variant"},
    "profile": {"--samples": "--num-prompts"},
    "prune-layers": _SEARCH,
    "readiness": {"--with": "--results"},
    "report": {"--with": "--results"},
    "search-skips": _SEARCH,
    "train": {
        "--keep": "--regression-prompts",
        "--minutes": "--max-minutes",
        "--sampled": "--samples-per-prompt",
    },
    "tune": {"--samples": "--num-prompts"},
    "verify": {"--reread": "--rehash"},
}


def current_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return arguments with current names, and a note per former name; arguments after `--` are unchanged."""
    place = next((number for number, each in enumerate(arguments) if not each.startswith("-")), len(arguments))
    before, rest = list(arguments[:place]), list(arguments[place:])
    if not rest:
        return before, []
    former, *given = rest
    command = _COMMANDS.get(former, former)
    if former == "prune" and any(each.partition("=")[0] == "--vocab" for each in given):
        command = "prune-vocab"  # `prune` had two jobs
    notes = [_note(former, command)] if command != former else []
    options = _OPTIONS.get(command, {})
    found = [*before, command]
    for number, argument in enumerate(given):
        if argument == "--":
            found += given[number:]
            break
        name, equals, value = argument.partition("=")
        if name in options:
            notes.append(_note(f"{command} {name}", options[name], name))
        found.append(options.get(name, name) + equals + value)
    return found, list(dict.fromkeys(notes))


def _note(former: str, current: str, removed: str = "") -> str:
    return f"{former} is now {current}; {removed or former} will be removed in the next release"
