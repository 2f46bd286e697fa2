# SPDX-License-Identifier: Apache-2.0
"""`matrix:` follows the examples and rules of GitHub Actions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.core.diagnostics import Diagnostic, Mark, RecipeError
from trtspec.recipe.load import load_matrix, load_recipe
from trtspec.recipe.matrix import RecipeMatrix
from trtspec.recipe.yaml_tree import RecipeNode, plain

Write = Callable[..., Path]
Fail = Callable[..., RecipeError]

HERE = Mark("m")


def node(value: Any) -> RecipeNode:
    return RecipeNode(value, HERE, HERE, Path("/"))


def choices(axes: dict[str, list[Any]], include: list[Any] = [], exclude: list[Any] = []) -> list[dict[str, Any]]:  # noqa: B006
    def entries(items: list[Any]) -> list[dict[str, RecipeNode]]:
        return [{key: node(value) for key, value in item.items()} for item in items]

    nodes = {key: [node(value) for value in values] for key, values in axes.items()}
    found = RecipeMatrix(nodes, entries(include), entries(exclude)).choices()
    return [{key: plain(value) for key, value in choice.items()} for choice in found]


def test_include_matches_the_github_documentation_example() -> None:
    axes = {"fruit": ["apple", "pear"], "animal": ["cat", "dog"]}
    include = [
        {"color": "green"},
        {"color": "pink", "animal": "cat"},
        {"fruit": "apple", "shape": "circle"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]
    assert choices(axes, include) == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def test_exclude_matches_the_github_documentation_example() -> None:
    axes = {"os": ["macos", "windows"], "version": [12, 14, 16], "environment": ["staging", "production"]}
    exclude = [
        {"os": "macos", "version": 12, "environment": "production"},
        {"os": "windows", "version": 16},
    ]
    assert len(choices(axes, exclude=exclude)) == 12 - 1 - 2


def test_include_without_axes_makes_one_combination_each() -> None:
    assert choices({}, [{"site": "a"}, {"site": "b"}]) == [{"site": "a"}, {"site": "b"}]


def test_values_of_different_types_are_distinct() -> None:
    assert choices({"a": [1, True, 1.0, "1"]}, exclude=[{"a": True}]) == [{"a": 1}, {"a": 1.0}, {"a": "1"}]


AXES = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True), min_size=1
)
ENTRIES = st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), min_size=1), max_size=3)


@pytest.mark.slow
@given(AXES, ENTRIES)
def test_exclude_equals_filtering_the_product(axes: dict[str, list[int]], exclude: list[dict[str, int]]) -> None:
    exclude = [entry for entry in exclude if entry.keys() <= axes.keys()]
    every = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    kept = [choice for choice in every if not any(entry.items() <= choice.items() for entry in exclude)]
    assert choices(axes, exclude=exclude) == kept


# From files


def names(path: Path, overrides: tuple[str, ...] = ()) -> list[str]:
    return [loaded.recipe.name for loaded in load_matrix(path, overrides)]


def test_each_combination_makes_a_recipe_named_after_its_values(write: Write) -> None:
    loaded = load_matrix(
        write(
            "speculation: {method: ngram}\n"
            "matrix:\n"
            "  speculation.draft_len: [3, 5]\n"
            "  target.dtype: [float16, bfloat16]\n"
            "  exclude: [{speculation.draft_len: 3, target.dtype: float16}]\n"
            "  include:\n"
            "    - {speculation.draft_len: 5, target.dtype: float16, name: five-half}\n"
            "    - {speculation.draft_len: 7, engine.gpu: h200}\n"
        )
    )
    assert [(each.recipe.name, each.recipe.speculation.draft_len, each.recipe.target.dtype) for each in loaded] == [
        ("tiny-draft_len-3-dtype-bfloat16", 3, "bfloat16"),
        ("five-half", 5, "float16"),
        ("tiny-draft_len-5-dtype-bfloat16", 5, "bfloat16"),
        ("tiny-draft_len-7-gpu-h200", 7, "auto"),
    ]
    assert loaded[3].recipe.engine.gpu == "h200"
    assert loaded[2].located(Diagnostic("speculation.draft_len", "c", "m")).line == 6


def test_generated_names_contain_only_valid_characters(write: Write) -> None:
    text = "matrix: {target.model: [./A b/x, ~], speculation: [{method: ngram, draft_len: 2}], engine.gpu: [null]}"
    with pytest.raises(RecipeError) as caught:
        load_matrix(write(text))
    assert [problem.path for problem in caught.value.diagnostics] == ["target.model"]
    text = "matrix: {target.model: [./A b/x, ../y], speculation: [{method: ngram, draft_len: 2}], engine.gpu: [null]}"
    assert names(write(text)) == [
        f"tiny-model-{model}-speculation-method-ngram-draft_len-2-gpu-null" for model in ("a-b-x", "y")
    ]


def test_combinations_without_axes_are_named_after_all_their_values(write: Write) -> None:
    assert names(write("matrix: {include: [{engine.gpu: a}, {engine.gpu: b, plugins: [c]}]}")) == [
        "tiny-gpu-a",
        "tiny-gpu-b-plugins-c",
    ]


def test_paths_in_a_matrix_are_relative_to_the_file_of_the_matrix(write: Write, tmp_path: Path) -> None:
    write("matrix: {target.model: [./a, ./b]}", "base/b.yaml")
    child = write("extends: base/b.yaml", head="")
    models = [loaded.recipe.target.model for loaded in load_matrix(child)]
    assert models == [f"{tmp_path}/base/a", f"{tmp_path}/base/b"]


def test_load_recipe_rejects_a_matrix_of_several_recipes(write: Write) -> None:
    path = write("matrix: {engine.max_batch_size: [1, 2]}")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert str(caught.value) == (
        "r.yaml  matrix\n  this file makes 2 recipes: tiny-max_batch_size-1, tiny-max_batch_size-2\n"
        "  hint: this command takes a single recipe: remove `matrix`"
    )
    assert names(write("matrix:")) == ["tiny"]
    assert load_recipe(write("matrix: {engine.max_batch_size: [1]}")).recipe.name == "tiny-max_batch_size-1"


def test_set_works_with_a_matrix_but_not_for_its_keys(write: Write) -> None:
    path = write("matrix: {engine.max_batch_size: [1, 2]}")
    assert names(path, ("name=x", "engine.gpu=h200")) == ["x-max_batch_size-1", "x-max_batch_size-2"]
    for override in ("engine.max_batch_size=3", "engine={max_batch_size: 3}"):
        with pytest.raises(RecipeError) as caught:
            load_matrix(path, [override])
        (problem,) = caught.value.diagnostics
        assert (problem.message, problem.line) == ("both the matrix and --set set this key", 4)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ("[1]", "expected a mapping of recipe paths to lists of values"),
        ("{}", "no combinations are left"),
        ("{engine.gpu: [a], exclude: [{engine.gpu: a}]}", "no combinations are left"),
        ("{engine.gpu: h200}", "expected a list of at least one value"),
        ("{engine.gpu: []}", "expected a list of at least one value"),
        ("{engine..gpu: [a]}", "'engine..gpu' is not a path such as speculation.draft_len"),
        ("{extends: [a.yaml]}", "'extends' is not a path such as speculation.draft_len"),
        ("{include: {engine.gpu: a}}", "expected a list of mappings of recipe paths to values"),
        ("{include: [a]}", "expected a list of mappings of recipe paths to values"),
        ("{engine.gpu: [a], exclude: [{engine.gup: a}]}", "'engine.gup' is not an axis of the matrix"),
        ("{engine.gpu: [a, a]}", "2 combinations have the name 'tiny-gpu-a'"),
        ("{engine.gpu: [a, b], include: [{name: x}]}", "2 combinations have the name 'x'"),
        ("{engine.gpu: [a, b], plugins: [[c], [d]], include: [" + "{engine.gpu: e}," * 253 + "]}", "more than 256"),
        ("{engine.gpu: [" + "a," * 17 + "], plugins: [" + "[]," * 16 + "]}", "more than 256 combinations"),
        ("{engine.gpu: [a], exclude: [" + "{engine.gpu: b}," * 257 + "]}", "more than 256 combinations"),
    ],
)
def test_bad_matrix_is_rejected_with_its_position(fail: Fail, matrix: str, message: str) -> None:
    (problem,) = fail(f"matrix: {matrix}").diagnostics
    assert problem.message.startswith(message)
    assert (problem.code, problem.line) == ("matrix", 4)


def test_total_values_of_all_combinations_are_limited(fail: Fail) -> None:
    options = ", ".join(f"k{number}: 1" for number in range(1000))
    sizes = ", ".join(str(number) for number in range(1, 256))
    error = fail(f"speculation: {{options: {{{options}}}}}\nmatrix: {{engine.max_batch_size: [{sizes}]}}")
    assert [problem.message for problem in error.diagnostics] == ["more than 200,000 values in all combinations"]


def test_problem_in_a_matrix_is_reported_once_at_its_value(fail: Fail) -> None:
    error = fail("matrix:\n  engine.max_batch_size: [0, 1]\n  engine.gup: [a, b]\nserving: {x: 1}\n")
    assert [(problem.line, problem.path) for problem in error.diagnostics] == [
        (5, "engine.max_batch_size"),
        (6, "engine.gup"),
        (7, "serving.x"),
    ]
