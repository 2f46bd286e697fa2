# SPDX-License-Identifier: Apache-2.0
"""Pages have the same structure on the site, which Python-Markdown renders, as on GitHub, which follows CommonMark."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from docs.site.markdown import anchor, code, escape, map_links, python_markdown, table
from docs.site.pages import ROOT
from docs.site.reference import generated_pages

markdown = pytest.importorskip("markdown", reason="no Python-Markdown here: Zensical needs Python 3.11")

FILES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*/README.md"))]
COUNTED = ("li", "table", "tr", "td", "th", "pre", "h1", "h2", "h3", "a", "img", "em", "strong", "ul", "ol")


class Structure(HTMLParser):
    """Counts elements, and collects the text of code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.codes: list[str] = []
        self._in_code = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] += tag in COUNTED
        if tag == "code":
            self._in_code = True
            self.codes.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_code &= tag != "code"

    def handle_data(self, data: str) -> None:
        if self._in_code:
            self.codes[-1] += data


def on_site(text: str) -> Structure:
    extensions = ["tables", "sane_lists", "pymdownx.superfences", "pymdownx.highlight"]
    configs = {"pymdownx.highlight": {"use_pygments": False}}
    return Structure(markdown.markdown(python_markdown(text), extensions=extensions, extension_configs=configs))


def on_github(text: str) -> Structure:
    return Structure(MarkdownIt("commonmark").enable("table").render(text))


def words(codes: list[str]) -> list[str]:
    return [" ".join(each.split()) for each in codes]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_page_has_the_same_structure_as_on_github(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert on_site(text).counts == on_github(text).counts
    assert words(on_site(text).codes) == words(on_github(text).codes)


@pytest.mark.parametrize("page", sorted(generated_pages()))
def test_generated_page_has_the_same_structure_as_on_github(page: str) -> None:
    text = generated_pages()[page]
    assert on_site(text).counts == on_github(text).counts
    assert words(on_site(text).codes) == words(on_github(text).codes)


def test_nested_lists_and_their_code_are_indented_by_four() -> None:
    text = (
        "* one\n  more\n  * two\n    * three\n\n  ```sh\n  ls\n    -l\n  ```\n\n"
        "1. first\n   ```sh\n   ls\n   ```\n\nend\n    code\n"
    )
    assert on_site(text).counts == on_github(text).counts
    assert "    * two\n        * three" in python_markdown(text)
    assert "    ls\n      -l\n" in python_markdown(text)


def test_comment_before_a_code_block_is_removed() -> None:
    shown = "```sh\n<!-- kept -->\n```\n"
    assert python_markdown(f"<!-- not run: why -->\n{shown}") == f"\n{shown}"


def test_links_in_code_are_unchanged() -> None:
    text = "[a\nb](x.md) `[c](x.md)` [`d`](x.md#e) ![f](x.svg)\n\n```sh\n[g](x.md)\n```\n"
    changed = "[a\nb](y/x.md) `[c](x.md)` [`d`](y/x.md#e) ![f](y/x.svg)\n\n```sh\n[g](x.md)\n```\n"
    assert map_links(text, lambda target: f"y/{target}") == changed


def test_table_cells_are_escaped() -> None:
    rows = [(code("fail|pass"), escape("a <b> *c* [d] `e|f`\ng"))]
    html = MarkdownIt("commonmark").enable("table").render(table(("x", "y"), rows))
    assert re.findall("<td>(.*)</td>", html) == ["<code>fail|pass</code>", "a &lt;b&gt; *c* [d] <code>e|f</code> g"]


def test_anchor_is_the_one_of_github() -> None:
    assert anchor("Changing single values: `--set`") == "changing-single-values---set"
    assert anchor("speculation.schedule.*") == "speculationschedule"
