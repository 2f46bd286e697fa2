# SPDX-License-Identifier: Apache-2.0
"""Tensors that a draft shares with its target, which a draft's files copy or omit."""

from __future__ import annotations

from trtspec.checkpoints.rules import find_parts
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import EMBEDDING as TARGET_EMBEDDING
from trtspec.checkpoints.trtllm import LM_HEAD as TARGET_LM_HEAD
from trtspec.checkpoints.writer import chunks
from trtspec.methods.draft_formats.dialect import EMBEDDING, LM_HEAD

RULES = {EMBEDDING: TARGET_EMBEDDING, LM_HEAD: TARGET_LM_HEAD}


def target_tensor(name: str, target: SourceModel) -> TensorInfo:
    """Return the target's embedding or LM head."""
    rules = [rule for rule in target.rules if rule.target == RULES[name]]
    ((tensor,),) = find_parts(rules, target.source).values()
    return tensor


def have_equal_bits(one: TensorInfo, other: TensorInfo) -> bool:
    """Return whether two tensors are bit-identical."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return all(left == right for left, right in zip(chunks(one), chunks(other), strict=True))
