# SPDX-License-Identifier: Apache-2.0
"""Drafts from scratch: methods and dialects can read them, they can be trained, and their initial output is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import convert, make_llama, make_model
from tests.training.made import DRAFT_LEN, SETTINGS, make_draft, random_texts, student_of
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import extension_names
from trtspec.methods.draft_formats.base import schemas_for
from trtspec.methods.draft_formats.convert import convert_draft
from trtspec.methods.draft_formats.draft import READERS
from trtspec.methods.draft_head import read_head
from trtspec.training.batches import TrainingBatch
from trtspec.training.texts import NO_SIZES, Sizes, TrainingText
from trtspec.training.trainer import LOSSES, batch_loss

METHODS = extension_names("trtspec.methods", "training")
CHAIN = {"choices": [[0] * depth for depth in range(1, DRAFT_LEN + 1)]}
OPTIONS: dict[str, dict[str, Any]] = {"eagle": CHAIN, "medusa": CHAIN}
TEXTS = random_texts(6)


def make(method: str, root: Path, target: Path, sizes: Sizes = NO_SIZES, texts: list[TrainingText] = TEXTS) -> Path:
    return make_draft(method, root, target, texts, sizes)


@pytest.mark.parametrize("layers", [1, 2, 8])
@pytest.mark.parametrize("method", METHODS)
def test_new_draft_is_compatible_with_its_target(method: str, layers: int, tmp_path: Path) -> None:
    """Neither missing or extra tensors nor warnings occur."""
    source = make_llama(tmp_path / "hf", num_hidden_layers=layers)
    draft, target = make(method, tmp_path / "draft", source), load_model(source, "auto")
    if method == "draft_target":
        model = load_model(draft, "auto")
        assert (model.config.vocab_size, model.matched.skipped) == (target.config.vocab_size, {})
        return
    head = read_head(load_source(draft), method, OPTIONS.get(method, {}), target, DRAFT_LEN)
    assert head.head.diagnostics == ()
    assert head.matched.skipped.keys() <= {"t2d"}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "qwen3"])
@pytest.mark.parametrize("method", METHODS)
def test_new_draft_reduces_its_loss_in_training(method: str, family: str, tmp_path: Path) -> None:
    """Targets with other shapes work too, and the mask token is not in any text."""
    source = make_model(tmp_path / "hf", family, scale=0.3)
    draft = make(method, tmp_path / "draft", source)
    student, lessons = student_of(method, convert(source, tmp_path / "target"), draft, TEXTS, draft_len=DRAFT_LEN)
    optimizer = torch.optim.AdamW(student.tensors.parameters.values(), lr=SETTINGS.learning_rate)
    batch, losses = TrainingBatch(TEXTS, torch.device("cpu")), []
    for _ in range(12):
        loss = batch_loss(student, student.tensors.view(), batch, lessons, LOSSES["greedy"])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("method", [method for method in METHODS if method in READERS])
def test_new_draft_converts_to_every_dialect(method: str, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf", num_hidden_layers=8)
    draft = make(method, tmp_path / "draft", source)
    for to in schemas_for(method):
        if (method, to) != ("eagle3", "deepspec"):  # deepspec heads have norms of queries and keys
            assert convert_draft(draft, to, tmp_path / to, str(source)).draft.kind == method


@pytest.mark.parametrize("method", ["medusa", "redrafter"])
def test_new_heads_predict_the_logits_of_the_target(method: str, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf", scale=0.3)
    draft = make(method, tmp_path / "draft", source)
    student, lessons = student_of(method, convert(source, tmp_path / "target"), draft, TEXTS)
    batch = TrainingBatch(TEXTS, torch.device("cpu"))
    view, features = student.tensors.view(), lessons.of(batch)[1]
    before = lessons.teacher.read(batch.tokens, batch.flat(1), ())[0]  # the logits that predict the place itself
    with torch.no_grad():
        for head, hidden in enumerate(student.hidden(view, batch, features)):
            torch.testing.assert_close(student.logits(view, hidden, head), before, atol=1e-4, rtol=1e-4)


def test_draft_vocabulary_contains_the_answer_tokens(tmp_path: Path) -> None:
    """The LM head has the target's rows of these tokens; the mask is the last token that no text contains."""
    source = make_llama(tmp_path / "hf")
    texts = [
        TrainingText("train", "a", False, "x", (63, 5), (62, 9, 9, 3)),
        TrainingText("train", "a", False, "y", (1,), (9, 3)),
    ]
    draft = make("p_eagle", tmp_path / "draft", source, Sizes(layers=3, draft_vocab=4), texts)
    tensors, target = load_file(draft / "model.safetensors"), load_file(source / "model.safetensors")
    assert (tensors["d2t"] + torch.arange(4)).tolist() == [0, 3, 9, 62]
    assert torch.equal(tensors["lm_head.weight"], target["lm_head.weight"][[0, 3, 9, 62]])
    config = json.loads((draft / "config.json").read_text())
    assert (config["mask_token_id"], config["num_hidden_layers"], config["draft_vocab_size"]) == (61, 3, 4)


def test_small_model_lm_head_is_the_best_low_rank_approximation(tmp_path: Path) -> None:
    """With all directions the products of rows are preserved; with fewer, they are approximated best."""
    source = make_llama(tmp_path / "hf", hidden_size=64)
    vectors, values, _ = torch.linalg.svd(load_file(source / "model.safetensors")["lm_head.weight"].float())
    for width in (64, 32):
        draft = make("draft_target", tmp_path / f"{width}", source, Sizes(hidden_size=width))
        made = load_file(draft / "model.safetensors")["lm_head.weight"].float()
        best = vectors[:, :width] * values[:width].pow(2) @ vectors[:, :width].T
        assert (made @ made.T - best).norm() < 0.01 * best.norm()


@pytest.mark.parametrize(
    ("method", "sizes", "words"),
    [
        ("eagle3", Sizes(layers=2), "drafts of eagle3 do not support --layers; supported sizes: --draft-vocab"),
        ("medusa", Sizes(draft_vocab=9), "drafts of medusa do not support --draft-vocab; supported sizes: none"),
        ("eagle3", Sizes(draft_vocab=65), "--draft-vocab 65 is more than the target's 64"),
        ("draft_target", Sizes(hidden_size=12), "--hidden-size 12 is not a multiple of the head size 8"),
        ("draft_target", Sizes(hidden_size=40), "--hidden-size 40 is not a multiple of the head size 8"),
    ],
)
def test_invalid_draft_sizes_are_rejected(method: str, sizes: Sizes, words: str, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf")
    with pytest.raises(TrtspecError, match=words):
        make(method, tmp_path / "draft", source, sizes)
