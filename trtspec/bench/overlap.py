# SPDX-License-Identifier: Apache-2.0
"""Detect measuring prompts that the draft was trained on; they overstate its acceptance.

`trtspec train` writes the digests of the training prompts' tokens next to the published draft. The record is read from
the draft's source location, so it is missing for artifacts that were built on another machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.bench.source_copies import source_location
from trtspec.checkpoints.safe_json import parse_object
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.core.files import read_bounded
from trtspec.store.artifact_paths import TOKENIZER
from trtspec.store.manifest import Manifest, load_manifest

RECORD = "trtspec_training.json"
DIGESTS = "prompt_digests"
DIGITS = 16  # hex digits of a SHA-256; enough to distinguish a million prompts
MAX_BYTES, MAX_VALUES = 32 << 20, 1_000_000


@dataclass(frozen=True)
class Overlap:
    """How many of the measuring prompts the draft was trained on."""

    shared: int
    prompts: int
    trained_on: int

    def __str__(self) -> str:
        return f"{self.shared} of {self.prompts} prompts are among the draft's {self.trained_on} training prompts"

    @property
    def warning(self) -> str:
        """Return a warning with the recommended fix."""
        return f"{self}: acceptance on other prompts may be lower; measure with held-out prompts (--prompts FILE)"


def prompt_digest(tokens: Sequence[int]) -> str:
    """Return the digest that identifies a prompt by its tokens."""
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:DIGITS]


def overlap(root: Path, texts: Iterable[str], manifest: Manifest | None = None) -> Overlap | None:
    """Return the overlap with the draft's training prompts, or None without an overlap or a record."""
    manifest = manifest or load_manifest(root)
    trained_on = _training_digests(root, manifest)
    if not trained_on:
        return None
    tokenizer, texts = Tokenizer(root / TOKENIZER), list(texts)
    shared = sum(prompt_digest(tokenizer.encode(text)) in trained_on for text in texts)
    return Overlap(shared, len(texts), len(trained_on)) if shared else None


def _training_digests(root: Path, manifest: Manifest) -> frozenset[str]:
    """Return the digests of the training prompts; empty if the draft's record is missing or unreadable."""
    if "draft" not in manifest.recipe.models:
        return frozenset()
    try:
        found = parse_object(read_bounded(source_location(root, manifest, "draft") / RECORD, MAX_BYTES), MAX_VALUES)
    except (TrtspecError, OSError, ValueError):
        return frozenset()
    digests = found.get(DIGESTS)
    return frozenset(each for each in digests if isinstance(each, str)) if isinstance(digests, list) else frozenset()
