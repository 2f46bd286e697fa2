# SPDX-License-Identifier: Apache-2.0
"""The training loop learns, keeps its budget, stops early, and resumes with the same result."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.made import SETTINGS, head_pair, model_pair, random_texts, student_of
from trtspec.bench.profile.acceptance import AcceptanceStats, StepCounts
from trtspec.core.errors import TrtspecError
from trtspec.training import trainer
from trtspec.training.batches import training_batches
from trtspec.training.texts import VALIDATION, TrainingText, TrainSettings
from trtspec.training.trainer import Trainer, TrainingState, learning_rate


def training_of(root: Path, notes: Path, settings: TrainSettings, method: str = "draft_target") -> Trainer:
    pair = (head_pair if method == "eagle3" else model_pair)(root)
    texts, validation = random_texts(24), random_texts(6, VALIDATION, seed=1)
    student, lessons = student_of(method, *pair[:2], [*texts, *validation], settings)
    notes.mkdir(exist_ok=True)
    return Trainer(student, lessons, texts, validation, 4, settings, notes)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft_target", "eagle3"])
def test_training_reduces_the_loss(method: str, tmp_path: Path) -> None:
    training = training_of(tmp_path, tmp_path / "notes", replace(SETTINGS, steps=60), method)
    training.run()
    losses = training.course.losses
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


@pytest.mark.slow
@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.parametrize(("keep_every_s", "kept"), [(trainer.KEEP_EVERY_S, 8), (0.0, 10)])
def test_interrupted_training_resumes_to_identical_weights(
    keep_every_s: float, kept: int, lora: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training resumes after its last validation or after its last periodic save."""
    monkeypatch.setattr(trainer, "VALIDATE_EVERY", 4)
    monkeypatch.setattr(trainer, "KEEP_EVERY_S", keep_every_s)
    settings = replace(SETTINGS, steps=14, lora=lora)
    whole = training_of(tmp_path / "one", tmp_path / "whole", settings).run()
    (tmp_path / "two").mkdir()
    first = training_of(tmp_path / "two", tmp_path / "notes", settings)

    def interrupt(texts: list[TrainingText]) -> None:
        if first.course.step == 10:
            raise KeyboardInterrupt
        real(texts)

    real = first._train
    monkeypatch.setattr(first, "_train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    again = Trainer(*student_again(tmp_path / "two", settings), 4, settings, tmp_path / "notes")
    assert again.course.step == kept
    resumed = again.run()
    assert again.course.step == 14
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    assert resumed.keys() == whole.keys()


def student_again(root: Path, settings: TrainSettings) -> tuple[object, object, list[TrainingText], list[TrainingText]]:
    texts, validation = random_texts(24), random_texts(6, VALIDATION, seed=1)
    student, lessons = student_of("draft_target", root / "target", root / "hf-draft", [*texts, *validation], settings)
    return student, lessons, texts, validation


@pytest.mark.slow
def test_training_on_a_full_disk_completes_and_retains_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous state stays, and the next process resumes from it; invalid state files are ignored."""
    monkeypatch.setattr(trainer, "VALIDATE_EVERY", 4)
    settings, notes = replace(SETTINGS, steps=6), tmp_path / "notes"
    training_of(tmp_path / "one", notes, replace(SETTINGS, steps=4)).run()
    kept = (notes / trainer.STATE).read_bytes()
    second = training_of(tmp_path / "two", notes, settings)
    with file_size_limit(len(kept) // 2):
        second.run()
    assert second.course.step == 6
    assert [path.name for path in notes.iterdir()] == [trainer.STATE]
    assert (notes / trainer.STATE).read_bytes() == kept
    (notes / trainer.STATE).write_bytes(kept[:999])
    assert training_of(tmp_path / "three", notes, settings).course.step == 0


@contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    """Limit the size of files written by this process; torch handles that like a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
def test_training_stops_within_the_time_budget(tmp_path: Path) -> None:
    training = training_of(tmp_path, tmp_path / "notes", replace(SETTINGS, steps=0, seconds=2.0))
    began = time.perf_counter()
    training.run()
    assert training.course.step > 10
    assert time.perf_counter() - began < 3.0


@pytest.mark.slow
def test_time_budget_includes_previous_processes(tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=0, seconds=1.0)
    training_of(tmp_path / "a", tmp_path / "notes", settings).run()
    again = training_of(tmp_path / "b", tmp_path / "notes", settings)
    steps = again.course.step
    again.run()
    assert again.course.step - steps < 5


@pytest.mark.slow
def test_training_stops_early_without_improvement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "VALIDATE_EVERY", 1)
    training = training_of(tmp_path, tmp_path / "notes", replace(SETTINGS, steps=500, learning_rate=1e-12))
    trained = training.run()
    assert training.course.step == trainer.PATIENCE
    assert training.course.best == 0
    assert all(torch.equal(tensor, training._best[name]) for name, tensor in trained.items())


def test_non_finite_loss_is_an_error_with_a_learning_rate_hint(tmp_path: Path) -> None:
    training = training_of(tmp_path, tmp_path / "notes", replace(SETTINGS, learning_rate=1e30))
    with pytest.raises(TrtspecError, match=r"the loss is not finite after \d+ steps\n.* try --learning-rate 1e\+29"):
        training.run()


def test_best_score_is_the_first_of_equal_ones() -> None:
    assert TrainingState(scores=[1.0, 2.0, 1.5, 2.0]).best == 1


def test_checkpoint_with_loss_on_regression_prompts_is_not_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = training_of(tmp_path, tmp_path / "notes", SETTINGS)
    training._validation = [replace(text, kept=number > 2) for number, text in enumerate(training._validation)]
    said: list[str] = []
    for new, kept in ((20, 40), (60, 40), (50, 40), (90, 38)):
        found = AcceptanceStats(tuple(StepCounts(10, 60, each) for each in [new] * 3 + [kept] * 3), ("",) * 6)
        monkeypatch.setattr(trainer, "acceptance", lambda *_, found=found: found)
        training._validate(said.append)
    assert training.course.scores == [3.0, 7.0, 6.0, 0.0]
    assert training.course.best == 1
    assert "the prompts to keep are at 4.80 tokens per step, from 5.00" in said[-1]


def test_learning_rate_warms_up_decays_and_scales_with_width() -> None:
    rates = [learning_rate(SETTINGS, 32, share / 100) for share in range(101)]
    assert max(rates) == pytest.approx(SETTINGS.learning_rate)
    assert rates.index(max(rates)) == 100 * trainer.WARM_UP
    assert rates[-1] == pytest.approx(trainer.LAST_SHARE * SETTINGS.learning_rate)
    wide, narrow = (learning_rate(replace(SETTINGS, learning_rate=0.0), width, 0.05) for width in (512, 64))
    assert wide == pytest.approx(narrow / 8)


def test_batches_repeat_no_text_within_an_epoch_and_resume_at_any_step() -> None:
    texts = random_texts(13)
    stream = training_batches(texts, 4, 7, 0)
    steps = [next(stream) for _ in range(9)]
    for epoch in range(3):
        names = [text.name for step in steps[3 * epoch : 3 * epoch + 3] for text in step]
        assert len(set(names)) == 12
    later = training_batches(texts, 4, 7, 5)
    assert [next(later) for _ in range(4)] == steps[5:]


def test_regression_texts_are_a_third_of_the_batch_rows() -> None:
    kept = [replace(text, kept=True) for text in random_texts(5)]
    texts = [*random_texts(40, seed=2), *kept]
    stream = training_batches(texts, 6, 0, 0)
    rows = [text.kept for _ in range(10) for text in next(stream)]
    assert sum(rows) / len(rows) == pytest.approx(1 / 3, abs=0.02)
