# SPDX-License-Identifier: Apache-2.0
"""Every known failure is detected by a rule with a source, and by `check` at its position in the recipe."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.contexts import ask, ask_pair, context_of, make_context, shape
from tests.backends.tensorrt_llm.checkpoints import Checkpoints
from tests.backends.tensorrt_llm.known_failures import (
    EAGLE,
    KNOWN_FAILURES,
    LOOKAHEAD,
    MET_BEFORE,
    REDRAFTER,
    Row,
    extra,
    fp8,
)
from tests.conftest import Run
from trtspec.backends.tensorrt_llm.rules import RULES, Rule, check

SOURCE = re.compile(r"[\w-]+/[\w-]+(:[\w./-]+@[0-9a-f]{8}|#\d+)")


@pytest.mark.parametrize("row", KNOWN_FAILURES, ids=lambda row: row.upstream)
def test_upstream_failure_is_detected_by_check(row: Row) -> None:
    found = [(each.path, each.message, each.severity) for each in check(context_of(row.asked))]
    assert (row.path, row.message, row.severity) in found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_detects_an_upstream_failure(rule: Rule) -> None:
    words = {(row.path, row.message) for row in KNOWN_FAILURES}
    assert any((each.path, each.message) in words for row in KNOWN_FAILURES for each in rule(context_of(row.asked)))


@pytest.mark.parametrize("row", KNOWN_FAILURES, ids=lambda row: row.upstream)
def test_diagnostic_sources_are_files_at_commits_or_issues(row: Row) -> None:
    for diagnostic in check(context_of(row.asked)):
        assert all(SOURCE.fullmatch(each) for each in diagnostic.source.split(", ")), diagnostic


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoints]:
    """Checkpoints of published sizes, as sparse files."""
    root = tmp_path_factory.mktemp("checkpoints")
    yield Checkpoints(root)
    shutil.rmtree(root)  # tools that add up file sizes would count terabytes


@pytest.mark.slow
@pytest.mark.parametrize("row", [*KNOWN_FAILURES, *MET_BEFORE], ids=lambda row: row.upstream)
def test_check_command_reports_the_failure_at_its_position(
    row: Row, checkpoints: Checkpoints, trtspec: Run, workplace: Path
) -> None:
    recipe = checkpoints.write(row.asked, workplace)
    checked = trtspec("check", recipe, "--json")
    message = row.before or row.message
    (problem,) = (
        each
        for each in checked.document["problems"]
        if (each["path"], each["message"].replace(f"{workplace}/", "")) == (row.path, message)
    )
    assert (problem["severity"], problem["file"]) == (row.severity, str(recipe))
    assert (problem["line"], problem["column"]) in places(recipe, row.path)
    shown = trtspec("check", recipe)
    assert f"{recipe}:{problem['line']}:{problem['column']}  {row.path}\n" in shown.out
    assert problem["message"] in shown.out
    assert checked.code == int(any(each["severity"] == "error" for each in checked.document["problems"]))


def places(recipe: Path, path: str) -> set[tuple[int, int]]:
    """Return the positions of a dotted path's key and value, or of its longest existing prefix."""
    node = yaml.compose(recipe.read_text())
    marks = [node.start_mark]
    for name in path.split("."):
        if isinstance(node, yaml.SequenceNode):
            node = node.value[int(name)]
            marks = [node.start_mark]
            continue
        found = [(key, value) for key, value in node.value if key.value == name]
        if not found:
            break
        ((key, node),) = found
        marks = [key.start_mark, node.start_mark]
    return {(mark.line + 1, mark.column + 1) for mark in marks}


GOOD = {
    "plain": ask(),
    "pair": ask_pair(),
    "pair in FP8": ask_pair(**fp8("fp8", "fp8")),
    "pair on two GPUs": ask_pair(serving__placement={"target": [1], "draft": [0]}, serving__fast_logits=True),
    "ngram": ask(speculation__method="ngram"),
    "lookahead": ask(**LOOKAHEAD, speculation__options={"window": 7, "verification": 7, "ngram": 7}),
    "eagle": ask(**EAGLE),
    "not greedy": ask(**REDRAFTER, speculation__options={"greedy": False}),
    "70B on two GPUs": ask("llama-3.3-70b", target__parallel={"tensor": 2}, **fp8("fp8", "fp8")),
    "options": extra(gemm_plugin="bfloat16", multiple_profiles=True, max_lora_rank=8, fast_build=True),
    "rows without attention": ask(**fp8("fp8_rowwise", exclude=["lm_head", "*attention*"])),
    "FP8 without an MLP": ask(**fp8("fp8", "fp8", exclude=["lm_head", "*layers.0.mlp*"])),
    "blackwell": ask(engine__gpu="b200", **fp8("fp8", "fp8")),
}


@pytest.mark.parametrize("name", GOOD)
def test_working_recipe_causes_no_diagnostics(name: str) -> None:
    assert [said for said in check(context_of(GOOD[name])) if said.code != "greedy"] == []


@pytest.mark.parametrize("name", GOOD)
def test_check_command_accepts_a_working_recipe(
    name: str, checkpoints: Checkpoints, trtspec: Run, workplace: Path
) -> None:
    checked = trtspec("check", checkpoints.write(GOOD[name], workplace), "--json")
    assert (checked.code, checked.document["ok"]) == (0, True), checked.err


def test_removed_option_hints_at_versions_that_support_it() -> None:
    removed = next(each for each in check(context_of(extra(auto_parallel=2))) if each.code == "unknown-key")
    assert removed.hint == "1.0 and 1.1 have it"
    known = [each.code for each in check(context_of(extra(auto_parallel=2), "1.0.0"))]
    assert known == ["not-allowed"]


@pytest.mark.parametrize(
    "changes",
    [{}, {"speculation__method": "medusa"}, LOOKAHEAD, fp8("fp8_rowwise")],
    ids=["", "medusa", "lookahead", "row"],
)
def test_engines_of_olmo2_are_refused(changes: dict[str, Any]) -> None:
    target = shape("llama-3.1-8b", architecture="Olmo2ForCausalLM", qk_norm=True, inner_norms=True)
    refused = [each for each in check(context_of(ask(target, **changes))) if each.code == "architecture"]
    assert ("target.model", "error", "TensorRT-LLM 1.2.1 does not support engines of Olmo2ForCausalLM") in [
        (each.path, each.severity, each.message) for each in refused
    ]


def test_granite_without_inner_drafts_and_row_scales_causes_no_diagnostics() -> None:
    assert list(check(context_of(ask("granite-3.3-8b", speculation__method="ngram")))) == []


def test_misspelled_option_hints_at_the_correct_name() -> None:
    (diagnostic,) = check(context_of(extra(gemm_plugn="auto")))
    assert diagnostic.hint == "did you mean 'gemm_plugin'?"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("tokens_per_block", "many", "tokens_per_block must be an integer of at least 0, not 'many'"),
        ("tokens_per_block", -1, "tokens_per_block must be an integer of at least 0, not -1"),
        ("fast_build", "yes", "fast_build must be true or false, not 'yes'"),
        ("multiple_profiles", "on", "multiple_profiles must be one of enable, disable, not 'on'"),
        (
            "gemm_plugin",
            False,
            "gemm_plugin must be one of auto, float16, float32, bfloat16, int32, fp8, nvfp4, disable,",
        ),
    ],
)
def test_invalid_option_value_is_reported(option: str, value: Any, message: str) -> None:
    assert any(each.message.startswith(message) for each in check(context_of(extra(**{option: value}))))


def test_unknown_gpu_is_reported() -> None:
    (diagnostic,) = check(make_context(engine__gpu="h1000"))
    assert (diagnostic.path, diagnostic.message) == ("engine.gpu", "unknown GPU 'h1000'")


@pytest.mark.parametrize("option", ["checkpoint_dir", "build_config", "visualize_network", "lora_dir"])
def test_path_option_is_reported(option: str) -> None:
    (diagnostic,) = check(context_of(extra(**{option: "/somewhere"})))
    assert diagnostic.message == f"{option} is a path, but a build can read only its checkpoint"
