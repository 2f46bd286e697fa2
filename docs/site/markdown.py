# SPDX-License-Identifier: Apache-2.0
"""Markdown as GitHub reads it: writing of tables, and conversion to the dialect of Python-Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

FENCED = re.compile(r"^ *(```+|~~~+)[^\n]*\n.*?^ *\1 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)(`+)(?!`)(?:[^\n]|\n(?!\n))*?(?<!`)\1(?!`)")  # may continue on the next line
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^()\s]+)(?=\))")
ITEM = re.compile(r"(?:[*+-]|\d+\.) +")
MARKER = re.compile(r"^<!--.*-->\n\Z", re.MULTILINE)  # directly before a code block
LIST_INDENT = 4  # columns that Python-Markdown requires below every marker


def escape(text: str) -> str:
    """Return a plain text as Markdown for a table cell; code in backquotes stays code."""
    marked = _outside(CODE, text, lambda plain: re.sub(r"([*\[\]])", r"\\\1", plain).replace("<", "&lt;"))
    return " ".join(marked.replace("|", r"\|").split())


def code(text: str) -> str:
    """Return a text as code for a table cell."""
    return f"`{text}`".replace("|", r"\|") if text else ""


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown already."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def map_links(text: str, change: Callable[[str], str]) -> str:
    """Return a page with the target of each link outside code changed."""

    def changed(prose: str) -> str:
        return LINK.sub(lambda found: found[1] + change(found[2]), prose)

    # the text of a link may have code, so that code is hidden instead of split off
    hidden: list[str] = []

    def hide(found: re.Match[str]) -> str:
        hidden.append(found[0])
        return f"\0{len(hidden) - 1}\0"

    plain = CODE.sub(hide, FENCED.sub(hide, text))
    shown = changed(plain)
    while "\0" in shown:
        shown = re.sub("\0(\\d+)\0", lambda found: hidden[int(found[1])], shown)
    return shown


def python_markdown(text: str) -> str:
    r"""Return a page in Python-Markdown's dialect.

    It nests lists by four columns instead of the width of the marker, keeps the backslash of `\|` in code within a
    table, and reads a code block directly after a comment as a part of the comment.
    """
    nested = "\n".join(_nested_by_four(_outside(FENCED, text, lambda prose: MARKER.sub("\n", prose)).split("\n")))
    return _outside(FENCED, nested, lambda prose: re.sub(r"^\|.*$", _unescaped, prose, flags=re.MULTILINE))


def _unescaped(row: re.Match[str]) -> str:
    return CODE.sub(lambda found: found[0].replace(r"\|", "|"), row[0])


def _nested_by_four(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines with the content of list items in multiples of four columns."""
    width, shift, fence = 0, 0, ""  # of the list's marker; of the current line; that ends a code block
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() and not fence:
            if indent == 0:
                item = ITEM.match(line)
                width = len(item[0]) if item else 0
            shift = indent // width * (LIST_INDENT - width) if width else 0
        yield " " * shift + line if line.strip() else line
        if mark := re.match(r"```+|~~~+", line.lstrip(" ")):
            fence = "" if fence and mark[0].startswith(fence) else fence or mark[0]


def _outside(pattern: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Return a text with everything changed that the pattern does not match."""
    parts, at = [], 0
    for found in pattern.finditer(text):
        parts += [change(text[at : found.start()]), found[0]]
        at = found.end()
    return "".join([*parts, change(text[at:])])
