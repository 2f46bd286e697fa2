# SPDX-License-Identifier: Apache-2.0
"""Recipes by name, from standard input, and several in one command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.core.paths import recipes_dir

Feed = Callable[[str], None]


@pytest.fixture
def feed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feed]:
    """Use a text as standard input."""
    before = os.dup(0)

    def put(text: str) -> None:
        file = tmp_path_factory.mktemp("stdin") / "text"
        file.write_text(text)
        descriptor = os.open(file, os.O_RDONLY)
        os.dup2(descriptor, 0)
        os.close(descriptor)

    yield put
    os.dup2(before, 0)
    os.close(before)


def test_shipped_recipe_is_found_by_name(workplace: Path, trtspec: Run) -> None:
    checked = trtspec("check", "quickstart-ngram")
    assert (checked.code, checked.out) == (0, "end ids: 0 (generation_config.json)\nquickstart-ngram: valid\n")
    document = trtspec("check", "quickstart-ngram", "--json").document
    assert [each["file"] for each in document["recipes"]] == ["quickstart-ngram"]
    assert trtspec("plan", "quickstart-ngram", "--json").document["name"] == "quickstart-ngram"


def test_file_has_precedence_over_a_shipped_recipe(recipe: Path, trtspec: Run) -> None:
    recipe.rename(recipe.with_name("quickstart"))
    assert trtspec("check", "quickstart").out == "end ids: 0 (generation_config.json)\ntiny: valid\n"
    (recipe.parent / "quickstart-ngram").mkdir()  # directories are not recipes
    assert trtspec("check", "quickstart-ngram").code == 0


def test_path_is_not_looked_up_as_a_shipped_recipe(workplace: Path, trtspec: Run) -> None:
    for given in ("sub/quickstart", recipes_dir() / "quickstart"):
        checked = trtspec("check", given)
        assert checked.code == 1
        assert f"{given} does not exist" in checked.out


def test_shipped_recipe_is_extended_by_name(workplace: Path, trtspec: Run) -> None:
    mine = workplace / "mine.yaml"
    mine.write_text("extends: quickstart-ngram\nname: mine\n")
    assert trtspec("check", mine).out == "end ids: 0 (generation_config.json)\nmine: valid\n"
    (workplace / "quickstart-ngram").write_text("name: [\n")
    assert trtspec("check", mine).code == 1, "a file of that name takes precedence"
    (workplace / "sub").mkdir()
    below = workplace / "sub" / "below.yaml"
    below.write_text("extends: quickstart-ngram\nname: below\n")
    assert trtspec("check", below).code == 0, "not relative to the current directory"
    below.write_text("extends: models/quickstart\nname: below\n")
    assert trtspec("check", below).code == 1


def test_unknown_recipe_name_gets_a_suggestion(workplace: Path, trtspec: Run) -> None:
    checked = trtspec("check", "quickstart-ngrm", "--json")
    assert checked.code == 1
    (problem,) = checked.document["problems"]
    assert (problem["message"], problem["hint"]) == (
        "quickstart-ngrm does not exist",
        "did you mean 'quickstart-ngram'?",
    )


@pytest.mark.slow
def test_recipe_is_read_from_standard_input(recipe: Path, feed: Feed, trtspec: Run) -> None:
    text = recipe.read_text()
    recipe.unlink()
    feed(text)
    assert trtspec("check", "-").out == "end ids: 0 (generation_config.json)\ntiny: valid\n"
    feed(text)
    assert trtspec("plan", "-", "--json").document["name"] == "tiny"
    feed(text)
    assert trtspec("build", "-", "--json").document["artifact"] == "build/tiny"
    feed(text.replace("draft_target", "draft_targe"))
    document = trtspec("check", "-", "--json").document
    assert {each["file"] for each in document["problems"] + document["recipes"]} == {"<stdin>"}
    feed("schema: x")
    assert trtspec("check", "-").out.endswith("errors in <stdin>\n")
    feed("")
    assert "<stdin>\n  the file is empty" in trtspec("check", "-").out


def test_several_recipes_are_checked_in_one_command(recipe: Path, trtspec: Run) -> None:
    wrong = recipe.with_name("wrong.yaml")
    wrong.write_text(recipe.read_text().replace("./draft", "./nowhere"))
    checked = trtspec("check", recipe, wrong, "quickstart-ngram", "nosuch.yaml", recipe)
    assert checked.code == 1
    verdicts = [line for line in checked.out.splitlines() if line.endswith(": valid") or " error in " in line]
    assert verdicts == [
        "tiny: valid",
        f"1 error in {wrong}",
        "quickstart-ngram: valid",
        "1 error in nosuch.yaml",
    ]
    document = trtspec("check", recipe, wrong, "nosuch.yaml", "--json").document
    assert [(each["name"], each["file"], each["ok"]) for each in document["recipes"]] == [
        ("tiny", str(recipe), True),
        ("tiny", str(wrong), False),
        (None, "nosuch.yaml", False),
    ]
    assert document["ok"] is False
    assert document["problems"] == [problem for each in document["recipes"] for problem in each["problems"]]
    assert trtspec("check", recipe, "quickstart-ngram").code == 0
