# SPDX-License-Identifier: Apache-2.0
"""Whether prompts that measure a draft are prompts that it was trained on, which flatter it.

`trtspec train` records the prompts beside the draft that it publishes, by digests of their tokens. The record is found
where the draft was built from, so an artifact of another machine has none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.bench.source_copies import origin_of
from trtspec.checkpoints.safe_json import parse_object
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.core.files import read_bounded
from trtspec.store.artifact_paths import TOKENIZER
from trtspec.store.manifest import Manifest, load_manifest

RECORD = "trtspec_training.json"
DIGESTS = "prompt_digests"
DIGITS = 16  # of a SHA-256: enough to tell a million prompts apart
MAX_BYTES, MAX_VALUES = 32 << 20, 1_000_000


@dataclass(frozen=True)
class Overlap:
    """How many of the measuring prompts are among those that the draft was trained on."""

    shared: int
    prompts: int
    trained_on: int

    def __str__(self) -> str:
        return f"{self.shared} of {self.prompts} prompts are among the {self.trained_on} that the draft was trained on"

    @property
    def warning(self) -> str:
        """Return what follows from it."""
        return f"{self}: of others less may be accepted; measure with held-out prompts (--prompts FILE)"


def digest_of(tokens: Sequence[int]) -> str:
    """Return what tells a prompt from others, by its tokens."""
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:DIGITS]


def overlap(root: Path, texts: Iterable[str], manifest: Manifest | None = None) -> Overlap | None:
    """Return how prompts overlap those that an artifact's draft was trained on; None where none is known to."""
    manifest = manifest or load_manifest(root)
    trained_on = _trained_on(root, manifest)
    if not trained_on:
        return None
    tokenizer, texts = Tokenizer(root / TOKENIZER), list(texts)
    shared = sum(digest_of(tokenizer.encode(text)) in trained_on for text in texts)
    return Overlap(shared, len(texts), len(trained_on)) if shared else None


def _trained_on(root: Path, manifest: Manifest) -> frozenset[str]:
    """Return the digests of the training prompts, none where the draft has no record or cannot be found."""
    if "draft" not in manifest.recipe.models:
        return frozenset()
    try:
        found = parse_object(read_bounded(origin_of(root, manifest, "draft") / RECORD, MAX_BYTES), MAX_VALUES)
    except (TrtspecError, OSError, ValueError):
        return frozenset()
    digests = found.get(DIGESTS)
    return frozenset(each for each in digests if isinstance(each, str)) if isinstance(digests, list) else frozenset()
