# SPDX-License-Identifier: Apache-2.0
"""The target's own tensors, which a draft has copies of, or leaves out."""

from __future__ import annotations

from trtspec.checkpoint.rules import find_parts
from trtspec.checkpoint.safetensors import TensorInfo
from trtspec.checkpoint.trtllm import EMBEDDING as TARGET_EMBEDDING
from trtspec.checkpoint.trtllm import LM_HEAD as TARGET_LM_HEAD
from trtspec.checkpoint.write import chunks
from trtspec.dialects.dialect import EMBEDDING, LM_HEAD
from trtspec.models.source_model import SourceModel

RULES = {EMBEDDING: TARGET_EMBEDDING, LM_HEAD: TARGET_LM_HEAD}


def of_target(name: str, target: SourceModel) -> TensorInfo:
    """Return the target's embedding or LM head."""
    rules = [rule for rule in target.rules if rule.target == RULES[name]]
    ((tensor,),) = find_parts(rules, target.source).values()
    return tensor


def same(one: TensorInfo, other: TensorInfo) -> bool:
    """Tell whether two tensors are equal bit for bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return all(left == right for left, right in zip(chunks(one), chunks(other), strict=True))
