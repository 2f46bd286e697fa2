# SPDX-License-Identifier: Apache-2.0
"""Check built pages: every link and anchor resolves within the site, and nothing is loaded from another host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Parser(HTMLParser):
    """Collects the ids, the links and the loaded files of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif target := values.get(LOADED.get(tag, "")):
            self.loaded.append(target)


@cache
def _parsed(page: Path) -> _Parser:
    parser = _Parser()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def broken_links(site: Path) -> list[str]:
    """Return a line for each link, anchor and loaded file of a site that does not resolve."""
    pages = sorted(site.rglob("*.html"))
    return [line for page in pages for line in _broken(page, site)]


def _broken(page: Path, site: Path) -> Iterator[str]:
    parsed, name = _parsed(page), page.relative_to(site)
    for target in parsed.loaded:
        if urlsplit(target).netloc:
            yield f"{name}: loads {target} from another host"
    for target in (*parsed.links, *parsed.loaded):
        split = urlsplit(target)
        if split.scheme or split.netloc:
            continue
        folder = site if target.startswith("/") else page.parent  # 404.html is served at any path
        file = (folder / unquote(split.path).lstrip("/")).resolve() if split.path else page
        file = file / "index.html" if file.is_dir() else file
        if not file.is_file():
            yield f"{name}: {target} does not exist"
        elif split.fragment and file.suffix == ".html" and unquote(split.fragment) not in _parsed(file).ids:
            yield f"{name}: {target} leads to a missing section"
