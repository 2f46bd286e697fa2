# SPDX-License-Identifier: Apache-2.0
"""Tiny targets and drafts, converted as engines run them and read as training reads them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.methods.eagle3_heads import convert_with, random_head, save_head
from tests.tiny import convert, make_model
from trtspec.training.lessons import Lessons
from trtspec.training.settings import TrainSettings
from trtspec.training.student import DraftSource, Student, find_trainable
from trtspec.training.teacher import Teacher
from trtspec.training.texts import TRAIN, Text

SETTINGS = TrainSettings("kl", 0, 1e-2, 20, 600.0, 0)
VOCAB = 64


def random_texts(count: int, side: str = TRAIN, seed: int = 0, **values: Any) -> list[Text]:
    """Return texts of random tokens and lengths."""
    draw = Random(seed)

    def ids(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCAB) for _ in range(draw.randint(least, most)))

    return [Text(side, "a", False, f"{side}-{number}", ids(2, 9), ids(2, 12), **values) for number in range(count)]


def model_pair(root: Path, family: str = "llama", **shape: Any) -> tuple[Path, Path, Path]:
    """Return a converted target, the source of a draft of `family`, and that draft converted."""
    target = convert(make_model(root / "hf", "llama", scale=0.3), root / "target")
    draft = make_model(root / "hf-draft", family, seed=1, scale=0.3, **shape)
    return target, draft, convert(draft, root / "draft")


def head_pair(root: Path, layout: str = "specforge", **head: Any) -> tuple[Path, Path]:
    """Return a target converted with an EAGLE-3 head, and the head's source."""
    source = make_model(root / "hf", "llama", scale=0.3)
    net = save_head(random_head(**head), root / "net", layout)
    return convert_with(source, net, root / "target"), net


def student_of(
    method: str, target: Path, source: Path, texts: list[Text], settings: TrainSettings = SETTINGS, draft_len: int = 4
) -> tuple[Student, Lessons]:
    """Load a draft to be trained, and what it learns."""
    teacher = Teacher(target, texts)
    student = find_trainable(method).load(DraftSource(source, teacher.model, draft_len, settings))
    return student, Lessons(teacher, student.aux_layers, texts)
