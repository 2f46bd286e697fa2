# SPDX-License-Identifier: Apache-2.0
"""SVG plots without scripts, fonts or fixed colours, for light and dark pages and for print.

Colours are custom properties of `plots.css`. A plot is 420 units wide so that its text is legible on a phone; the
table below it has the numbers.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def style() -> str:
    """Return the CSS of plots and of their page."""
    return minify_css(Path(__file__).with_name("plots.css"))


def minify_css(sheet: Path) -> str:
    """Return a style sheet without optional white space."""
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r": ", ":", sheet.read_text())).strip()
