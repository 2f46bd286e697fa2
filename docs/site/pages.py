# SPDX-License-Identifier: Apache-2.0
"""The pages of the site: the navigation, and copies of all files that are reachable from it.

Pages stay where they are in the repository. Their links are followed, so that a linked file outside docs/ becomes a
page of the site too, or is copied unchanged if it is not Markdown.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docs.site.markdown import map_links, python_markdown

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
OVERVIEW = "overview.md"
Navigation = list[Any]  # of paths and mappings, as in MkDocs


def site_path(path: str) -> str:
    """Return the place in the site of a file of the repository.

    docs/ is the root of the site. The README.md of a folder is its index; the one of the project is overview.md.
    """
    folder, _, file = path.removeprefix(DOCS).rpartition("/")
    if file == "README.md":
        return f"{folder}/index.md" if folder else OVERVIEW
    return f"{folder}/{file}" if folder else file


class Pages:
    """Writes pages into a folder, each once, and the files that they link to."""

    def __init__(self, folder: Path, generated: dict[str, str]) -> None:
        self._folder, self._generated = folder, generated
        self._written: set[str] = set()
        self._waiting: list[str] = []
        self.problems: list[str] = []

    def add(self, path: str) -> None:
        """Write a page, given by its path in the repository or in `generated`, and all that is reachable from it."""
        self._waiting.append(path)
        while self._waiting:
            self._write(self._waiting.pop())

    def has(self, path: str) -> bool:
        """Return whether a path in the repository is a generated page or a file."""
        return path.removeprefix(DOCS) in self._generated or (ROOT / path).is_file()

    def _write(self, path: str) -> None:
        if path in self._written:
            return
        self._written.add(path)
        out = self._folder / site_path(path)
        out.parent.mkdir(parents=True, exist_ok=True)
        if not path.endswith(".md"):
            shutil.copyfile(ROOT / path, out)
        else:
            text = self._generated.get(path.removeprefix(DOCS)) or (ROOT / path).read_text(encoding="utf-8")
            out.write_text(python_markdown(map_links(text, lambda target: self._link(path, target))), encoding="utf-8")

    def _link(self, page: str, target: str) -> str:
        """Return the target of a link in the site; the linked file is written later."""
        place, sign, anchor = target.partition("#")
        if not place or "://" in place or place.startswith("mailto:"):
            return target
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(place)))
        if (ROOT / path).is_dir():
            path = self._folder_page(path)
        if path.startswith("../") or not self.has(path):
            self.problems.append(f"{page}: the link {target} leads nowhere")
            return target
        self._waiting.append(path)
        return os.path.relpath(site_path(path), posixpath.dirname(site_path(page)) or ".") + sign + anchor

    def _folder_page(self, path: str) -> str:
        """Return the page of a folder: its README.md, or a list of its files."""
        readme = f"{path}/README.md"
        if not (ROOT / readme).is_file():
            files = sorted(each.name for each in (ROOT / path).iterdir() if each.is_file())
            self._generated[readme] = f"# {path}\n\n" + "".join(f"* [{name}]({name})\n" for name in files)
        return readme


def complete(navigation: Navigation, pages: Pages) -> Navigation:
    """Return the navigation in the site's paths with patterns expanded, and write each page.

    An entry is a path, {title: path} or {title: entries}. A page that does not exist is a problem.
    """
    found: Navigation = []
    for entry in navigation:
        if isinstance(entry, str):
            found += _places(entry, pages)
            continue
        ((title, below),) = entry.items()
        if isinstance(below, str):
            found += [{title: place} for place in _places(below, pages)]
        else:
            found.append({title: complete(below, pages)})
    return found


def _places(pattern: str, pages: Pages) -> Iterator[str]:
    """Write the pages of a path or pattern relative to docs/, and yield their places in the site."""
    path = posixpath.normpath(DOCS + pattern)
    paths = sorted(str(each.relative_to(ROOT)) for each in ROOT.glob(path)) if "*" in path else [path]
    for each in paths:
        if not pages.has(each):
            pages.problems.append(f"docs/site/site.yaml: the page {each} does not exist")
            continue
        pages.add(each)
        yield site_path(each)
