# SPDX-License-Identifier: Apache-2.0
"""Files that a target renders: YAML with a head of comments, their settings, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from trtspec.core.errors import DeployError
from trtspec.core.files import replace_file
from trtspec.core.registry import did_you_mean

MARK = "rendered by trtspec"
Rendered = dict[str, str]  # by path relative to a directory


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # anchors are for machines; people edit these files

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def as_yaml(*documents: Mapping[str, Any], head: str = "") -> str:
    """Return documents as YAML, behind a head that becomes comments."""
    lines = [*head.split("\n"), f"({MARK})"] if head else [MARK]
    comments = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    texts = [yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True) for each in documents]
    return comments + "---\n".join(texts)


def write_rendered(out: Path, rendered: Mapping[str, str]) -> list[str]:
    """Write files below a directory and return their paths; a file of somebody else's stays, as DeployError says."""
    for path in rendered:
        place = out / path
        if place.exists() and (MARK not in place.read_text(errors="replace") or place.is_symlink()):
            hint = "move it away, or render into another directory"
            raise DeployError("lies in the way: trtspec did not write it", where=str(place), hint=hint)
    for path, text in rendered.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(out / path, text.encode())
    return sorted(rendered)


Settings = TypeVar("Settings")


def settings_of(kind: type[Settings], given: Mapping[str, str]) -> Settings:
    """Return settings (a frozen dataclass of texts and whole numbers) from words; DeployError for any it has not."""
    known = {field.name.replace("_", "-"): field for field in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            message = f"unknown option {key!r}; known: {', '.join(known)}"
            raise DeployError(message, hint=did_you_mean(key, known))
        values[known[key].name] = _number(key, text) if known[key].type == "int" else text
    return kind(**values)


def _number(key: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise DeployError(f"option {key}: {text!r} is no whole number")
    return int(text)
