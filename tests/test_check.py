# SPDX-License-Identifier: Apache-2.0
"""Bad input is met before anything is built: what is wrong, at which line of the recipe, and what to do about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.tiny import DRAFT_SHAPE, MERGES, PAIR_VOCAB, make_llama, make_tokenizer
from trtspec.artifacts.prompts import HINT as PROMPTS_HINT
from trtspec.errors import CheckpointError
from trtspec.registry import discover

TARGET = (4, 10, "target.model")
DRAFT = (9, 12, "speculation.draft.model")


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def replace(recipe: Path, old: str, new: str) -> None:
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new, 1))


def problems_of(trtspec: Run, recipe: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return what `check` finds; `plan` and `build` have to refuse the same and leave nothing."""
    checked = trtspec("check", recipe, *arguments, "--json")
    assert checked.code == 1
    assert checked.document["ok"] is False
    found: list[dict[str, Any]] = checked.document["problems"]
    for command in ("plan", "build"):
        refused = trtspec(command, recipe, *arguments, "--json")
        assert refused.code == 1
        assert refused.document["problems"] == found
    assert not (recipe.parent / "build").exists()
    return found


def the_problem(trtspec: Run, recipe: Path, place: tuple[int, int, str], *arguments: str) -> tuple[str, str | None]:
    """Return (message, hint) of the only error, with this directory left out of the message."""
    (problem,) = (each for each in problems_of(trtspec, recipe, *arguments) if each["severity"] == "error")
    assert (problem["line"], problem["column"], problem["path"]) == place
    assert problem["file"] == str(recipe)
    return problem["message"].replace(f"{recipe.parent}/", ""), problem["hint"]


def test_a_pair_that_fits(trtspec: Run, recipe: Path) -> None:
    checked = trtspec("check", recipe, "--json")
    fits = {"format_version": 1, "ok": True, "problems": []}
    only = {"name": "tiny", "file": str(recipe)}
    assert (checked.code, checked.document) == (0, {**fits, "recipes": [{**fits, **only}]})
    assert checked.err == ""
    shown = trtspec("check", recipe)
    assert (shown.out, shown.err) == ("tiny: fits together\n", "")


def test_people_see_place_line_message_and_hint(trtspec: Run, recipe: Path) -> None:
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


def test_all_problems_come_at_once(trtspec: Run, recipe: Path) -> None:
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


def test_a_recipe_that_is_missing(trtspec: Run, workplace: Path) -> None:
    checked = trtspec("check", "nosuch.yaml", "--json")
    assert checked.code == 1
    (problem,) = checked.document["problems"]
    assert problem["file"] == "nosuch.yaml"
    assert problem["message"] == "nosuch.yaml does not exist"


def test_a_model_that_is_a_file(trtspec: Run, recipe: Path) -> None:
    replace(recipe, "./target", "./target/config.json")
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message == "is a file, not a directory: target/config.json"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_that_cannot_be_read(name: str, trtspec: Run, recipe: Path) -> None:
    path = recipe.parent / "target" / name
    path.unlink()
    path.mkdir()  # permissions do not stop root; this does
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message == f"target/{name}: not a regular file"


SERVED = (
    "Gemma2ForCausalLM, Gemma3ForCausalLM, LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, Phi3ForCausalLM,"
    " Qwen2ForCausalLM, Qwen3ForCausalLM"
)
AS_IT_IS = "engine.backend: llmapi or sglang or vllm takes the model as it is"
CONFIGS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"architectures": None}, "architectures is None, expected a list with one name", CheckpointError.remedy),
    ({"architectures": []}, "architectures is [], expected a list with one name", CheckpointError.remedy),
    (
        {"architectures": ["LlamaForCausalM"]},
        f"architecture 'LlamaForCausalM' is not supported; supported: {SERVED}",
        AS_IT_IS,
    ),
    ({"architectures": ["Falcon3"]}, f"architecture 'Falcon3' is not supported; supported: {SERVED}", AS_IT_IS),
    ({"hidden_size": "64"}, "hidden_size is '64', expected int", CheckpointError.remedy),
    ({"vocab_size": None}, "lacks 'vocab_size'", CheckpointError.remedy),
]


@pytest.mark.parametrize(("changes", "message", "hint"), CONFIGS)
def test_a_config_that_says_too_little(
    changes: dict[str, Any], message: str, hint: str | None, trtspec: Run, recipe: Path
) -> None:
    rewrite(recipe.parent / "target" / "config.json", **changes)
    assert the_problem(trtspec, recipe, TARGET) == (f"target/config.json: {message}", hint)


def test_a_shard_that_the_index_names_and_nobody_has(trtspec: Run, recipe: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (recipe.parent / "target" / "model.safetensors.index.json").write_text(json.dumps(index))
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message == (
        "target/model.safetensors.index.json: names the shard model-00002-of-00002.safetensors, which is missing"
    )


def test_a_truncated_shard(trtspec: Run, recipe: Path) -> None:
    shard = recipe.parent / "draft" / "model.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    message, _ = the_problem(trtspec, recipe, DRAFT)
    whole, left = f"{len(content):,}", f"{len(content) - 100:,}"
    assert message == (f"draft/model.safetensors: truncated: its tensors need {whole} bytes and the file has {left}")


def test_a_shape_that_is_not_what_config_says(trtspec: Run, recipe: Path) -> None:
    rewrite(recipe.parent / "draft" / "config.json", intermediate_size=40)
    message, _ = the_problem(trtspec, recipe, DRAFT)
    assert message == (
        "draft: 3 tensors do not add up:\n"
        "  model.layers.0.mlp.down_proj.weight: [16, 32] in model.safetensors, but config.json makes it [16, 40]\n"
        "  model.layers.0.mlp.gate_proj.weight: [32, 16] in model.safetensors, but config.json makes it [40, 16]\n"
        "  model.layers.0.mlp.up_proj.weight: [32, 16] in model.safetensors, but config.json makes it [40, 16]"
    )


def test_vocabularies_of_different_sizes(trtspec: Run, recipe: Path) -> None:
    make_llama(recipe.parent / "draft", vocab_size=PAIR_VOCAB + 8, **DRAFT_SHAPE)
    assert the_problem(trtspec, recipe, DRAFT) == (
        f"the draft has {PAIR_VOCAB + 8} vocabulary entries, the target {PAIR_VOCAB}",
        "a draft has to share the target's vocabulary",
    )


def test_tokenizers_that_split_differently(trtspec: Run, recipe: Path) -> None:
    make_tokenizer(recipe.parent / "draft", merges=MERGES[2:] + MERGES[:2])
    assert the_problem(trtspec, recipe, DRAFT) == (
        "draft and target have different tokenizers: equal vocabularies, but they split a text differently",
        "choose a draft of the target's family",
    )


def test_tokenizers_with_other_words(trtspec: Run, recipe: Path) -> None:
    path = recipe.parent / "draft" / "tokenizer.json"
    document = json.loads(path.read_text())
    numbers = document["model"]["vocab"]
    numbers["A"], numbers["B"] = numbers["B"], numbers["A"]
    path.write_text(json.dumps(document))
    message, hint = the_problem(trtspec, recipe, DRAFT)
    assert message == (
        f"draft and target have different tokenizers: their vocabularies differ, as at 'A' (id {numbers['B']})"
    )
    assert hint == "draft tokens would mean other texts; choose a draft of the target's family"


def test_equal_tokenizers_in_different_files_are_equal(trtspec: Run, recipe: Path) -> None:
    path = recipe.parent / "draft" / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]  # as older versions wrote it
    path.write_text(json.dumps(document, separators=(",", ":")))
    assert trtspec("check", recipe).code == 0


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_missing_tokenizer(role: str, trtspec: Run, recipe: Path) -> None:
    (recipe.parent / role / "tokenizer.json").unlink()
    assert the_problem(trtspec, recipe, TARGET if role == "target" else DRAFT) == (
        f"{role}: no tokenizer.json",
        "save the tokenizer in the fast format with transformers",
    )


def test_a_tokenizer_that_is_none(trtspec: Run, recipe: Path) -> None:
    (recipe.parent / "target" / "tokenizer.json").write_text('{"version": ')
    message, _ = the_problem(trtspec, recipe, TARGET)
    assert message == "target/tokenizer.json: not a tokenizer: it does not begin and end as a JSON object"


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
        "this engine comes with trtspec and has no version",
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
        PROMPTS_HINT,
    ),
    (
        "  model: ./target",
        "  model: ./target\n  quantization: {weights: fp8_rowwise, exclude: [lm_head, q_proj]}",
        (5, 59, "target.quantization.exclude.1"),
        "no module matches 'q_proj'; one is transformer.layers.0.attention.qkv",
        "target.quantization.exclude: fnmatch patterns of modules that are not quantized, by TensorRT-LLM's names",
    ),
    (
        "    model: ./draft",
        "    model: ./draft\n    quantization: {weights: fp8_rowwise, exclude: []}",
        (10, 51, "speculation.draft.quantization.exclude"),
        "fp8_rowwise engines need lm_head in the model's dtype; exclude lm_head",
        "speculation.draft.quantization.exclude: fnmatch patterns of modules that are not quantized, by TensorRT-LLM's"
        " names",
    ),
    (
        "    model: ./draft",
        "    model: ./draft\n    quantization: {weights: fp8, calibration: {prompts: ./nosuch.jsonl}}",
        (10, 57, "speculation.draft.quantization.calibration.prompts"),
        "nosuch.jsonl: cannot be read: No such file or directory",
        PROMPTS_HINT,
    ),
    (
        "  model: ./target",
        "  model: ./target\n  parallel: {tensor: 2, pipeline: 5}",
        (5, 13, "target.parallel"),
        "4 layers are fewer than 5 pipeline stages",
        "tensor can be 1, 2, 4; pipeline at most 4",
    ),
    (
        "gates:",
        "plugins: [verify_chian]\ngates:",
        (14, 10, "plugins"),
        "there is no plugin 'verify_chian'; known: compact_kv, verify_chain, verify_tree",
        "did you mean 'verify_chain'?",
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
def test_a_line_that_cannot_stand(
    old: str, new: str, place: tuple[int, int, str], message: str, hint: str | None, trtspec: Run, recipe: Path
) -> None:
    replace(recipe, old, new)
    assert the_problem(trtspec, recipe, place) == (message, hint)


def test_a_draft_with_fewer_positions(trtspec: Run, recipe: Path) -> None:
    rewrite(recipe.parent / "draft" / "config.json", max_position_embeddings=100)
    assert the_problem(trtspec, recipe, DRAFT) == (
        "the draft has 100 positions, fewer than engine.max_seq_len",
        "set engine.max_seq_len to at most 100",
    )


def test_a_method_that_lacks_its_draft(trtspec: Run, recipe: Path) -> None:
    replace(recipe, "  draft:\n    model: ./draft\n", "")
    assert the_problem(trtspec, recipe, (6, 3, "speculation")) == (
        "draft_target drafts with a model",
        "name one under speculation.draft",
    )


def test_a_draft_that_nothing_uses(trtspec: Run, recipe: Path) -> None:
    message, _ = the_problem(trtspec, recipe, (9, 5, "speculation.draft"), "--set", "speculation.method=none")
    assert message == "method none drafts with nothing"


@pytest.mark.parametrize("line", ["{", '{"prompt": 3}', '{"prompt": ""}', '["prompt"]', '"prompt"', '{"text": "a"}'])
def test_a_prompt_that_is_none(line: str, trtspec: Run, recipe: Path) -> None:
    (recipe.parent / "prompts.jsonl").write_text('{"prompt": "fine"}\n\n' + line + "\n")
    message, _ = the_problem(trtspec, recipe, (15, 12, "gates.prompts"))
    assert message == 'prompts.jsonl:3: expected {"prompt": "some text"}'


def test_a_hub_model_that_was_not_downloaded(trtspec: Run, recipe: Path) -> None:
    commit = "0abcdef123" * 4
    replace(recipe, "model: ./target", f"model: org/name\n  revision: {commit}")
    for command in ("check", "plan"):  # with the hub: tests/everyday/test_hub_check.py
        (problem,) = trtspec(command, recipe, "--json").document["problems"]
        message = f"org/name at commit {commit}: it is not in the hub cache, and HF_HUB_OFFLINE is set"
        assert (problem["line"], problem["message"]) == (TARGET[0], message)
        assert problem["hint"] == "unset HF_HUB_OFFLINE and try again"


def test_a_hub_model_is_found_in_the_cache(trtspec: Run, recipe: Path) -> None:
    commit = "0abcdef123" * 4
    snapshot = recipe.parent / "hub" / "models--org--name" / "snapshots" / commit
    shutil.copytree(recipe.parent / "target", snapshot)
    replace(recipe, "model: ./target", f"model: org/name\n  revision: {commit}")
    assert trtspec("check", recipe).code == 0


def test_a_pair_of_unusual_sizes_is_warned_of_and_built(trtspec: Run, recipe: Path) -> None:
    shutil.rmtree(recipe.parent / "draft")
    shutil.copytree(recipe.parent / "target", recipe.parent / "draft")
    checked = trtspec("check", recipe, "--json")
    assert checked.code == 0
    (problem,) = checked.document["problems"]
    assert (problem["severity"], problem["code"]) == ("warning", "size-ratio")
    assert problem["message"].startswith("the target is 1.0 times the draft (0.2 M and 0.2 M parameters)")
    assert "warning: the target is 1.0 times the draft" in trtspec("build", recipe).err


def test_options_of_another_engine_are_warned_of(trtspec: Run, recipe: Path) -> None:
    checked = trtspec("check", recipe, "--set", "engine.extra.gemm_plugin=auto")
    assert checked.code == 0
    assert checked.out.startswith("--set engine.extra.gemm_plugin=auto  engine.extra.gemm_plugin\n  warning: an option")


def test_a_value_that_was_set_names_its_place(trtspec: Run, recipe: Path) -> None:
    (problem,) = problems_of(trtspec, recipe, "--set", "speculation.draft_len=99")
    assert (problem["file"], problem["message"]) == (
        "--set speculation.draft_len=99",
        "draft_len must be at most 64, got 99",
    )


def test_a_matrix_is_checked_whole(trtspec: Run, recipe: Path) -> None:
    recipe.write_text(
        recipe.read_text() + "matrix:\n  speculation.draft_len: [1, 2]\n  engine.max_batch_size: [1, 400000]\n"
    )
    checked = trtspec("check", recipe)
    assert checked.code == 0
    assert checked.out.count("tiny-") == 4
