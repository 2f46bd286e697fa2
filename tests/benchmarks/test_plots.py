# SPDX-License-Identifier: Apache-2.0
"""The plots of README and docs/profile.md are up to date with the committed results."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.plots import DOCS, PLOTS


@pytest.mark.parametrize("name", PLOTS)
def test_plot_is_up_to_date_with_its_results(name: str) -> None:
    assert (DOCS / name).read_text() == PLOTS[name](), "python -m benchmarks.plots"


@pytest.mark.parametrize("name", PLOTS)
def test_plot_is_a_self_contained_svg_shown_in_the_docs(name: str) -> None:
    text = (DOCS / name).read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "script" not in text
    assert text.count("http") == 1
    assert f"({name})" in (DOCS / "profile.md").read_text()
