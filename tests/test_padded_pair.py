# SPDX-License-Identifier: Apache-2.0
"""A pair of one tokenizer whose checkpoints were published with different numbers of unused vocabulary rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests._support.tiny import DRAFT_SHAPE, PAIR_VOCAB, TARGET_SHAPE, make_llama, make_tokenizer
from tests.conftest import Run
from trtspec.checkpoints.safetensors import read_header
from trtspec.serving.triton.config import load_config

SPARE = 8


@pytest.fixture
def recipe(recipe: Path) -> Path:
    target = recipe.parent / "target"
    make_llama(target, vocab_size=PAIR_VOCAB + SPARE, **TARGET_SHAPE)
    make_tokenizer(target)
    return recipe


def test_plan_notes_that_the_draft_is_padded(trtspec: Run, recipe: Path) -> None:
    assert trtspec("check", recipe, "--json").document["problems"] == []
    rows = f"{PAIR_VOCAB} to the target's {PAIR_VOCAB + SPARE} rows"
    said = f"the draft's embedding and head are padded with zeros from {rows}"
    planned = trtspec("plan", recipe, "--json")
    assert planned.document["notes"] == [said]
    assert planned.err == ""
    assert said in trtspec("plan", recipe).out


@pytest.mark.integration
def test_padded_draft_drafts_and_output_is_lossless(trtspec: Run, recipe: Path) -> None:
    out = recipe.parent / "artifact"
    built = trtspec("build", recipe, "--out", out, "--json")
    assert built.code == 0, built.err
    config = json.loads((out / "checkpoints/draft/config.json").read_text())
    assert config["vocab_size"] == PAIR_VOCAB + SPARE
    biased = load_config(out / "model_repository" / "ensemble" / "config.pbtxt").parameters
    assert biased["vocab_size"].string_value == str(PAIR_VOCAB + SPARE), "a bias is as long as the logits"
    verified = trtspec("verify", out, "--max-tokens", 16, "--json")
    assert verified.code == 0, verified.err
    generated = trtspec("generate", out, "-p", "the rest", "--max-tokens", 12, "--json")
    assert generated.document["drafted"] > 0


@pytest.fixture
def wider_draft(recipe: Path) -> Path:
    """The tiny pair whose draft has more rows than the target, with the same tokenizer."""
    make_llama(recipe.parent / "target", vocab_size=PAIR_VOCAB, **TARGET_SHAPE)
    make_llama(recipe.parent / "draft", seed=1, vocab_size=PAIR_VOCAB + SPARE, **DRAFT_SHAPE)
    for role in ("target", "draft"):
        make_tokenizer(recipe.parent / role)
    return recipe


@pytest.mark.integration
def test_extra_vocabulary_rows_of_the_draft_are_removed(trtspec: Run, wider_draft: Path) -> None:
    assert trtspec("check", wider_draft, "--json").document["problems"] == []
    said = f"the draft's embedding and head are cut from {PAIR_VOCAB + SPARE} to the target's {PAIR_VOCAB} rows"
    assert trtspec("plan", wider_draft, "--json").document["notes"] == [said]
    out = wider_draft.parent / "artifact"
    assert trtspec("build", wider_draft, "--out", out).code == 0
    stored = read_header(out / "checkpoints/draft/rank0.safetensors")
    source = read_header(wider_draft.parent / "draft/model.safetensors")
    for ours, theirs in (
        ("transformer.vocab_embedding.weight", "model.embed_tokens.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ):
        found, whole = stored[ours], source[theirs]
        assert found.shape == (PAIR_VOCAB, whole.shape[1])
        assert (
            found.file.read_bytes()[found.offset :][: found.nbytes]
            == (whole.file.read_bytes()[whole.offset :][: found.nbytes])
        )
    verified = trtspec("verify", out, "--max-tokens", 16, "--json")
    assert verified.code == 0, verified.err


def test_draft_equal_to_the_padded_target_is_fully_accepted(trtspec: Run, wider_draft: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    target, draft = (wider_draft.parent / role for role in ("target", "draft"))
    tensors = load_file(target / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.cat([tensors[name], torch.full_like(tensors[name][:SPARE], 9.0)])  # proposed if kept
    save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text()) | {"vocab_size": PAIR_VOCAB + SPARE}
    (draft / "config.json").write_text(json.dumps(config))
    out = wider_draft.parent / "artifact"
    assert trtspec("build", wider_draft, "--out", out).code == 0
    generated = trtspec("generate", out, "-p", "the rest", "--max-tokens", 24, "--json").document
    assert generated["drafted"] == generated["accepted"] > 0


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("at", [PAIR_VOCAB, PAIR_VOCAB + 2])
def test_pad_token_missing_on_one_side_is_not_a_tokenizer_difference(
    role: str, at: int, trtspec: Run, wider_draft: Path
) -> None:
    make_llama(wider_draft.parent / "target", vocab_size=PAIR_VOCAB + SPARE, **TARGET_SHAPE)
    make_tokenizer(wider_draft.parent / "target")
    _add_token(wider_draft.parent / role, at)
    assert trtspec("check", wider_draft, "--json").document["problems"] == []


def test_different_tokens_with_the_same_id_are_a_tokenizer_difference(trtspec: Run, wider_draft: Path) -> None:
    make_llama(wider_draft.parent / "target", vocab_size=PAIR_VOCAB + SPARE, **TARGET_SHAPE)
    make_tokenizer(wider_draft.parent / "target")
    _add_token(wider_draft.parent / "target", PAIR_VOCAB, "<pad>")
    _add_token(wider_draft.parent / "draft", PAIR_VOCAB, "<mask>")
    (problem,) = trtspec("check", wider_draft, "--json").document["problems"]
    assert "different tokenizers" in problem["message"]


def _add_token(root: Path, at: int, content: str = "<pad>") -> None:
    path = root / "tokenizer.json"
    document = json.loads(path.read_text())
    document["added_tokens"].append(document["added_tokens"][0] | {"id": at, "content": content})
    document["model"]["vocab"][content] = at
    path.write_text(json.dumps(document))
