# SPDX-License-Identifier: Apache-2.0
"""Data files with names by fact and range of releases: reading, writing, and comparison with what was read.

The format is described at the top of trtspec/backends/vllm/versions.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from trtspec.core.paths import load_package_yaml
from trtspec.core.versions import facts_by_release

Facts = dict[str, set[str]]
WIDTH = 120


@dataclass
class Table:
    """The content of a data file.

    Attributes:
        head: its comment.
        sources: by release the wheel, its sha256, and the date on which the release appeared on the index.
        containers: tags of the Triton containers that ship a release, for releases that have any.
        facts: names by release and fact.
    """

    head: str
    sources: dict[str, dict[str, Any]]
    containers: dict[str, list[str]]
    facts: dict[str, Facts] = field(default_factory=dict)

    def render(self) -> str:
        """Return the text of the data file; raise ValueError if a fact cannot be written as ranges of releases."""
        versions = sorted(self.facts, key=Version)
        lines = [self.head, "sources:"]
        lines += [f"  {version}: {_source(self.sources[version])}" for version in versions]
        lines += ["containers:"] * bool(self.containers)
        for version, tags in self.containers.items():
            quoted = ", ".join(f'"{tag}"' for tag in tags)
            lines.append(f"  {version}: [{quoted}]")
        for fact in self.facts[versions[0]]:
            lines.append(f"{fact}:")
            for span, names in spans(self.facts, fact).items():
                lines += _wrapped(f"  {span}: [", names)
        return "\n".join(lines) + "\n"


def load_table(path: Path, facts: tuple[str, ...]) -> Table:
    """Return the content of a data file."""
    document = load_package_yaml(path)
    by_release = facts_by_release(document, facts)
    found = {version: {fact: set(names) for fact, names in each.items()} for version, each in by_release.items()}
    head = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    return Table(head, dict(document["sources"]), document.get("containers", {}), found)


def spans(facts: Mapping[str, Facts], fact: str) -> dict[str, list[str]]:
    """Return the names of a fact by the releases that have them: "0.20.0..0.32.0", "0.27.0.." up to the newest."""
    versions = sorted(facts, key=Version)
    found: dict[str, list[str]] = {}
    for name in sorted(set().union(*(facts[version][fact] for version in versions))):
        has = [version for version in versions if name in facts[version][fact]]
        runs = [version for version in versions if Version(has[0]) <= Version(version) <= Version(has[-1])]
        if runs != has:
            raise ValueError(f"{fact}: {name} comes and goes: {has}")
        found.setdefault(f"{has[0]}..{'' if has[-1] == versions[-1] else has[-1]}", []).append(name)
    return dict(sorted(found.items(), key=lambda item: [Version(end) for end in item[0].split("..") if end]))


def differences(known: Facts, found: Facts) -> dict[str, tuple[list[str], list[str]]]:
    """Return the new and the removed names of each fact that differs."""
    pairs = {fact: (sorted(found[fact] - known[fact]), sorted(known[fact] - found[fact])) for fact in known}
    return {fact: pair for fact, pair in pairs.items() if any(pair)}


def _source(source: Mapping[str, Any]) -> str:
    released = f', released: "{source["released"]}"' if source.get("released") else ""
    return f"{{wheel: {source['wheel']}{released},\n    sha256: {source['sha256']}}}"


def _wrapped(start: str, names: list[str]) -> list[str]:
    lines = [start]
    for number, name in enumerate(names):
        word = name + ("," if number < len(names) - 1 else "]")
        if len(lines[-1]) + len(word) + 1 > WIDTH:
            lines.append("   ")
        lines[-1] += word if lines[-1].endswith("[") else f" {word}"
    return lines
