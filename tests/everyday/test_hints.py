# SPDX-License-Identifier: Apache-2.0
"""Hints for common mistakes, and that following them helps."""

from __future__ import annotations

import json
import re
import sys
from importlib import util
from pathlib import Path

import pytest

from tests._support.manifests import resolved
from tests.conftest import Outcome, Run
from trtspec.backends.base import backends
from trtspec.core.errors import DeployError
from trtspec.core.paths import cache_dir, recipes_dir, state_dir
from trtspec.planning.completion import editor_schema
from trtspec.store.artifact import BackendRecord, Manifest

AS_IT_IS = [name for name, backend in backends().items() if not (backend.converts or backend.builds_engines)]
ALONE = "schema: trtspec.recipe/1\nname: tiny\ntarget: {model: ./target}\n"


def edit(recipe: Path, old: str, new: str) -> None:
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))


def ask_for(recipe: Path, architecture: str) -> None:
    config = recipe.parent / "target" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": [architecture]}))


def flat_output(checked: Outcome) -> str:
    return checked.out + checked.err


def test_unsupported_architecture_hint_names_backends_without_conversion(trtspec: Run, recipe: Path) -> None:
    recipe.write_text(ALONE)
    ask_for(recipe, "LlavaForCausalLM")
    refused = trtspec("check", recipe)
    assert refused.code == 1
    assert f"hint: engine.backend: {' or '.join(AS_IT_IS)} runs the model without conversion" in flat_output(refused)
    assert "did you mean" not in flat_output(refused)
    for backend in AS_IT_IS:
        taken = trtspec("check", recipe, "--set", f"engine.backend={backend}")
        assert taken.code == 0
        assert "LlavaForCausalLM" not in flat_output(taken)


def test_unsupported_architecture_with_lookahead_has_no_backend(trtspec: Run, recipe: Path) -> None:
    recipe.write_text(ALONE + "speculation: {method: lookahead}\n")
    ask_for(recipe, "LlavaForCausalLM")
    assert "no backend runs lookahead on an unconverted model" in flat_output(trtspec("check", recipe))


def test_missing_schema_hint_gives_the_line_to_add(trtspec: Run, recipe: Path) -> None:
    edit(recipe, "schema: trtspec.recipe/1\n", "")
    (line,) = re.findall("hint: add the line (.*)", flat_output(trtspec("check", recipe)))
    recipe.write_text(f"{line}\n{recipe.read_text()}")
    assert trtspec("check", recipe).code == 0


def test_dash_instead_of_underscore_gets_a_suggestion(trtspec: Run, recipe: Path) -> None:
    edit(recipe, "method: draft_target", "method: Draft-Target")
    assert "hint: did you mean 'draft_target'?" in flat_output(trtspec("check", recipe))


@pytest.mark.parametrize(("version", "planned"), [("1.2", "1.2.1"), ("1.0", "1.0.3.2510"), ("1.2.1", "1.2.1")])
def test_version_on_the_command_line_is_parsed_as_text(version: str, planned: str, trtspec: Run, recipe: Path) -> None:
    changes = ("--set", f"engine.version={version}", "--set", "engine.backend=llmapi")
    assert f"llmapi engine {planned}," in flat_output(trtspec("plan", recipe, *changes))


def test_command_line_overrides_are_still_validated(trtspec: Run, recipe: Path) -> None:
    for wrong in ("name=null", "engine.max_batch_size=1.5", "engine.version=[1.2]"):
        assert trtspec("check", recipe, "--set", wrong).code == 1
    edit(recipe, "name: tiny\n", "name: tiny\nplugins: [1.2]\n")
    assert 'hint: quote it: "1.2"' in flat_output(trtspec("check", recipe))


def test_missing_extends_file_error_includes_the_searched_path(trtspec: Run, recipe: Path) -> None:
    for name in ("base.yaml", "like.yaml"):
        (recipe.parent / name).write_text(ALONE)
    edit(recipe, "name: tiny\n", "name: tiny\nextends: nope.yaml\n")
    line = recipe.read_text().splitlines().index("extends: nope.yaml") + 1
    said = flat_output(trtspec("check", recipe))
    assert f"{recipe}:{line}:10  extends\n" in said
    assert f"does not exist; looked for {recipe.parent}/nope.yaml" in said
    assert "did you mean" not in said  # the extension .yaml does not make other files more similar
    edit(recipe, "nope.yaml", "bace.yaml")
    assert "hint: did you mean 'base.yaml'?" in flat_output(trtspec("check", recipe))


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("gates: {lossless: true\nplugins: []\n", "4:8", "the `{` here is not closed"),
        ("gates: {lossless: true\n\n\n", "4:8", "the `{` here is not closed"),
        ("plugins: [a,\n  b\ngates: {}\n", "4:10", "the `[` here is not closed"),
        ("plugins: [a", "4:10", "the `[` here is not closed\n  hint: close it with `]`"),
        ("gates: {lossless: true min_acceptance: 0.5}\n", "4:38", "expected `,` or `}` here"),
        ('engine: {gpu: "h200}\ngates: {}\n', "4:15", "the quote that opens here is not closed"),
    ],
)
def test_yaml_syntax_error_is_reported_at_its_position(
    text: str, place: str, said: str, trtspec: Run, recipe: Path
) -> None:
    recipe.write_text(ALONE + text)
    shown = flat_output(trtspec("check", recipe))
    assert f"{recipe}:{place}\n" in shown
    assert f"not valid YAML: {said}" in shown
    assert "while" not in shown


def test_missing_comma_is_suggested_for_an_unclosed_bracket(trtspec: Run, recipe: Path) -> None:
    recipe.write_text(ALONE + "gates: {lossless: true,\n  min_acceptance: 0.5\n  min_speedup: 1}\n")
    assert "hint: close it with `}`, or add the `,` missing before line 6" in flat_output(trtspec("check", recipe))


def test_plan_without_a_gpu_hints_at_the_option_to_set(trtspec: Run, recipe: Path) -> None:
    plan = ("plan", recipe, "--set", "engine.backend=llmapi")
    said = flat_output(trtspec(*plan))
    assert "of 0 B" not in said
    (change,) = re.findall("GPU memory is unknown; .* --set (.*)", said)
    known = flat_output(trtspec(*plan, "--set", change))
    assert "is not known" not in known
    assert re.search(r"memory on 0: .* of 1[23]\d\.\d GiB", known)
    assert trtspec(*plan, "--json").document["memory"]["gpus"][0]["limit_bytes"] == 0


def test_artifact_with_missing_package_is_rejected_before_server_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = BackendRecord(name="llmapi", why="a test")
    recipe = resolved(backend="llmapi")
    manifest = Manifest(recipe=recipe, steps=(), files=(), tools={}, gpu={}, backend=record)
    check_machine = backends()["llmapi"].serving().check_machine
    monkeypatch.setattr("trtspec.backends.serving.find_spec", lambda name: None)
    with pytest.raises(DeployError) as refused:
        check_machine(tmp_path, manifest)
    assert refused.value.where == sys.executable
    assert refused.value.message == "the Python package tensorrt_llm is not installed here"
    assert "pip install tensorrt_llm" in (refused.value.hint or "")
    monkeypatch.setattr("trtspec.backends.serving.find_spec", lambda name: util.find_spec("json"))
    check_machine(tmp_path, manifest)


@pytest.mark.parametrize(
    ("variable", "base", "find"),
    [("TRTSPEC_CACHE", "XDG_CACHE_HOME", cache_dir), ("TRTSPEC_STATE", "XDG_STATE_HOME", state_dir)],
)
def test_empty_environment_variable_counts_as_unset(variable, base, find, workplace: Path, monkeypatch) -> None:
    monkeypatch.setenv(variable, "")
    monkeypatch.setenv(base, str(workplace / "xdg"))
    assert find() == workplace / "xdg" / "trtspec"


def test_schemas_referenced_by_recipes_exist_and_are_current() -> None:
    named = {
        path.parent / schema
        for path in recipes_dir().glob("*.yaml")
        for schema in re.findall(r"^# yaml-language-server: \$schema=(\S+)$", path.read_text(), re.MULTILINE)
    }
    assert named
    for schema in named:  # generated by: trtspec schema > recipes/trtspec-recipe.schema.json
        assert json.loads(schema.read_text()) == editor_schema()
