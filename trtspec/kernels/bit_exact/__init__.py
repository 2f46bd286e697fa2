# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts in numpy, bit-exact on every machine: the reference for the compiled kernels.

It implements plugins/README.md. The rules equal tests/kernels/reference.py, whose output distribution is tested
exactly, but decisions are computed in integers, so that CUDA and C++ must return the same ids. The code is vectorized
over the vocabulary, with plain loops over requests and positions for readability.
"""

from trtspec.kernels.bit_exact.batch import ChainBatch, ChainResult, DraftKind, Mode, TreeBatch, TreeResult
from trtspec.kernels.bit_exact.chain import verify_block, verify_chain
from trtspec.kernels.bit_exact.fixed_point import BAD_DRAFT, DRAFT_NONFINITE, EMPTY, NONFINITE
from trtspec.kernels.bit_exact.tree import compact_kv, kv_moves, verify_tree

__all__ = [
    "BAD_DRAFT", "DRAFT_NONFINITE", "EMPTY", "NONFINITE", "ChainBatch", "ChainResult", "DraftKind", "Mode",
    "TreeBatch", "TreeResult", "compact_kv", "kv_moves", "verify_block", "verify_chain",
    "verify_tree",
]  # fmt: skip
