# SPDX-License-Identifier: Apache-2.0
"""The documentation site in a real browser: desktop and phone, light and dark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.site.pages import ROOT
from tests._support.npm import Unavailable, modules
from tests.report.chromium import AXE, SEEN, Browser, browser, chromium

pytest.importorskip("zensical", reason="no Zensical here: it needs Python 3.11")
pytestmark = pytest.mark.slow

PAGES = (
    "index.html",
    "get-started/gpu-vllm.html",
    "methods.html",
    "reference/commands.html",
    "reference/recipe-keys.html",
)  # front, long, wide
# The first elements beyond the right edge of a page that scrolls sideways.
WIDE = """(() => {
const root = document.documentElement;
if (root.scrollWidth <= root.clientWidth) return [];
const isBeyond = each => each.getBoundingClientRect().right > root.clientWidth + 1;
return [...document.querySelectorAll("body *")].filter(isBeyond).slice(0, 5).map(each => each.outerHTML.slice(0, 200));
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; requires the browser first, to skip before building."""
    chromium()
    out = tmp_path_factory.mktemp("site") / "html"
    subprocess.run([sys.executable, "-m", "docs.site", "--out", str(out)], cwd=ROOT, timeout=300, check=True)
    return out


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Iterator[Browser]:
    """A running browser."""
    with browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "dark"), SEEN)
def test_page_does_not_scroll_sideways(page: str, width: int, dark: bool, shown: Browser, site: Path) -> None:
    shown.open(site / page, width, dark=dark)
    if folder := os.environ.get("TRTSPEC_PICTURES"):  # for visual inspection
        name = f"{page.replace('/', '-')}-{width}-{'dark' if dark else 'light'}.png"
        (Path(folder) / name).write_bytes(shown.picture())
    assert shown.run(WIDE) == []
    assert shown.run("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "dark"), SEEN)
def test_page_has_no_serious_accessibility_violations(
    page: str, width: int, dark: bool, shown: Browser, site: Path
) -> None:
    """Check the page with axe-core."""
    try:
        axe = (modules(ROOT / "tests" / "report" / "axe") / "axe-core" / "axe.min.js").read_text()
    except Unavailable as reason:
        pytest.skip(str(reason))
    shown.open(site / page, width, dark=dark)
    shown.run(f"{axe};0")
    assert shown.run(AXE) == []


def test_page_loads_only_files_of_the_site(shown: Browser, site: Path) -> None:
    shown.open(site / "index.html", 1280)
    assert [url for url in shown.requested() if not url.startswith((site.as_uri(), "data:"))] == []
