# SPDX-License-Identifier: Apache-2.0
"""Errors in a recipe are found before a build: message, line in the recipe, and hint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.planning.check.finding import problems_of, replace, the_problem
from trtspec.core.registry import discover
from trtspec.engine.prompts.prompt import PATH_HINT


def test_valid_recipe_has_no_problems(trtspec: Run, recipe: Path) -> None:
    checked = trtspec("check", recipe, "--json")
    fits = {"format_version": 1, "ok": True, "problems": []}
    only = {"name": "tiny", "file": str(recipe), "end_ids": [0], "end_ids_from": "generation_config.json"}
    assert (checked.code, checked.document) == (0, {**fits, "recipes": [{**fits, **only}]})
    assert checked.err == ""
    shown = trtspec("check", recipe)
    assert (shown.out, shown.err) == ("end ids: 0 (generation_config.json)\ntiny: valid\n", "")


def test_problem_is_shown_with_position_line_message_and_hint(trtspec: Run, recipe: Path) -> None:
    shutil.rmtree(recipe.parent / "target")
    checked = trtspec("check", recipe)
    assert checked.code == 1
    assert checked.err == ""
    assert checked.out == (
        f"{recipe}:4:10  target.model\n"
        "  4 │   model: ./target\n"
        f"  no such directory: {recipe.parent}/target\n"
        "  hint: a checkpoint is a directory with config.json and *.safetensors\n"
        "\n"
        f"1 error in {recipe}\n"
    )


def test_all_problems_are_reported_together(trtspec: Run, recipe: Path) -> None:
    shutil.rmtree(recipe.parent / "target")
    (recipe.parent / "draft" / "config.json").write_text("{")
    (recipe.parent / "prompts.jsonl").unlink()
    replace(recipe, "method: draft_target", "method: draft_targe")
    assert [problem["path"] for problem in problems_of(trtspec, recipe)] == [
        "target.model",
        "speculation.method",
        "speculation.draft.model",
        "gates.prompts",
    ]


# Backend, GPU, an unknown version and the known one that it is planned as.
UNKNOWN = [
    ("llmapi", "h100", "1.3.0rc22", "1.3.0rc27"),
    ("llmapi", "h100", "1.4.0rc4", "1.4.0rc1"),
    ("sglang", "h100", "0.5.24", "0.5.23"),
    ("vllm", "h100", "0.33.1", "0.33.0"),
    ("edge_llm", "rtx5090", "0.11.1", "0.11.0"),
]


@pytest.mark.parametrize(("backend", "gpu", "version", "known"), UNKNOWN)
def test_unknown_version_of_a_known_minor_is_planned_with_a_warning(
    backend: str, gpu: str, version: str, known: str, trtspec: Run
) -> None:
    engine = {"backend": backend, "version": version, "gpu": gpu, "device": "null"}
    changes = [f"--set=engine.{key}={value}" for key, value in engine.items()]
    planned = trtspec("plan", "quickstart-eagle3", *changes, "--json")
    assert planned.code == 0, planned.err
    assert planned.document["steps"]
    warning = f"warning: {backend} {version} is not known: it is planned as {known}, the nearest known version"
    assert warning in planned.err


@pytest.mark.parametrize(("backend", "gpu", "version", "known"), UNKNOWN)
def test_unknown_version_of_a_known_minor_is_a_warning(
    backend: str, gpu: str, version: str, known: str, trtspec: Run, recipe: Path
) -> None:
    engine = [
        f"--set=engine.{key}={value}" for key, value in (("backend", backend), ("version", version), ("gpu", gpu))
    ]
    problems = trtspec("check", recipe, *engine, "--set=engine.device=null", "--json").document["recipes"][0][
        "problems"
    ]
    (found,) = (each for each in problems if each["path"] == "engine.version")
    assert (found["severity"], found["code"]) == ("warning", "unknown-version")
    assert found["message"] == (
        f"{backend} {version} is not known: it is planned as {known}, the nearest known version"
    )


def test_missing_recipe_is_an_error(trtspec: Run, workplace: Path) -> None:
    checked = trtspec("check", "nosuch.yaml", "--json")
    assert checked.code == 1
    (problem,) = checked.document["problems"]
    assert problem["file"] == "nosuch.yaml"
    assert problem["message"] == "nosuch.yaml does not exist"


LINES: list[tuple[str, str, tuple[int, int, str], str, str | None]] = [
    (
        "draft_len: 3",
        "draft_len: 65",
        (7, 14, "speculation.draft_len"),
        "draft_len must be at most 64, got 65",
        None,
    ),
    (
        "draft_len: 3",
        "draft_len: 0",
        (7, 14, "speculation.draft_len"),
        "draft_len must be at least 1, got 0",
        None,
    ),
    (
        "method: draft_target",
        "method: draft_targe",
        (6, 11, "speculation.method"),
        "unknown speculation method 'draft_targe'; known: " + ", ".join(discover("trtspec.methods", "METHOD")),
        "did you mean 'draft_target'?",
    ),
    (
        "max_batch_size: 4",
        "backend: embeded",
        (11, 12, "engine.backend"),
        "unknown backend 'embeded'; known: edge_llm, embedded, llmapi, sglang, tensorrt_llm, vllm",
        "did you mean 'embedded'?",
    ),
    (
        "max_batch_size: 4",
        "version: '1.2'",
        (11, 12, "engine.version"),
        "this engine is part of trtspec and does not have a version",
        "remove it",
    ),
    (
        "max_seq_len: 256",
        "max_seq_len: 257",
        (13, 16, "engine.max_seq_len"),
        "max_seq_len 257 is more than the target's 256 positions",
        "at most 256",
    ),
    (
        "prompts: ./prompts.jsonl",
        "prompts: ./nosuch.jsonl",
        (15, 12, "gates.prompts"),
        "nosuch.jsonl: cannot be read: No such file or directory",
        PATH_HINT,
    ),
    (
        "  model: ./target",
        "  model: ./target\n  quantization: {weights: fp8_rowwise, exclude: [lm_head, q_proj]}",
        (5, 59, "target.quantization.exclude.1"),
        "no module matches 'q_proj'; an example is transformer.layers.0.attention.qkv",
        "target.quantization.exclude: fnmatch patterns of modules not to quantize, with TensorRT-LLM's names",
    ),
    (
        "    model: ./draft",
        "    model: ./draft\n    quantization: {weights: fp8_rowwise, exclude: []}",
        (10, 51, "speculation.draft.quantization.exclude"),
        "fp8_rowwise engines need lm_head in the model's dtype; exclude lm_head",
        "speculation.draft.quantization.exclude: fnmatch patterns of modules not to quantize, with TensorRT-LLM's"
        " names",
    ),
    (
        "    model: ./draft",
        "    model: ./draft\n    quantization: {weights: fp8, calibration: {prompts: ./nosuch.jsonl}}",
        (10, 57, "speculation.draft.quantization.calibration.prompts"),
        "nosuch.jsonl: cannot be read: No such file or directory",
        PATH_HINT,
    ),
    (
        "  model: ./target",
        "  model: ./target\n  parallel: {tensor: 2, pipeline: 5}",
        (5, 13, "target.parallel"),
        "4 layers cannot be divided over 5 pipeline stages",
        "tensor can be 1, 2, 4; pipeline at most 4",
    ),
    (
        "gates:",
        "plugins: [verify_chian]\ngates:",
        (14, 10, "plugins"),
        "unknown plugin 'verify_chian'; available: compact_kv, quantize, verify_block, verify_chain, verify_tree",
        "did you mean 'verify_chain'?",
    ),
    (
        "gates:",
        "plugins: [verify_chain, quantize]\ngates:",
        (14, 10, "plugins"),
        "quantize is used by builds only, not by engines",
        "remove quantize",
    ),
    (
        "  draft_len: 3",
        "  options: {stop_belov: 0.5}",
        (7, 13, "speculation.options.stop_belov"),
        "draft_target has no option 'stop_belov' (stop_below, use_draft_logits)",
        "did you mean 'stop_below'?",
    ),
    (
        "  draft_len: 3",
        "  options: {stop_below: 1.5}",
        (7, 25, "speculation.options.stop_below"),
        "stop_below must be less than 1, got 1.5",
        None,
    ),
]


@pytest.mark.parametrize(("old", "new", "place", "message", "hint"), LINES, ids=[case[1].strip() for case in LINES])
def test_invalid_line_is_reported_with_its_position_and_hint(
    old: str, new: str, place: tuple[int, int, str], message: str, hint: str | None, trtspec: Run, recipe: Path
) -> None:
    replace(recipe, old, new)
    assert the_problem(trtspec, recipe, place) == (message, hint)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *((line, 'expected {"prompt": "some text"}') for line in ('{"prompt": 3}', '{"prompt": ""}', '{"text": "a"}')),
        *((line, "not a JSON object") for line in ('["prompt"]', '"prompt"')),
    ],
)
def test_invalid_prompt_is_reported_with_its_line(line: str, said: str, trtspec: Run, recipe: Path) -> None:
    (recipe.parent / "prompts.jsonl").write_text('{"prompt": "fine"}\n\n' + line + "\n")
    message, _ = the_problem(trtspec, recipe, (15, 12, "gates.prompts"))
    assert message == f"prompts.jsonl:3: {said}"


def test_problem_of_an_override_names_the_set_option(trtspec: Run, recipe: Path) -> None:
    (problem,) = problems_of(trtspec, recipe, "--set", "speculation.draft_len=99")
    assert (problem["file"], problem["message"]) == (
        "--set speculation.draft_len=99",
        "draft_len must be at most 64, got 99",
    )


def test_every_cell_of_a_matrix_is_checked(trtspec: Run, recipe: Path) -> None:
    recipe.write_text(
        recipe.read_text() + "matrix:\n  speculation.draft_len: [1, 2]\n  engine.max_batch_size: [1, 400000]\n"
    )
    checked = trtspec("check", recipe)
    assert checked.code == 0
    assert checked.out.count("tiny-") == 4


def test_setting_looser_than_its_default_is_a_warning_at_its_line(trtspec: Run, recipe: Path) -> None:
    recipe.write_text(recipe.read_text() + "serving: {rollout: {max_failed: 100}}\n")
    line = len(recipe.read_text().splitlines())
    checked = trtspec("check", recipe, "--set", "gates.lossless=false", "--json")
    assert (checked.code, checked.document["ok"]) == (0, True)
    found = {each["path"]: each for each in checked.document["problems"]}
    assert found.keys() == {"serving.rollout.max_failed", "gates.lossless"}
    assert {(each["severity"], each["code"]) for each in found.values()} == {("warning", "loosened")}
    limit = found["serving.rollout.max_failed"]
    assert (limit["file"], limit["line"], limit["column"]) == (str(recipe), line, 33)
    assert limit["message"] == "serving.rollout.max_failed is 100, by default 0; the default is safer"
    assert limit["hint"] == "remove it unless it is intended"
    assert found["gates.lossless"]["file"] == "--set gates.lossless=false"
