# SPDX-License-Identifier: Apache-2.0
"""Former spellings of options: they work for one more release, with a note on standard error."""

from __future__ import annotations

from collections.abc import Sequence

_SEARCH = {"--samples": "--num-prompts", "--minutes": "--max-minutes"}
_RENAMED: dict[str, dict[str, str]] = {
    "bench": {
        "--absolute": "--ignore-baseline",
        "--interval": "--ci-width",
        "--min-ratio": "--fail-below",
        "--samples": "--samples-out",
    },
    "build": {"--cell": "--variant"},
    "check": {"--cell": "--variant"},
    "checklist": {"--with": "--results"},
    "deploy": {"--option": "--target-option", "--wait-warm": "--wait-for-warmup"},
    "inspect": {"--tensor": "--tp", "--pipeline": "--pp"},
    "plan": {"--cell": "--variant"},
    "profile": {"--samples": "--num-prompts"},
    "prune": _SEARCH,
    "report": {"--with": "--results"},
    "swift": _SEARCH,
    "train": {
        "--keep": "--regression-prompts",
        "--minutes": "--max-minutes",
        "--sampled": "--samples-per-prompt",
    },
    "tune": {"--samples": "--num-prompts"},
    "verify": {"--reread": "--rehash"},
}


def current_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments with current option names, and a note for each former name; everything after `--` stays."""
    command = next((each for each in arguments if not each.startswith("-")), "")
    renamed = _RENAMED.get(command, {})
    found: list[str] = []
    notes: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*found, *arguments[place:]], notes
        name, equals, value = argument.partition("=")
        new = renamed.get(name, name)
        if new != name:
            notes.append(f"{command} {name} is now {new}; {name} will be removed in the next release")
        found.append(new + equals + value)
    return found, list(dict.fromkeys(notes))
