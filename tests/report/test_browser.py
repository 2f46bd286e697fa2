# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: desktop, phone and paper, light and dark, with real documents."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._support.npm import Unavailable, modules
from tests.report.chromium import AXE, SEEN, Browser, browser, chromium
from trtspec.cli.app import main

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SAVED = [HERE / "documents" / f"{name}.json" for name in ("profile", "load")]  # from real runs of the quickstart
LAYOUT = (HERE / "layout.js").read_text()
PAPER = 718  # pixels of A4 without margins
CUT = """[...document.querySelectorAll(".scroll, pre")].filter(e => e.scrollWidth > e.clientWidth + 1)
.map(e => e.textContent.slice(0, 60))"""


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the output of a command."""
    capfd.readouterr()
    with pytest.raises(SystemExit):
        main([str(argument) for argument in arguments])
    return capfd.readouterr().out


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running browser."""
    with browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the page; requires the browser first, to skip before building."""
    chromium()
    return tmp_path_factory.mktemp("page")


@pytest.fixture
def page(root: Path, pair_master: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """The report of the built, verified and measured tiny pair, with more measurements of the quickstart."""
    out = root / "report.html"
    if out.exists():
        return out
    shutil.copytree(pair_master, root, dirs_exist_ok=True)
    monkeypatch.setenv("TRTSPEC_CACHE", str(root / "cache"))
    monkeypatch.chdir(root)
    artifact = root / "build" / "tiny"
    (root / "build.json").write_text(run(capfd, "build", "recipe.yaml", "--json"))
    run(capfd, "verify", artifact, "--max-tokens", 4)
    (root / "bench.json").write_text(run(capfd, "bench", artifact, "--runs", 2, "--max-tokens", 8, "--json"))
    saved = [part for name in ("build.json", "bench.json", *SAVED) for part in ("--results", name)]
    run(capfd, "report", artifact, *saved, "-o", out)
    return out


@pytest.mark.parametrize(("width", "dark"), SEEN)
def test_page_has_no_cut_or_overlapping_elements(width: int, dark: bool, shown: Browser, page: Path) -> None:
    shown.open(page, width, dark=dark)
    if folder := os.environ.get("TRTSPEC_PICTURES"):  # for visual inspection
        (Path(folder) / f"report-{width}-{'dark' if dark else 'light'}.png").write_bytes(shown.picture())
    assert shown.run(LAYOUT) == []
    background = shown.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (not dark)


@pytest.mark.parametrize(("width", "dark"), SEEN)
def test_page_has_no_serious_accessibility_violations(width: int, dark: bool, shown: Browser, page: Path) -> None:
    """Check the page with axe-core."""
    try:
        axe = (modules(HERE / "axe") / "axe-core" / "axe.min.js").read_text()
    except Unavailable as reason:
        pytest.skip(str(reason))
    shown.open(page, width, dark=dark)
    shown.run(f"{axe};0")
    assert shown.run(AXE) == []


def test_page_loads_nothing_else_and_logs_no_errors(shown: Browser, page: Path) -> None:
    assert page.stat().st_size < 1 << 20
    shown.open(page, 1280)
    shown.run("window.scrollTo(0, document.body.scrollHeight)")
    assert shown.requested() == [page.as_uri()]
    assert shown.complaints() == []


def test_printed_page_is_complete_and_light(shown: Browser, page: Path) -> None:
    shown.open(page, PAPER, dark=True, media="print")
    assert shown.run(LAYOUT) == []
    assert shown.run(CUT) == []
    assert shown.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    paper = shown.paper()
    if folder := os.environ.get("TRTSPEC_PICTURES"):
        (Path(folder) / "report.pdf").write_bytes(paper)
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) > 1


def test_damaged_page_is_detected_by_the_checks(shown: Browser, page: Path, root: Path) -> None:
    """The checks report the defects of a damaged page."""
    other = root / "worse.html"
    text = page.read_text()
    wide = '<p style="width:2000px;max-width:none">wide</p><p style="margin-top:-40px">over</p>'
    fetching = '<img src="http://127.0.0.1:9/x.png" alt=""><script>alert(1)</script>'
    other.write_text(text.replace("<section>", f"{wide}{fetching}<section>", 1))
    shown.open(other, 390)
    assert any("px in a window" in each for each in shown.run(LAYOUT))
    assert any(" over " in each for each in shown.run(LAYOUT))
    assert any("Content Security Policy" in each for each in shown.complaints())
    policy = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", other.read_text())
    other.write_text(policy.replace("<script>alert(1)</script>", ""))
    shown.open(other, 390)
    assert "http://127.0.0.1:9/x.png" in shown.requested()
