# SPDX-License-Identifier: Apache-2.0
"""Matrix cells: names, selection by name, and documents of the same shape with and without a matrix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.recipe.load import load_matrix
from trtspec.recipe.schema import NAME

HEAD = "schema: trtspec.recipe/1\nname: tiny\ntarget: {model: ./t}\n"
AXIS = "\nmatrix: {speculation.draft_len: [1, 2]}\n"


def names(text: str, head: str = HEAD) -> list[str]:
    Path("r.yaml").write_text(head + text)
    return [loaded.recipe.name for loaded in load_matrix(Path("r.yaml"))]


def test_variant_name_includes_more_of_the_path_if_last_parts_are_equal(workplace: Path) -> None:
    axes = "target.dtype: [float16], speculation.draft.dtype: [bfloat16], engine.gpu: [h200]"
    draft = "speculation: {method: draft_target, draft: {model: ./d}}\n"
    assert names(f"{draft}matrix: {{{axes}}}") == ["tiny-target.dtype-float16-draft.dtype-bfloat16-gpu-h200"]


def test_added_axis_value_does_not_change_existing_variant_names(workplace: Path) -> None:
    before = names("matrix: {engine.gpu: [h200], engine.max_batch_size: [1, 2]}")
    after = names("matrix: {engine.gpu: [h100, h200], engine.max_batch_size: [0x10, 1, 2, 4]}")
    assert set(before) < set(after)


def test_list_and_mapping_values_get_distinct_variant_names(workplace: Path) -> None:
    trees = "matrix: {speculation.options.tree: [[[0], [0, 1]], [[0, 0], [1]]]}"
    assert names(trees) == ["tiny-tree-0-0_1", "tiny-tree-0_0-1"]
    stored = "matrix: {target.quantization: [{weights: fp8}, {kv_cache: fp8}]}"
    assert names(stored) == ["tiny-quantization-weights-fp8", "tiny-quantization-kv_cache-fp8"]


def test_long_variant_names_are_shortened_and_remain_unique(workplace: Path) -> None:
    models = ["./" + "m" * 80 + end for end in "ab"]
    found = names(f"matrix: {{target.model: [{', '.join(models)}]}}")
    assert len(set(found)) == 2
    for name in found:
        assert re.fullmatch(NAME, name)
        assert len(name) == 63
        assert name.startswith("tiny-model-mmm")
    assert names(f"matrix: {{target.model: [{models[1]}]}}") == found[1:]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "plan", "build"])
def test_variants_are_selected_by_name_pattern(command: str, recipe: Path, trtspec: Run) -> None:
    recipe.write_text(recipe.read_text() + AXIS)
    for patterns in (["tiny-draft_len-2"], ["*-2"], ["*_len-2", "tiny-draft_len-2"]):
        chosen = [argument for pattern in patterns for argument in ("--variant", pattern)]
        document = trtspec(command, recipe, *chosen, "--json").document
        assert [each["name"] for each in document["recipes"]] == ["tiny-draft_len-2"]
    refused = trtspec(command, recipe, "--variant", "*-1", "--variant", "tiny-3")
    assert (refused.code, refused.err) == (
        1,
        f"error: {recipe}: no cell of its matrix is named 'tiny-3'\n"
        "hint: its cells are tiny-draft_len-1, tiny-draft_len-2\n",
    )
    assert not (recipe.parent / "build" / "tiny-draft_len-1").exists()


def test_invalid_variant_is_ignored_if_not_selected(recipe: Path, trtspec: Run) -> None:
    recipe.write_text(recipe.read_text() + AXIS.replace("2]", "none]"))
    assert trtspec("check", recipe).code == 1
    assert trtspec("check", recipe, "--variant", "*-1").code == 0


@pytest.mark.slow
def test_out_option_requires_a_single_selected_variant(recipe: Path, trtspec: Run) -> None:
    recipe.write_text(recipe.read_text() + AXIS)
    refused = trtspec("build", recipe, "--out", "one")
    assert refused.err.endswith("hint: omit --out, or select one cell with --variant\n")
    assert trtspec("build", recipe, "--out", "one", "--variant", "*-2").code == 0
    assert (recipe.parent / "one" / "manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "plan", "build"])
def test_json_documents_list_recipes_with_and_without_a_matrix(command: str, recipe: Path, trtspec: Run) -> None:
    single = trtspec(command, recipe, "--json").document
    (only,) = single["recipes"]
    assert only["name"] == "tiny"
    assert {key: only[key] for key in only if key in single} == {key: single[key] for key in single if key in only}
    recipe.write_text(recipe.read_text() + AXIS)
    many = trtspec(command, recipe, "--json").document
    assert [each["name"] for each in many["recipes"]] == ["tiny-draft_len-1", "tiny-draft_len-2"]
    assert [set(each) for each in many["recipes"]] == [set(only)] * 2
