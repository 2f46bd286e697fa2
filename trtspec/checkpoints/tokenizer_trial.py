# SPDX-License-Identifier: Apache-2.0
"""What `trtspec.checkpoints.vetting` has a child process do with a tokenizer: all that a serving process would."""

from __future__ import annotations

from pathlib import Path

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import CheckpointError

PROBES = ("Hello world", "  naïve café, 北京 🙂\n\tdef f(x): return 12345", "", "a" * 300)
# Ids are numbers of rows. Published vocabularies have few holes, and a hole costs memory in every process.
HOLES, SPARE_IDS = 4, 1 << 16


def attempt(root: str, data: bytes) -> None:
    """Load a tokenizer and use it, in the child; raises CheckpointError for one that should not be loaded."""
    tokenizer = Tokenizer(Path(root), vetted=True)
    ids = tokenizer.vocabulary.values()
    largest, most = max(ids, default=0), HOLES * len(ids) + SPARE_IDS
    if largest >= most:
        raise CheckpointError(f"it has the token id {largest:,} and {len(ids):,} tokens; ids below {most:,} are taken")
    for text in PROBES:
        for special in (True, False):
            encoded = tokenizer.encode(text, special)
            _check_known(encoded, largest)
            tokenizer.decode(encoded), tokenizer.decode_whole(encoded)
    every = sorted(ids)
    for start in range(0, len(every), 4096):
        tokenizer.decode_whole(every[start : start + 4096])
    _ = tokenizer.fragments, tokenizer.decoders, tokenizer.merges


def _check_known(ids: list[int], largest: int) -> None:
    if strange := [token for token in ids if token > largest]:
        raise CheckpointError(f"it makes the id {strange[0]:,} of a text, and its largest is {largest:,}")
