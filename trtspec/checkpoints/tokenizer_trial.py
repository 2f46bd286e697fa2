# SPDX-License-Identifier: Apache-2.0
"""Trial of a tokenizer in a child process of `trtspec.checkpoints.vetting`: everything a server would do with it."""

from __future__ import annotations

from pathlib import Path

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import CheckpointError

PROBES = ("Hello world", "  naïve café, 北京 🙂\n\tdef f(x): return 12345", "", "a" * 300)
# Ids are row numbers. Published vocabularies have few gaps, and each gap costs memory in every process.
HOLES, SPARE_IDS = 4, 1 << 16


def attempt(root: str, data: bytes) -> None:
    """Load and use a tokenizer; raise CheckpointError if it should not be loaded."""
    tokenizer = Tokenizer(Path(root), vetted=True)
    ids = tokenizer.vocabulary.values()
    largest, most = max(ids, default=0), HOLES * len(ids) + SPARE_IDS
    if largest >= most:
        raise CheckpointError(f"token id {largest:,} with only {len(ids):,} tokens; ids must be below {most:,}")
    for text in PROBES:
        for special in (True, False):
            encoded = tokenizer.encode(text, special)
            _check_ids(encoded, largest)
            tokenizer.decode(encoded), tokenizer.decode_with_specials(encoded)
    every = sorted(ids)
    for start in range(0, len(every), 4096):
        tokenizer.decode_with_specials(every[start : start + 4096])
    _ = tokenizer.fragments, tokenizer.decoders, tokenizer.merges


def _check_ids(ids: list[int], largest: int) -> None:
    if too_large := [token for token in ids if token > largest]:
        raise CheckpointError(f"a text is encoded to the id {too_large[0]:,}, but the largest id is {largest:,}")
