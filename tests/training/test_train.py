# SPDX-License-Identifier: Apache-2.0
"""`trtspec train`: a better draft is published as a checkpoint; a worse one and invalid sets are rejected."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests._support import forked
from tests._support.tiny import make_llama, make_tokenizer
from tests.conftest import Run
from trtspec.recipe.load import load_recipe

pytestmark = pytest.mark.integration

WORDS = ("the rest", "in here", "there", "rethink", "other", "inner", "he", "then")
FAST = ("--steps", "200", "--max-minutes", "2", "--max-tokens", "24", "--learning-rate", "0.003")
NOISE = 0.1


def prompts_file(path: Path, count: int, kinds: tuple[str, ...] = ("a",), seed: int = 0, **values: Any) -> Path:
    draw = Random(seed)
    records = [
        {"id": f"{path.stem}-{n}", "kind": kinds[n % len(kinds)], "prompt": f"{draw.choice(WORDS)} {n + 100 * seed}"}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(record | values) + "\n" for record in records))
    return path


@pytest.fixture
def recipe(workplace: Path) -> Path:
    """A target, and a draft that is the target with much added noise."""
    make_llama(workplace / "target", 0, scale=0.3, vocab_size=262, intermediate_size=64)
    shutil.copytree(workplace / "target", workplace / "draft")
    file, draw = workplace / "draft" / "model.safetensors", torch.Generator().manual_seed(0)
    tensors = load_file(file)
    for tensor in tensors.values():
        tensor.add_(NOISE * tensor.float().std() * torch.randn(tensor.shape, generator=draw))
    save_file(tensors, file, {"format": "pt"})
    for role in ("target", "draft"):
        make_tokenizer(workplace / role)
    path = workplace / "recipe.yaml"
    path.write_text(
        "schema: trtspec.recipe/1\nname: tiny\ntarget: {model: ./target}\n"
        "speculation:\n  method: draft_target  # stays\n  draft_len: 3\n  draft:\n    model: ./draft\n"
        "engine: {max_batch_size: 8, max_input_len: 64, max_seq_len: 128}\n"
    )
    return path


@pytest.fixture
def prompts(workplace: Path) -> Path:
    return prompts_file(workplace / "prompts.jsonl", 60, ("a", "b"))


def entries(workplace: Path) -> dict[str, float]:
    """Return the creation time of each store entry by its step's name."""
    documents = [json.loads(path.read_text()) for path in (workplace / "cache" / "store").rglob("entry.json")]
    return {each["name"]: each["created"] for each in documents if "name" in each}


def test_better_draft_is_published(recipe: Path, prompts: Path, trtspec: Run) -> None:
    ended = trtspec("train", recipe, "--prompts", prompts, "--out", "better", "--write", "--json", *FAST)
    assert ended.code == 0, ended.out
    found = ended.document
    assert (found["published"], found["draft"], found["refusals"]) == (True, "better", [])
    assert found["after"]["mean_accepted_len"] > 1.1 * found["before"]["mean_accepted_len"]
    assert {each["kind"] for each in found["kinds"]} == {"a", "b"}
    assert sum(each["prompts"] for each in found["kinds"]) == 12
    record = json.loads(Path("better/trtspec_training.json").read_text())
    assert len(record.pop("prompt_digests")) == found["prompts_trained_on"] == 48
    assert record == found
    # same layout: names, types, config and tokenizer
    before, after = (load_file(root / "model.safetensors") for root in (Path("draft"), Path("better")))
    assert {name: (t.shape, t.dtype) for name, t in before.items()} == {
        name: (t.shape, t.dtype) for name, t in after.items()
    }
    assert not any(torch.equal(before[name], after[name]) for name in before if name.endswith("proj.weight"))
    for name in ("config.json", "tokenizer.json"):
        assert (Path("draft") / name).read_bytes() == (Path("better") / name).read_bytes()
    # The recipe names the draft, keeps its comments, and works with commands that take recipes.
    assert "method: draft_target  # stays" in recipe.read_text()
    assert load_recipe(recipe).recipe.speculation.draft.model.endswith("better")
    assert trtspec("check", recipe).code == 0
    assert trtspec("build", recipe).code == 0
    # Gates on the training prompts cause a warning, and a report finds the training.
    benched = trtspec("bench", "build/tiny", "--prompts", prompts, "--runs", 1, "--max-tokens", 2)
    assert "warning: 48 of 60 prompts are among the draft's 48 training prompts" in benched.err
    assert "train-draft_target.json" in trtspec("report", "build/tiny", "-o", "r.html").err


def test_second_run_reuses_all_results(recipe: Path, prompts: Path, trtspec: Run) -> None:
    arguments = ("train", recipe, "--prompts", prompts, "--json", *FAST)
    first = trtspec(*arguments).document
    made = entries(recipe.parent)
    assert {"split-prompts", "answer-prompts", "train-draft", "measure-before"} <= made.keys()
    assert trtspec(*arguments).document == first
    assert entries(recipe.parent) == made


def test_draft_without_gain_is_rejected(recipe: Path, prompts: Path, trtspec: Run) -> None:
    ended = trtspec("train", recipe, "--prompts", prompts, *FAST[:-1], "1e-12", "--write")
    assert ended.code == 112
    assert "rejected: all held-out prompts gain" in ended.out
    assert not Path("drafts").exists()
    assert load_recipe(recipe).recipe.speculation.draft.model.endswith("/draft")


def test_too_long_prompts_are_skipped_and_counted(recipe: Path, prompts: Path, trtspec: Run) -> None:
    with prompts.open("a") as file:
        file.writelines(json.dumps({"kind": "a", "prompt": f"{n} there " * 40}) + "\n" for n in range(7))
    arguments = ("train", recipe, "--prompts", prompts, *FAST)
    found = trtspec(*arguments, "--json").document
    assert found["prompts_left_out"] == 7
    assert sum(each["prompts"] for each in found["kinds"]) <= 13
    assert "7 prompts skipped: too long for the engine with --max-tokens" in trtspec(*arguments).out


def test_regression_prompts_are_evaluated(recipe: Path, prompts: Path, trtspec: Run) -> None:
    keep = prompts_file(recipe.parent / "keep.jsonl", 40, ("c",), seed=7)
    found = trtspec("train", recipe, "--prompts", prompts, "--regression-prompts", keep, "--json", *FAST).document
    kept = [each for each in found["kinds"] if each["kept"]]
    assert [each["kind"] for each in kept] == ["c (kept)"]
    assert kept[0]["prompts"] == 8


@pytest.mark.slow
def test_killed_training_resumes_to_the_same_result(
    recipe: Path, prompts: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed after its first checkpoint ends with the same result as an uninterrupted one."""
    command = ["train", str(recipe), "--prompts", str(prompts), "--steps", "240", *FAST[2:], "--out"]
    process = forked.Popen([sys.executable, "-m", "trtspec", *command, "killed"], env=dict(os.environ))
    notes = recipe.parent / "cache" / "store" / "partial"
    for _ in range(3000):
        if any(notes.glob("*/notes/training.pt")):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    assert trtspec(*command, "killed").code == 0
    monkeypatch.setenv("TRTSPEC_CACHE", str(recipe.parent / "other-cache"))
    assert trtspec(*command, "whole").code == 0
    killed, whole = (Path(name, "model.safetensors").read_bytes() for name in ("killed", "whole"))
    assert killed == whole


POISONS = {
    "empty": ({"response": ""}, "60 answers are empty, as that to prompt prompts-0"),
    "random": ({"response": "ZqXj%Wv&Kp@Yb#"}, "answers are not the target's own"),
}


@pytest.mark.parametrize("poison", POISONS)
def test_poisoned_answers_are_rejected(poison: str, recipe: Path, trtspec: Run) -> None:
    values, complaint = POISONS[poison]
    poisoned = prompts_file(recipe.parent / "prompts.jsonl", 60, **values)
    ended = trtspec("train", recipe, "--prompts", poisoned, *FAST)
    assert ended.code == 1
    assert complaint in ended.err
    assert not Path("drafts").exists()


def test_single_repeated_prompt_is_rejected(recipe: Path, trtspec: Run) -> None:
    path = recipe.parent / "same.jsonl"
    path.write_text('{"prompt": "the rest of it"}\n' * 30)
    ended = trtspec("train", recipe, "--prompts", path, *FAST)
    assert ended.code == 1
    assert "same.jsonl: prompts without a kind: 30 prompts of 1 documents" in ended.err


def test_too_few_evaluation_prompts_are_reported_before_training(recipe: Path, trtspec: Run) -> None:
    ended = trtspec("train", recipe, "--prompts", prompts_file(recipe.parent / "few.jsonl", 20), *FAST)
    assert ended.code == 1
    assert "only 4 held-out prompts have an answer of two tokens; an evaluation needs 6" in ended.err
    assert "train-draft" not in entries(recipe.parent)


def test_target_with_constant_answers_is_rejected(recipe: Path, prompts: Path, trtspec: Run) -> None:
    file = recipe.parent / "target" / "model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name].zero_()
    tensors["model.embed_tokens.weight"][:] = 1.0
    tensors["lm_head.weight"] *= 0.001
    tensors["lm_head.weight"][70] = 1.0
    save_file(tensors, file, {"format": "pt"})
    ended = trtspec("train", recipe, "--prompts", prompts, *FAST)
    assert ended.code == 1
    assert "the target answers every prompt only with token 70" in ended.err


def test_file_with_only_too_long_prompts_is_rejected_by_name(recipe: Path, prompts: Path, trtspec: Run) -> None:
    long = recipe.parent / "long.jsonl"
    long.write_text("".join(json.dumps({"prompt": f"{n} there " * 40}) + "\n" for n in range(9)))
    ended = trtspec("train", recipe, "--prompts", prompts, "--regression-prompts", long, *FAST)
    assert ended.code == 1
    assert f"{long}: no prompt has between 1 and 64 tokens" in ended.err


def test_prompts_in_another_chat_template_are_rejected(recipe: Path, trtspec: Run) -> None:
    path = recipe.parent / "chatml.jsonl"
    lines = [{"prompt": f"<|im_start|>user\nrest {n}<|im_end|>\n<|im_start|>assistant\n"} for n in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = trtspec("train", recipe, "--prompts", path, *FAST)
    assert ended.code == 1
    assert "the chat template of another model: <|im_start|>" in ended.err


@pytest.mark.parametrize("option", ["--held-out", "--regression-prompts"])
def test_leaked_prompt_is_rejected_by_name(option: str, recipe: Path, prompts: Path, trtspec: Run) -> None:
    leak = recipe.parent / "leak.jsonl"
    leak.write_text("\n".join([*(f'{{"prompt": "new {n}"}}' for n in range(9)), prompts.read_text().splitlines()[3]]))
    ended = trtspec("train", recipe, "--prompts", prompts, option, leak, *FAST)
    assert ended.code == 1
    assert f"prompt prompts-3 of {option} equals prompt prompts-3" in ended.err


def test_method_without_trainable_draft_is_rejected(recipe: Path, prompts: Path, trtspec: Run) -> None:
    ended = trtspec("train", recipe, "--prompts", prompts, "--set", "speculation={method: ngram, draft_len: 3}")
    assert ended.code == 1
    able = "dflash, draft_target, dspark, eagle, eagle3, medusa, p_eagle, redrafter"
    assert f"method ngram has no trainable draft; supported methods: {able}" in ended.err


def test_existing_foreign_output_is_not_overwritten(recipe: Path, prompts: Path, trtspec: Run) -> None:
    Path("mine").mkdir()
    Path("mine/file").write_text("of somebody")
    ended = trtspec("train", recipe, "--prompts", prompts, "--out", "mine", *FAST)
    assert ended.code == 1
    assert "not a trained draft; refusing to overwrite" in ended.err
    assert Path("mine/file").read_text() == "of somebody"


def test_unwritable_output_path_is_reported_before_training(
    recipe: Path, prompts: Path, trtspec: Run, workplace: Path
) -> None:
    ended = trtspec("train", recipe, "--prompts", prompts, "--out", "prompts.jsonl/better", *FAST)
    assert ended.code == 1
    assert f"prompts.jsonl/better: {prompts} is not a writable directory" in ended.err
    assert not entries(workplace)


def test_draft_in_the_current_directory_is_replaced(
    recipe: Path, prompts: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trtspec("train", recipe, "--prompts", prompts, "--out", "better", *FAST).code == 0
    first = json.loads(Path("better/trtspec_training.json").read_text())
    monkeypatch.chdir("better")
    assert trtspec("train", recipe, "--prompts", prompts, "--out", ".", *FAST).code == 0
    second = json.loads((recipe.parent / "better" / "trtspec_training.json").read_text())
    assert (first["draft"], second["draft"]) == ("better", ".")
    assert [path.name for path in recipe.parent.glob(".better*")] == [".better.lock"]
