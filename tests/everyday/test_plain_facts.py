# SPDX-License-Identifier: Apache-2.0
"""Statements of commands about a recipe are true: counts, reasons, model paths and JSON values."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests._support.tiny import make_llama
from tests.conftest import Run
from trtspec.backends.base import backends
from trtspec.cli.render import count_problems
from trtspec.core.diagnostics import Diagnostic, quote_value
from trtspec.planning.init.propose import _numbers

TOO_LONG = ("--set", "engine.max_seq_len=100000")


@pytest.mark.parametrize(
    ("severities", "said"),
    [
        ([], ""),
        (["error"], "1 error"),
        (["warning", "warning"], "2 warnings"),
        (["note", "warning"], "1 warning"),
        (["note"], ""),
        (["warning", "error", "warning"], "1 error, 2 warnings"),
        (["error", "error", "warning"], "2 errors, 1 warning"),
    ],
)
def test_problems_are_counted_by_severity(severities: list[str], said: str) -> None:
    found = [Diagnostic("a", "b", "c", None, severity) for severity in severities]  # type: ignore[arg-type]
    assert count_problems(found) == said


@pytest.mark.parametrize("command", ["check", "build"])
def test_check_and_build_count_warnings_separately_from_errors(command: str, recipe: Path, trtspec: Run) -> None:
    make_llama(recipe.parent / "large-draft", hidden_size=256, intermediate_size=512)  # larger than the target
    ended = trtspec(command, recipe, *TOO_LONG, "--set", "speculation.draft.model=./large-draft")
    shown = (ended.out + ended.err).splitlines()
    assert ended.code == 1
    warnings = sum(line.startswith("  warning: ") for line in shown)
    assert warnings
    counted = re.match(r"(\d+) errors?, (\d+) warnings?", shown[-1])
    assert counted
    assert int(counted[2]) == warnings


@pytest.mark.parametrize(
    "assignment",
    ["target.quantization=null", "target.parallel=null", "speculation.options=null", "serving=null", "gates=null"],
)
def test_null_on_the_command_line_unsets_a_section(assignment: str, recipe: Path, trtspec: Run) -> None:
    key = assignment.partition("=")[0]
    document = yaml.safe_load(recipe.read_text())
    *parents, last = key.split(".")
    section = document
    for name in parents:
        section = section.setdefault(name, {})
    section.pop(last, None)
    plain = recipe.with_name("plain.yaml")
    plain.write_text(yaml.safe_dump(document))
    unset = trtspec("plan", recipe, "--set", assignment, "--json")
    assert unset.code == 0, unset.err
    assert unset.document["recipe"] == trtspec("plan", plain, "--json").document["recipe"]


def test_null_section_in_a_recipe_file_is_an_error(recipe: Path, trtspec: Run) -> None:
    recipe.write_text(recipe.read_text() + "serving:\n")
    ended = trtspec("check", recipe)
    assert ended.code == 1
    assert "expected a mapping, got nothing" in ended.out


@pytest.fixture
def unknown(recipe: Path) -> Path:
    """A model of an unsupported architecture with 256 positions."""
    root = recipe.parent / "unknown"
    shutil.copytree(recipe.parent / "target", root)
    config = json.loads((root / "config.json").read_text())
    config |= {"architectures": ["NobodyKnowsForCausalLM"], "model_type": "nobody", "max_position_embeddings": 256}
    (root / "config.json").write_text(json.dumps(config))
    return root


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_init_gives_maximum_positions_as_the_reason_for_max_seq_len(backend: str, unknown: Path, trtspec: Run) -> None:
    made = trtspec("init", unknown, "--backend", backend, "--gpu", "h100", "-o", "u.yaml", "--json").document
    why = {each["path"]: (each["value"], each["why"]) for each in made["choices"]}
    assert why["engine.max_seq_len"] == (256, "the target's maximum positions")
    assert "FP8 while loading" in why["target.quantization"][1]
    changed = trtspec("check", "u.yaml", "--set", "target.quantization.weights=fp8")
    assert changed.code == 0, "the setting suggested by init is valid"


@pytest.mark.parametrize("backend", [name for name, each in backends().items() if len(each.versions()) > 1])
def test_init_labels_only_the_newest_version_as_newest(backend: str, unknown: Path, trtspec: Run) -> None:
    made = trtspec(
        "init", unknown.with_name("target"), "--backend", backend, "--gpu", "h100", "-o", "k.yaml", "--json"
    ).document
    choice = next(each for each in made["choices"] if each["path"] == "engine.version")
    newest = max(backends()[backend].versions(), key=_numbers)
    if choice["why"] != "installed here":
        assert (choice["why"] == "the newest known") == (choice["value"] == newest)
        assert choice["value"] == newest or choice["why"] == f"the default; the newest known is {newest}"


def test_versions_are_ordered_by_number() -> None:
    versions = ["0.9.1", "1.2.1", "1.4.0rc1", "0.33.0", "1.4.0", "1.10.0"]
    assert sorted(versions, key=_numbers) == ["0.9.1", "0.33.0", "1.2.1", "1.4.0rc1", "1.4.0", "1.10.0"]


def test_migrate_to_an_unsupported_backend_suggests_alternatives(recipe: Path, trtspec: Run) -> None:
    ended = trtspec("migrate", recipe, "--backend", "vllm")
    assert ended.code == 1
    assert "recipes cannot be migrated to vllm" in ended.err
    assert "with check RECIPE --set engine.backend=vllm --set engine.version=null" in ended.err
    assert "write a new one with init TARGET --backend vllm" in ended.err
    tried = trtspec("check", recipe, "--set", "engine.backend=vllm", "--set", "engine.version=null")
    assert tried.code == 0


def test_compare_distinguishes_models_of_the_same_name_by_path(recipe: Path, trtspec: Run) -> None:
    shutil.copytree(recipe.parent / "draft", recipe.parent / "drafts" / "adapted")
    shutil.copytree(recipe.parent / "draft", recipe.parent / "others" / "adapted")
    for name in ("drafts", "others"):
        text = recipe.read_text().replace("./draft", f"./{name}/adapted")
        recipe.with_name(f"{name}.yaml").write_text(text)
    shown = trtspec("compare", recipe, "drafts.yaml").out
    assert re.search(r"speculation\.draft\.model +\./draft +\./drafts/adapted", shown)
    found = trtspec("compare", "drafts.yaml", "others.yaml", "--json").document["differences"]
    models = {each["path"]: (each["a"], each["b"]) for each in found if each["section"] == "recipe"}
    assert models["speculation.draft.model"] == ("./drafts/adapted", "./others/adapted")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("gelu", "'gelu'"),
        (None, "null"),
        (True, "true"),
        (3.5, "3.5"),
        (["a", None], '["a", null]'),
        ({"type": "x", "on": False}, '{"type": "x", "on": false}'),
        (["x" * 200], '["' + "x" * 97 + "…"),
    ],
)
def test_values_in_messages_are_written_as_json(value: object, text: str) -> None:
    assert quote_value(value) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [("architectures", None), ("architectures", ["A", "B"]), ("hidden_size", {"a": None}), ("vocab_size", [True])],
)
def test_config_error_messages_contain_no_python_literals(key: str, value: object, recipe: Path, trtspec: Run) -> None:
    path = recipe.parent / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    ended = trtspec("check", recipe)
    assert ended.code == 1
    assert not re.search(r"\bNone\b|\bTrue\b|\bFalse\b|\['|\{'", ended.out)
