# SPDX-License-Identifier: Apache-2.0
"""Shell completions of arguments and options for typer, without slow imports.

A callback never raises. On an error it returns no completions, so the shell offers files, and the command itself
reports the error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableMapping
from functools import wraps
from pathlib import Path

VARIABLE = "_TRTSPEC_COMPLETE"  # set by the shell's completion function
KEY = "_TRTSPEC_COMPLETE_KEY"  # the key of an override that bash split at `=`

Offers = list[tuple[str, str]]  # pairs of a completion and a help text, which zsh and fish show
Callback = Callable[[str], Offers]


def _quietly(offer: Callback) -> Callback:
    @wraps(offer)
    def offered(incomplete: str) -> Offers:
        from trtspec.core.errors import TrtspecError

        try:
            return offer(incomplete)
        except (TrtspecError, OSError):
            return []

    return offered


@_quietly
def recipes(incomplete: str) -> Offers:
    """Return the recipes shipped with trtspec and the YAML files in the directory of the incomplete path."""
    from trtspec.core.paths import recipes_dir

    here, paths = Path.cwd(), sorted(recipes_dir().glob("*.yaml"))
    shown = [path.relative_to(here) if path.is_relative_to(here) else path for path in paths]
    shipped = [(str(path), "shipped with trtspec") for path in shown]
    folder = Path(incomplete or ".") if incomplete.endswith("/") else Path(incomplete).parent
    files = [(str(path), "") for path in sorted(folder.glob("*.y*ml"))]
    return list({**dict(files), **dict(shipped)}.items())


@_quietly
def deployments(incomplete: str) -> Offers:
    from trtspec.deployment.journal import deployment_names

    return [(name, "") for name in deployment_names()]


@_quietly
def metrics(incomplete: str) -> Offers:
    return [(what, "") for what in ("dashboard", "rules", "scrape")] + deployments(incomplete)


@_quietly
def dialects(incomplete: str) -> Offers:
    from trtspec.methods.draft_formats.base import dialects as known

    return [(name, dialect.title) for name, dialect in known().items()]


@_quietly
def trainers(incomplete: str) -> Offers:
    from trtspec.core.registry import extension_names

    return [(name, "") for name in extension_names("trtspec.training.external.trainers")]


@_quietly
def overrides(incomplete: str) -> Offers:
    """Return recipe keys followed by `=`, or known values after the `=`; both if only one key matches."""
    from trtspec.planning.completion import described_values, override_keys

    if key := os.environ.get(KEY):
        return list(described_values(key).items())
    key, equals, _ = incomplete.partition("=")
    keys = {key: ""} if equals else override_keys(key)
    found = [] if equals else [(f"{each}=", text) for each, text in keys.items()]
    if len(keys) == 1:  # the shell adds no space after `=` if several completions share the prefix
        found += [(f"{each}={value}", text) for each in keys for value, text in described_values(each).items()]
    return found


def rejoin(environment: MutableMapping[str, str]) -> None:
    """Rejoin the words that bash splits at `=`; for a partial override, leave only the value to complete."""
    words = environment.get("COMP_WORDS", "").split("\n")
    at = int(environment.get("COMP_CWORD", len(words) - 1))
    if environment.get(VARIABLE) != "complete_bash" or not 0 < at <= len(words):
        return
    before, current = list(_joined(words[:at])), "".join(words[at : at + 1])
    key = before[-1] if current == "=" else before[-1].removesuffix("=") if before[-1].endswith("=") else ""
    if key:
        environment[KEY] = key
        before, current = before[:-1], "" if current == "=" else current
    environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join([*before, current]), str(len(before))


def _joined(words: list[str]) -> Iterator[str]:
    """Yield the words, with the three words `a`, `=`, `b` joined to `a=b`."""
    text = ""
    for word in words:
        if text and (word == "=" or text.endswith("=")):
            text += word
            continue
        if text:
            yield text
        text = word
    if text:
        yield text
