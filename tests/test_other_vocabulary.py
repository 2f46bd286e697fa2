# SPDX-License-Identifier: Apache-2.0
"""A recipe whose draft model has another tokenizer, from check to text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests._support.tiny import DRAFT_SHAPE, PAIR_VOCAB, make_llama, make_tokenizer
from tests.conftest import Run
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.checkpoints.translation import read_vocab_mapping

PATH = "speculation.draft.model"
SPARE = 5


def change_tokenizer(root: Path) -> None:
    """Turn the ids round, and have "er" in the place of "re"."""
    path = make_tokenizer(root) / "tokenizer.json"
    document = json.loads(path.read_text().replace('"re"', '"er"'))
    model = document["model"]
    model["merges"][-1] = ["e", "r"]
    model["vocab"] = {text: PAIR_VOCAB - 1 - token for text, token in model["vocab"].items()}
    document["added_tokens"][0]["id"] = PAIR_VOCAB - 1
    path.write_text(json.dumps(document))


@pytest.fixture
def recipe(recipe: Path) -> Path:
    """The tiny pair, its draft with another tokenizer and more rows than the target."""
    draft = recipe.parent / "draft"
    shutil.rmtree(draft)
    make_llama(draft, seed=1, vocab_size=PAIR_VOCAB + SPARE, **DRAFT_SHAPE)
    change_tokenizer(draft)
    return recipe


def problems(trtspec: Run, recipe: Path, *more: str) -> list[tuple[str, str, str]]:
    found = trtspec("check", recipe, "--json", *more).document["problems"]
    return [(each["severity"], each["code"], each["message"]) for each in found if each["path"] == PATH]


def test_check_reports_the_share_of_common_tokens(trtspec: Run, recipe: Path) -> None:
    (found,) = problems(trtspec, recipe)
    share = f"{PAIR_VOCAB - 1} of the target's {PAIR_VOCAB} tokens (99.6%)"
    said = f"draft and target have different tokenizers: the draft can draft only {share}"
    assert found[:2] == ("warning", "vocabulary")
    assert found[2].startswith(said)


def test_pair_without_common_tokens_is_rejected(trtspec: Run, recipe: Path) -> None:
    path = recipe.parent / "draft" / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"] |= {"vocab": {"北京": 0, "<stop>": 1}, "merges": []}
    document["added_tokens"][0] |= {"id": 1, "content": "<stop>"}
    path.write_text(json.dumps(document))
    (found,) = [each for each in problems(trtspec, recipe) if each[0] == "error"]
    assert found == ("error", "vocabulary", "draft and target have different tokenizers without a common token: "
                     "nothing can be drafted")  # fmt: skip


def test_tokenizer_with_unknown_token_bytes_is_rejected(trtspec: Run, recipe: Path) -> None:
    path = recipe.parent / "draft" / "tokenizer.json"
    document = json.loads(path.read_text()) | {"decoder": None}
    path.write_text(json.dumps(document))
    ((severity, code, said),) = problems(trtspec, recipe)
    assert (severity, code) == ("error", "vocabulary")
    assert "the bytes of its tokens are unknown (unsupported decoder: none)" in said


@pytest.mark.parametrize("backend", ["tensorrt_llm", "llmapi", "sglang"])
def test_other_backends_reject_a_different_vocabulary(trtspec: Run, recipe: Path, backend: str) -> None:
    found = problems(trtspec, recipe, "--set", f"engine.backend={backend}", "--set", "engine.gpu=h100")
    assert "error" in {severity for severity, *_ in found}


def test_parallel_draft_requires_the_targets_vocabulary(trtspec: Run, recipe: Path) -> None:
    assert ("error", "tokenizer") in [
        found[:2] for found in problems(trtspec, recipe, "--set", "speculation.method=pard")
    ]


def test_draft_with_another_vocabulary_is_not_trained(trtspec: Run, recipe: Path) -> None:
    done = trtspec("train", recipe, "--prompts", recipe.parent / "prompts.jsonl", "--out", recipe.parent / "trained")
    assert done.code != 0
    assert "the draft's vocabulary differs from the target's" in done.err


@pytest.mark.integration
def test_draft_with_another_vocabulary_drafts_and_output_is_lossless(trtspec: Run, recipe: Path) -> None:
    out = recipe.parent / "artifact"
    built = trtspec("build", recipe, "--out", out, "--json")
    assert built.code == 0, built.err
    found = read_vocab_mapping(out / "checkpoints/draft", PAIR_VOCAB, PAIR_VOCAB + SPARE)
    assert found
    ours, theirs = (Tokenizer(recipe.parent / role).vocabulary for role in ("target", "draft"))
    assert found.spellings[ours["the"]] == [theirs["the"]]
    assert found.spellings[ours["re"]] == [theirs["r"], theirs["e"]]
    verified = trtspec("verify", out, "--max-tokens", 16, "--json")
    assert verified.code == 0, verified.err
    generated = trtspec("generate", out, "-p", "the rest", "--max-tokens", 12, "--json")
    assert generated.document["drafted"] > 0
    again = trtspec("build", recipe, "--out", out, "--json").document
    assert {step["status"] for step in again["steps"]} == {"hit"}
