# SPDX-License-Identifier: Apache-2.0
"""Read an engine's sources in a directory, or at the version tags of its git repository, without importing them."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from packaging.version import InvalidVersion, Version

from benchmarks.upstream.fetch import FetchError

GIT_S = 60.0
ASSIGNED = re.compile(r"""^__version__\s*=\s*["']([^"']+)["']""", re.MULTILINE)


class Checkout:
    """The files below a directory; with `tag`, the files at that tag of its git repository."""

    def __init__(self, root: Path, version: str, tag: str = "") -> None:
        self.root, self.version, self.tag = root, version, tag
        self.name, self.sha256 = (f"{root.name}@{tag}" if tag else root.name), ""
        self.read_members: set[str] = set()
        self.listed: list[str] | None = None
        self.trees: dict[str, ast.Module] = {}

    def names(self) -> list[str]:
        if self.listed is None:
            if self.tag:
                self.listed = _git(self.root, "ls-tree", "-r", "--name-only", self.tag).splitlines()
            else:
                self.listed = [path.relative_to(self.root).as_posix() for path in sorted(self.root.rglob("*.py"))]
        return self.listed

    def text(self, path: str) -> str:
        if path not in self.names():
            return ""
        self.read_members.add(path)
        if self.tag:
            return _git(self.root, "show", f"{self.tag}:./{path}")
        return (self.root / path).read_text(encoding="utf-8-sig", errors="replace")

    def tree(self, path: str) -> ast.Module:
        if path not in self.trees:
            try:
                self.trees[path] = ast.parse(self.text(path))
            except (SyntaxError, ValueError, RecursionError) as error:
                raise FetchError(f"{self.name}: {path}: {error}") from error
        return self.trees[path]


def open_checkouts(root: Path, version_file: str) -> dict[Version, Checkout]:
    """Return the releases in a directory by version: one for each version tag, else the files as they are.

    The version of files without tags is `__version__` in `version_file`. Tags without that file belong to a
    project around the directory and are ignored. Raise FetchError without any version.
    """
    found: dict[Version, Checkout] = {}
    for tag in _tags(root):
        try:
            version = Version(tag.removeprefix("v"))
        except InvalidVersion:
            continue
        found[version] = Checkout(root, str(version), tag)
    if found and (not version_file or version_file in found[max(found)].names()):
        return dict(sorted(found.items()))
    path = root / version_file
    assigned = ASSIGNED.search(path.read_text(encoding="utf-8")) if version_file and path.is_file() else None
    if not assigned:
        raise FetchError(f"{root} has neither version tags nor a version in {version_file or 'a known file'}")
    return {Version(assigned[1]): Checkout(root, assigned[1])}


def _tags(root: Path) -> list[str]:
    try:
        return _git(root, "tag", "--list", "v[0-9]*").splitlines()
    except FetchError:
        return []


def _git(root: Path, *words: str) -> str:
    try:
        ran = subprocess.run(
            ["git", "-C", str(root), *words],
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise FetchError(f"{root}: git {words[0]}: {getattr(error, 'stderr', '') or error}") from error
    return ran.stdout
