# SPDX-License-Identifier: Apache-2.0
"""Editing a section of a recipe file leaves the rest unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from trtspec.core.errors import TrtspecError
from trtspec.recipe.yaml_edit import edit_section, write_section

TEXT = """\
# head
schema: trtspec.recipe/1
name: mine  # a name
speculation:
  # why this method
  method: draft_target  # it pays
  draft_len: 5 # five
  draft:
    model: ./draft  # small
  options: {stop_below: 0.1}

# the engine
engine:
  max_batch_size: 4
"""


def test_unchanged_section_leaves_the_text_unchanged() -> None:
    section = {"method": "draft_target", "draft_len": 5, "draft": {"model": "./draft"}, "options": {"stop_below": 0.1}}
    assert edit_section(TEXT, "speculation", section) == TEXT


def test_changed_number_is_replaced_in_place() -> None:
    section = {"method": "draft_target", "draft_len": 3, "draft": {"model": "./draft"}, "options": {"stop_below": 0.1}}
    assert edit_section(TEXT, "speculation", section) == TEXT.replace("5 # five", "3 # five")


def test_added_and_removed_keys_leave_the_rest_unchanged() -> None:
    schedule = [{"max_batch": 1, "draft_len": 8}, {"max_batch": 4, "draft_len": 2}]
    text = edit_section(TEXT, "speculation", {"method": "ngram", "draft_len": 8, "schedule": schedule})
    assert yaml.safe_load(text)["speculation"] == {"method": "ngram", "draft_len": 8, "schedule": schedule}
    assert text.startswith(TEXT[: TEXT.index("  method")])
    assert text.endswith(TEXT[TEXT.index("\n# the engine") :])
    assert "method: ngram  # it pays" in text


@pytest.mark.parametrize(
    "text",
    ["name: a", "name: a\nspeculation: {method: none}\nengine: {}\n", "speculation:\n  method: none", "speculation:\n"],
)
def test_missing_flow_style_or_empty_section_is_written(text: str) -> None:
    wanted = {"method": "eagle3", "draft": {"model": "org/name", "revision": "0" * 40}, "draft_len": 4}
    after = yaml.safe_load(edit_section(text, "speculation", wanted))
    assert after == {**yaml.safe_load(text), "speculation": wanted}


def test_edit_that_makes_the_recipe_invalid_is_not_written(recipe: Path) -> None:
    before = recipe.read_bytes()
    with pytest.raises(TrtspecError, match="not written"):
        write_section(recipe, "speculation", {"method": "ngram", "draft_len": 1000})
    assert recipe.read_bytes() == before
    assert [path.name for path in recipe.parent.glob(".*.yaml")] == []
    with pytest.raises(TrtspecError, match="no such file"):
        write_section(recipe.with_name("none.yaml"), "speculation", {"method": "none"})
