# SPDX-License-Identifier: Apache-2.0
"""A head's new vocabulary has the tokens of the responses and the same size; logits of kept tokens do not change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.methods.eagle3_heads import convert_with
from tests.training.made import SETTINGS, head_pair, random_texts, student_of
from trtspec.checkpoints.source import load_source
from trtspec.methods.draft_head import check_ids
from trtspec.methods.eagle3.training import TrainableEagle3
from trtspec.training.batches import TrainingBatch
from trtspec.training.tensors import chosen_ids, moved_rows, write_checkpoint
from trtspec.training.texts import TRAIN, TrainingText
from trtspec.training.trainable import DraftSource
from trtspec.training.trainer import LOSSES, batch_loss


def answered(*tokens: int) -> TrainingText:
    return TrainingText(TRAIN, "a", False, "x", (1,), tokens)


def test_answer_tokens_replace_the_least_frequent_ones() -> None:
    ids = torch.tensor([2, 3, 5, 7])
    assert chosen_ids(ids, [answered(9, 9, 5), answered(4, 4, 4, 2)]).tolist() == [2, 4, 5, 9]
    assert chosen_ids(ids, [answered(9, 2, 2, 3, 3, 5, 7)]).tolist() == [2, 3, 5, 7]  # all are equally rare
    assert chosen_ids(ids, []).tolist() == ids.tolist()
    hardly = [answered(*[2] * 400, 9)]
    assert chosen_ids(ids, hardly).tolist() == ids.tolist()


def test_vocabulary_rows_follow_their_ids_and_new_ones_derive_from_the_target() -> None:
    rows, target = (
        torch.tensor([[3.0, 4.0], [0.0, 5.0]]),
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [2.0, 0.0]]),
    )
    moved = moved_rows(rows, torch.tensor([0, 2]), torch.tensor([1, 2]), target)
    torch.testing.assert_close(moved, torch.tensor([[0.0, 5.0], [0.0, 5.0]]))


@pytest.mark.parametrize("lora", [0, 2])
def test_eagle3_head_with_changed_vocabulary_trains_and_loads(lora: int, tmp_path: Path) -> None:
    """Kept tokens have the same logits, d2t and t2d match the vocabulary, and engines can load the result."""
    target, source = head_pair(tmp_path)
    texts = random_texts(9)
    before, lessons = student_of("eagle3", target, source, texts)
    after = TrainableEagle3(DraftSource(source, lessons.teacher.model, 4, replace(SETTINGS, lora=lora), texts))
    both = before.vocab[torch.isin(before.vocab, after.vocab)]
    assert 0 < len(both) < len(before.vocab) == len(after.vocab)
    batch = TrainingBatch(texts, before.vocab.device)
    features = lessons.of(batch)[1]
    with torch.no_grad():
        old, new = (
            draft.logits(view := draft.tensors.view(), draft.hidden(view, batch, features)[1], 1)
            for draft in (before, after)
        )
    torch.testing.assert_close(
        old[:, torch.searchsorted(before.vocab, both)], new[:, torch.searchsorted(after.vocab, both)]
    )
    for _ in range(2):
        torch.autograd.backward(batch_loss(after, after.tensors.view(), batch, lessons, LOSSES["kl"]))
    out = tmp_path / "out"
    out.mkdir()
    write_checkpoint(after.tensors.source, after.tensors.changed(), out)
    written, read = load_file(out / "model.safetensors"), load_source(out)
    assert torch.equal(written["d2t"] + torch.arange(len(after.vocab)), after.vocab)
    assert written["t2d"].nonzero().flatten().tolist() == after.vocab.tolist()
    assert not [*check_ids(read, "", len(after.vocab), 64)]
    convert_with(tmp_path / "hf", out, tmp_path / "again")
