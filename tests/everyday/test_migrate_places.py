# SPDX-License-Identifier: Apache-2.0
"""Output path of `migrate`: next to a user's recipe, else the current directory, never the installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.core.paths import recipes_dir


def test_shipped_recipe_is_migrated_to_the_current_directory(workplace: Path, trtspec: Run) -> None:
    before = sorted(recipes_dir().iterdir())
    for given in ("quickstart-ngram", recipes_dir() / "quickstart-ngram.yaml"):
        done = trtspec("migrate", given, "--to", "1.3", "--force", "--json")
        assert done.document["output"] == "quickstart-ngram-1.3.yaml"
        assert (workplace / "quickstart-ngram-1.3.yaml").is_file()
    assert trtspec("check", "quickstart-ngram-1.3.yaml").code == 0
    assert sorted(recipes_dir().iterdir()) == before


def test_user_recipe_is_migrated_to_its_own_directory(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines(recipe)
    elsewhere = recipe.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert trtspec("migrate", "../recipe.yaml", "--to", "1.3", "--json").document["output"] == "../recipe-1.3.yaml"
    assert recipe.with_name("recipe-1.3.yaml").is_file()


def engines(recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: tensorrt_llm\n  gpu: h100\n"))


def test_migrate_does_not_write_into_the_installation(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines(recipe)
    installed = recipe.parent / "site-packages" / "trtspec"
    installed.mkdir(parents=True)
    monkeypatch.setattr("trtspec.cli.migrate.PACKAGE", installed)
    refused = trtspec("migrate", recipe, "--to", "1.3", "-o", installed / "new.yaml")
    assert (refused.code, refused.err) == (
        1,
        f"error: {installed}/new.yaml: refusing to write into the installation of trtspec\n"
        "hint: choose another file with --output\n",
    )
    assert list(installed.iterdir()) == []
