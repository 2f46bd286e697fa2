# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG: no script, no font, no colour but the page's own, so that light, dark and print all work.

Colours are the custom properties of `plots.css`. A picture is 420 units wide, so that its text can be read on a phone,
too; its numbers stand in the table under it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def style() -> str:
    """Return the colours of plots and of what they stand in, as CSS."""
    return packed(Path(__file__).with_name("plots.css"))


def packed(sheet: Path) -> str:
    """Return a style sheet without the spaces that are for people."""
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r": ", ":", sheet.read_text())).strip()
