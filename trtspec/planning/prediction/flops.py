# SPDX-License-Identifier: Apache-2.0
"""Bytes read and floating-point operations computed by a forward pass, from a model's headers and config.

Tensor names determine which tensors a pass reads: each token uses a few of the experts, embeddings are looked up, and
vision and audio towers do not run during text generation. Independent of GPUs and methods.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import NamedTuple

from trtspec.checkpoints.memory_profile import LayerCache, read_memory_profile
from trtspec.checkpoints.prequantized import QuantFormat, source_format
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.core.errors import CheckpointError

ITEM_BYTES = 2  # bytes of an unquantized element
PACKED = {"U8": 2, "I32": 8}  # 4-bit weights per element
TABLES = ("I64", "BOOL")  # dtypes of token id tables and masks
SCALES = ("scales", "scale", "scale_inv", "scale_2", "qzeros", "g_idx")
TOWERS = re.compile(r"(^|\.)(vision|visual|audio|multi_modal|mm_|embed_vision|embed_audio)")
EMBEDDING = re.compile(r"embed_tokens|word_embeddings|markov_w1|\bwte\b")
SEQUENTIAL = re.compile(r"markov_w2|confidence_")  # heads that run after a block drafter, in addition to its LM head
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
EXPERT = ".experts."
LINEAR_ROLES = ("dense", "expert")
MANY_LAYERS = 1 << 30


class TensorSizes(NamedTuple):
    """Total number of elements and bytes of a group of tensors."""

    numbers: int
    nbytes: int

    def plus(self, other: TensorSizes) -> TensorSizes:
        return TensorSizes(self.numbers + other.numbers, self.nbytes + other.nbytes)


NO_SIZES = TensorSizes(0, 0)


@dataclass(frozen=True)
class Work:
    """Reads and operations of one forward pass, summed over all ranks.

    `dense` weights are read by every pass; they include the LM `head`, which draft heads without their own share. Each
    token uses `experts_per_token` of the `num_experts` per layer; `experts` is the size of all experts. `caches` lists
    the kinds of KV-cache layers with their counts, whose elements have `cache_item_bytes`. With `is_fp8`, matrices are
    multiplied in FP8 on GPUs that support it.
    """

    dense: TensorSizes
    head: TensorSizes
    experts: TensorSizes = NO_SIZES
    num_experts: int = 1
    experts_per_token: int = 1
    num_layers: int = 1
    hidden_size: int = 0
    caches: tuple[tuple[LayerCache, int], ...] = ()
    cache_item_bytes: int = ITEM_BYTES
    is_fp8: bool = False

    @property
    def active_numbers(self) -> int:
        """Return the number of weights by which each token is multiplied."""
        return self.dense.numbers + self.experts.numbers * self.experts_per_token // self.num_experts

    def flops(self, tokens: int) -> float:
        """Return the operations of a pass over `tokens`; attention is omitted, because reading its cache dominates."""
        return 2.0 * self.active_numbers * tokens

    def weight_bytes(self, tokens: int) -> float:
        """Return the expected bytes of weights that a pass reads; more tokens use more of the experts.

        Each token is assumed to choose its experts independently and uniformly.
        """
        missed = (1 - self.experts_per_token / self.num_experts) ** tokens
        return self.dense.nbytes + self.experts.nbytes * (1 - missed)

    def cache_bytes(self, texts: int, context: int, tensor: int) -> float:
        """Return the KV-cache bytes that each of `tensor` ranks reads in a pass over texts of `context` tokens."""
        numbers = sum(count * layer.numbers_per_text(context, tensor) for layer, count in self.caches)
        return float(texts * numbers * self.cache_item_bytes)


def count_weights(tensor: TensorInfo) -> int:
    """Return the number of weights in a tensor; packed 4-bit weights are unpacked, and scales count as 0."""
    if tensor.name.endswith(SCALES) or tensor.dtype in TABLES:
        return 0
    return prod(tensor.shape) * PACKED.get(tensor.dtype, 1)


def model_work(source: Source, stored: QuantFormat) -> Work:
    """Return the work of a model's forward pass in its stored format; CheckpointError if its config lacks a size."""
    outline, parts = read_memory_profile(source), _parts(source, stored)
    own = {role: sizes for (role, is_further), sizes in parts.items() if not is_further}
    head = own.get("head") or own.get("embedding", NO_SIZES)
    return Work(
        dense=own.get("dense", NO_SIZES).plus(head),
        head=head,
        experts=own.get("expert", NO_SIZES),
        num_experts=max(1, outline.num_experts),
        experts_per_token=max(1, min(outline.experts_per_token, outline.num_experts)),
        num_layers=outline.num_layers,
        hidden_size=outline.hidden_size,
        caches=tuple(Counter(outline.layers).items()),
        cache_item_bytes=1 if stored.kv_cache == "fp8" else ITEM_BYTES,
        is_fp8=stored.weights.startswith("fp8"),
    )


def further_work(source: Source, target: Work) -> Work | None:
    """Return the work of one forward pass of the target's MTP layers, or None for a target without them."""
    parts = _parts(source, QuantFormat())
    further = {role: sizes for (role, is_further), sizes in parts.items() if is_further}
    return _drafting(further, 1, target) if further else None


def head_work(source: Source, target: Work) -> Work:
    """Return the work of a draft head's forward pass; a head without an LM head uses the target's."""
    found = {role: sizes for (role, _), sizes in _parts(source, QuantFormat()).items()}
    vocab = target.head.numbers // max(1, target.hidden_size)
    beside = re.compile(f"{EMBEDDING.pattern}|{SEQUENTIAL.pattern}")
    if any(tensor.shape[:1] == (vocab,) and not beside.search(name) for name, tensor in source.tensors.items()):
        found.setdefault("head", NO_SIZES)  # LM heads of Medusa and ReDrafter have other names and are counted as dense
    return _drafting(found, len({number[1] for name in source.tensors if (number := LAYER.search(name))}), target)


def _drafting(parts: dict[str, TensorSizes], layers: int, target: Work) -> Work:
    return Work(
        dense=parts.get("dense", NO_SIZES).plus(parts.get("head", target.head)),
        head=target.head,
        experts=parts.get("expert", NO_SIZES),
        num_experts=target.num_experts,
        experts_per_token=target.experts_per_token,
        num_layers=max(1, layers),
        hidden_size=target.hidden_size,
        caches=tuple((layer, max(1, layers)) for layer, _ in target.caches[-1:]),
        cache_item_bytes=target.cache_item_bytes,
    )


def _parts(source: Source, stored: QuantFormat) -> dict[tuple[str, bool], TensorSizes]:
    """Return the sizes of all tensors by (role, belongs to an MTP layer).

    A 32-bit source is served in 16 bits. If the recipe quantizes, its matrices are served in 8 bits, except the
    embedding and the LM head.
    """
    is_quantized, part_of = source_format(source).weights != "none", cache(partial(_part, _num_layers(source)))
    numbers: Counter[tuple[str, bool]] = Counter()
    nbytes: Counter[tuple[str, bool]] = Counter()
    for name, tensor in source.tensors.items():
        # All experts of a layer share one cache entry, because a model can have tens of thousands of them.
        part = part_of(name[: name.index(EXPERT) + len(EXPERT)] if EXPERT in name else name)
        count = count_weights(tensor)
        item = 1 if stored.weights != "none" and len(tensor.shape) > 1 and part[0] in LINEAR_ROLES else ITEM_BYTES
        numbers[part] += count
        nbytes[part] += tensor.nbytes if is_quantized and tensor.dtype not in TABLES else count * item
    return {part: TensorSizes(count, nbytes[part]) for part, count in numbers.items() if part[0] != "tower"}


def _num_layers(source: Source) -> int:
    """Return the index of the first MTP layer; a very large number for a draft head, which lacks MTP layers."""
    try:
        return read_memory_profile(source).num_layers
    except CheckpointError:
        return MANY_LAYERS


def _part(num_layers: int, name: str) -> tuple[str, bool]:
    """Return the role of a tensor, and True if it belongs to an MTP layer."""
    layer = LAYER.search(name)
    is_further = name.startswith("mtp.") or (layer is not None and int(layer[1]) >= num_layers)
    if TOWERS.search(name):
        return "tower", is_further
    if EXPERT in name:
        return "expert", is_further
    if EMBEDDING.search(name):
        return "embedding", is_further
    return "head" if "head" in name and not SEQUENTIAL.search(name) else "dense", is_further
