# SPDX-License-Identifier: Apache-2.0
"""Trainable drafts equal the engine's; losses and gradients equal plain formulas in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import FAMILY_SHAPES, reference_model
from tests.methods.draft_formats.medusa_nets import by_vllms_names
from tests.methods.eagle3_heads import aux_states, formula_of, random_head
from tests.methods.heads import save_heads
from tests.training.made import (
    BLOCKS,
    FRESH,
    PAIRS,
    RUN,
    SETTINGS,
    head_pair,
    model_pair,
    random_texts,
    student_of,
    texts_of,
)
from tests.training.naive import NAIVE, naive_loss
from trtspec.bench.profile.acceptance import count_steps
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError
from trtspec.engine.measurement import replay
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.settings import EngineSettings
from trtspec.engine.speculator import Speculator
from trtspec.training.batches import TargetOutputs, TrainingBatch
from trtspec.training.texts import TRAIN, TrainingText
from trtspec.training.trainable import TrainableDraft
from trtspec.training.trainer import LOSSES, acceptance, batch_loss

CPU = torch.device("cpu")
DENSE = sorted(set(FAMILY_SHAPES) - {"mixtral"})
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norms": {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True},
    "fc norms, biases, head norms, own embedding": {
        "fc_norm": True, "bias": True, "qk_norm": True, "own_embedding": True, "drafted": 64
    },
}  # fmt: skip


def double(student: Any) -> None:
    """Convert a draft to float64."""
    tensors = student.tensors
    for kept in (tensors.parameters, tensors.fixed):
        for name, tensor in kept.items():
            if tensor.is_floating_point():
                kept[name] = tensor.detach().double().requires_grad_(tensor.requires_grad)
    if hasattr(student, "_borrowed"):
        borrowed = student._borrowed
        borrowed.embedding, borrowed.head = borrowed.embedding.double(), borrowed.head.double()


def whole(tokens: Sequence[int]) -> TrainingText:
    """Return a text whose tokens after the first are the response."""
    return TrainingText(TRAIN, "a", False, "x", tuple(tokens[:1]), tuple(tokens[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("family", DENSE)
def test_draft_model_logits_equal_the_engine(family: str, tmp_path: Path) -> None:
    """Gemma's layers have a window that is shorter than the text."""
    window = {"sliding_window": 8} if family.startswith("gemma") else {}
    target, source, draft = model_pair(tmp_path, family, **window)
    tokens = [*random_texts(1)[0].tokens] * 3
    text = whole(tokens)
    student, _ = student_of("draft_target", target, source, [text])
    view = student.tensors.view()
    with torch.no_grad():
        found = student.logits(view, student.hidden(view, TrainingBatch([text], CPU), None)[0], 0)
        engine = Decoder(load_checkpoint(draft), 1, len(tokens), CPU, torch.float32)
        wanted = engine.forward(torch.tensor([tokens]), engine.windows.chain([0], len(tokens)))[1:-1]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("layout", ["specforge", "speculators"])
def test_eagle3_passes_match_the_reference_formula(kind: str, layout: str, tmp_path: Path) -> None:
    """Compute every chain from every place of a text, with the paper's step over the whole text."""
    target, source = head_pair(tmp_path, layout, **HEADS[kind])
    text = random_texts(1)[0].prompt * 3
    student, lessons = student_of("eagle3", target, source, [whole(text)])
    batch = TrainingBatch([whole(text)], CPU)
    model = reference_model(tmp_path / "hf")
    formula = formula_of(random_head(**HEADS[kind]), model)
    with torch.no_grad():
        view = student.tensors.view()
        _, features = lessons.teacher.read(batch.tokens, torch.arange(1), student.aux_layers)
        passes = [student.logits(view, each, step) for step, each in enumerate(student.hidden(view, batch, features))]
        states = aux_states(model, text, (0, 1))
        for step in range(4):
            for place in range(len(text) - 2 - step):
                wanted = formula.draft(text[: place + 2], states, text[place + 2 : place + 2 + step])
                torch.testing.assert_close(passes[step][place], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_medusa_heads_with_vllm_names_train_like_others(tmp_path: Path) -> None:
    """Heads without biases equal heads with zero biases, and keep their tensor names after training."""
    target, source, _ = PAIRS["medusa"](tmp_path)
    tensors = load_file(source / "medusa_lm_head.safetensors")
    zeros = tensors | {name: torch.zeros_like(each) for name, each in tensors.items() if name.endswith("bias")}
    unbiased = by_vllms_names({name: each for name, each in tensors.items() if not name.endswith("bias")})
    roots = save_heads(tmp_path / "zeros", zeros), save_heads(tmp_path / "unbiased", unbiased)
    texts = random_texts(3)
    batch, found = TrainingBatch(texts, CPU), []
    for root in roots:
        student, lessons = student_of("medusa", target, root, texts, draft_len=5)
        found.append(batch_loss(student, student.tensors.view(), batch, lessons, LOSSES["kl"]))
    assert found[0].item() == found[1].item()
    assert student.tensors.changed().keys() == unbiased.keys()


def chain_of(method: str, draft_len: int) -> EngineSettings:
    """Return the settings with which a method drafts a chain."""
    options: dict[str, Any] = {}
    if method in ("medusa", "eagle"):
        draft_len, options = 0, {"choices": [[0] * depth for depth in range(1, draft_len + 1)]}
    elif method == "redrafter":
        options = {"beams": 1}
    return EngineSettings(method, draft_len, options=options, max_batch_size=8, max_seq_len=64)


@pytest.mark.slow
@pytest.mark.parametrize("made", [*PAIRS, *RUN])
@pytest.mark.parametrize("draft_len", [1, 3, 5])
def test_acceptance_equals_the_engine_replay(made: str, draft_len: int, tmp_path: Path) -> None:
    """Acceptance equals a replay of the same texts in the engine."""
    method = made.split(maxsplit=1)[0]
    target, source, draft = {**PAIRS, **RUN}[made](tmp_path)
    texts = texts_of(tmp_path / "hf")
    student, lessons = student_of(method, target, source, texts, draft_len=draft_len)
    speculator = Speculator.load(target, draft, chain_of(method, draft_len))
    places = replay(speculator, [(text.prompt, text.answer) for text in texts], 64)
    found = acceptance(student, lessons, texts, draft_len)
    assert found.texts == tuple(count_steps(each, draft_len) for each in places)
    if made in ("eagle", "medusa", "redrafter", *RUN):  # partially trained; a random draft is hardly ever right
        assert sum(counts.accepted for counts in found.texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("made", [*PAIRS, *BLOCKS, *FRESH])
def test_loss_and_gradients_match_the_naive_implementation(made: str, name: Any, tmp_path: Path) -> None:
    method = made.split(maxsplit=1)[0]
    target, source = {**PAIRS, **BLOCKS, **FRESH}[made](tmp_path)[:2]
    texts = random_texts(3)
    student, lessons = student_of(method, target, source, texts)
    double(student)
    batch, wide = TrainingBatch(texts, CPU), Wide(lessons)
    logits, features = wide.of(batch)
    states = {} if features is None else {text.name: own for text, own in zip(texts, features, strict=True)}
    loss = batch_loss(student, student.tensors.view(), batch, wide, LOSSES[name])
    loss.backward()
    naive = NAIVE[method](tmp_path, source, states)
    plain = naive_loss(naive, torch.split(logits, batch.counts), texts, name)
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), abs=1e-6)
    ours = {key: each.grad for key, each in student.tensors.parameters.items() if each.grad is not None}
    theirs = {key: each.grad for key, each in naive.parameters.items() if each.grad is not None}
    assert ours.keys() == theirs.keys()
    for key, gradient in ours.items():
        np.testing.assert_allclose(gradient.numpy(), theirs[key].numpy(), atol=1e-6, err_msg=key)


class Wide(TargetOutputs):
    """Target outputs for a draft in float64."""

    def __init__(self, inner: TargetOutputs) -> None:
        self.inner = inner

    def of(self, batch: TrainingBatch) -> Any:
        return tuple(each if each is None else each.double() for each in self.inner.of(batch))


@pytest.mark.slow
@pytest.mark.parametrize("method", PAIRS)
def test_lora_starts_at_the_draft_and_merges_without_changing_the_loss(method: str, tmp_path: Path) -> None:
    target, source, _ = PAIRS[method](tmp_path)
    texts = random_texts(3)
    batch = TrainingBatch(texts, CPU)
    thin = student_of(method, target, source, texts, settings=SETTINGS.__class__("kl", 2, 1e-2, 1, 60.0, 0))
    whole = student_of(method, target, source, texts)

    def loss_of(pair: tuple[TrainableDraft, TargetOutputs]) -> float:
        return float(batch_loss(pair[0], pair[0].tensors.view(), batch, pair[1], LOSSES["kl"]).detach())

    assert loss_of(thin) == pytest.approx(loss_of(whole), rel=1e-6)
    assert all("lora" in name for name in thin[0].tensors.parameters)
    with torch.no_grad():
        for parameter in thin[0].tensors.parameters.values():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    merged = thin[0].tensors.changed()
    assert loss_of(thin) != pytest.approx(loss_of(whole), rel=1e-3)
    whole[0].tensors.load_state({**whole[0].tensors.state(), **merged})
    assert loss_of(thin) == pytest.approx(loss_of(whole), rel=1e-5)


def test_mixture_of_experts_draft_is_rejected(tmp_path: Path) -> None:
    target, source = model_pair(tmp_path, "mixtral")[:2]
    with pytest.raises(CheckpointError, match="experts, which cannot be trained"):
        student_of("draft_target", target, source, random_texts(2))


def test_padding_does_not_change_the_loss(tmp_path: Path) -> None:
    """A text's loss does not depend on a longer text in the same batch."""
    target, source = model_pair(tmp_path)[:2]
    short, long = sorted(random_texts(6), key=lambda text: len(text.tokens))[::5]
    student, lessons = student_of("draft_target", target, source, [short, long])

    def total(texts: list[TrainingText]) -> float:
        batch = TrainingBatch(texts, CPU)
        loss = batch_loss(student, student.tensors.view(), batch, lessons, LOSSES["kl"])
        return loss.item() * len(batch.positions)

    assert total([short, long]) == pytest.approx(total([short]) + total([long]), rel=1e-5)


@pytest.mark.parametrize("method", ["draft_target", "eagle3"])
def test_cached_target_outputs_equal_recomputed_ones(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, source = (head_pair if method == "eagle3" else model_pair)(tmp_path)[:2]
    texts = random_texts(9)
    batch = TrainingBatch([texts[7], texts[2], texts[4]], CPU)
    _, kept = student_of(method, target, source, texts)
    monkeypatch.setattr("trtspec.training.batches.MOST_BYTES", 0)
    _, anew = student_of(method, target, source, texts)
    for _ in range(2):
        logits, features = kept.of(batch)
        wanted, others = anew.of(batch)
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-5)
        for row, text in enumerate(batch.texts):
            own = slice(len(text.tokens))
            torch.testing.assert_close(features[row, own], others[row, own], atol=1e-5, rtol=1e-5)
    assert (len(kept._cached), len(anew._cached)) == (9, 0)
