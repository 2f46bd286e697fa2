# SPDX-License-Identifier: Apache-2.0
"""Load a converted checkpoint into the layers of the forward pass: join shards, dequantize FP8, fuse matrices.

One tensor is read at a time, so that peak memory is the weights plus one tensor. The tensors of a draft head are read
from the target's checkpoint by the rules with which they were stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.quant_scheme import KV_SCALES, activation_scale, cache_scale, row_scales, weight_scale
from trtspec.checkpoints.rules import Rule, layer_tensor
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.sharding import ShardedTarget, distinct_regions, shard
from trtspec.checkpoints.trtllm import AGAIN, FP8_ROWWISE, QKV, TrtllmCheckpoint
from trtspec.core.errors import CheckpointError
from trtspec.engine.device import TORCH_DTYPES, map_tensor
from trtspec.engine.model.layers import (
    ACTIVATIONS,
    AdjustedHead,
    Block,
    DecoderLayer,
    GatedMlp,
    Linear,
    MixtureOfExperts,
    Norm,
    NormalizedSublayer,
    ScaledSublayer,
    Sublayer,
    dequantize,
    make_matrix,
    round_rows_to_e4m3,
    round_to_e4m3,
)
from trtspec.families.decoder import decoder_rules


def find_shard(checkpoint: TrtllmCheckpoint, rule: Rule) -> TensorInfo | None:
    """Return the shard of a rule's target tensor on the first rank of its stage, or None if it is missing."""
    sharded = _shard(checkpoint, rule)
    return checkpoint.ranks[sharded.ranks[0]].get(sharded.name)


def join_shards(checkpoint: TrtllmCheckpoint, rule: Rule) -> Tensor:
    """Return a rule's whole target tensor on the CPU in its stored dtype; without a copy if one rank stores it.

    Raises CheckpointError with tensor and file if a rank's shard is missing or has the wrong shape or dtype.
    """
    sharded = _shard(checkpoint, rule)
    shares = {rank: _share(checkpoint, sharded, rank) for rank in sharded.ranks}
    first = shares[sharded.ranks[0]]
    if len(shares) == 1:
        return first
    heights = [source.shape[0] for source in rule.sources]
    whole = torch.empty((sum(heights), prod(rule.sources[0].shape[1:])), dtype=first.dtype)
    parts = torch.split_with_sizes(whole, heights)
    for number, place in distinct_regions(sharded):
        rows, columns = place.rows, place.columns
        held = shares[place.rank].view(-1, len(columns))[place.at_row : place.at_row + len(rows)]
        parts[number][rows.start : rows.stop, columns.start : columns.stop] = held
    leading = (rule.experts, -1) if rule.experts else (len(whole),)
    return whole.view(*leading, *rule.sources[0].shape[1:])


def _shard(checkpoint: TrtllmCheckpoint, rule: Rule) -> ShardedTarget:
    return shard(rule, checkpoint.mapping, checkpoint.config.num_layers)


def _share(checkpoint: TrtllmCheckpoint, sharded: ShardedTarget, rank: int) -> Tensor:
    tensor = checkpoint.ranks[rank].get(sharded.name)
    file = str(checkpoint.root / f"rank{rank}.safetensors")
    if tensor is None:
        raise CheckpointError(f"the tensor {sharded.name!r} is missing", where=file, hint=AGAIN)
    if tensor.shape != sharded.shape:
        expected = f"config.json requires {list(sharded.shape)}"
        raise CheckpointError(f"tensor {sharded.name!r} is {list(tensor.shape)}, {expected}", where=file, hint=AGAIN)
    if tensor.dtype not in TORCH_DTYPES:
        supported = f"the torch engine supports {', '.join(TORCH_DTYPES)}"
        raise CheckpointError(f"tensor {sharded.name!r} is {tensor.dtype}; {supported}", where=file, hint=AGAIN)
    return map_tensor(tensor)


class WeightLoader:
    """Loader of the tensors of some rules to a device, by full name.

    Every call reads from the checkpoint and raises CheckpointError if a tensor is missing.
    """

    def __init__(
        self, checkpoint: TrtllmCheckpoint, rules: Iterable[Rule], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._checkpoint, self._device, self._dtype = checkpoint, device, dtype
        self._rules = {rule.name: rule for rule in rules}

    def __contains__(self, name: str) -> bool:
        return name in self._rules

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor in the compute dtype, or in `dtype`."""
        return self._read(self._rules[name], dtype)

    def target_ids(self, name: str) -> Tensor:
        """Return the target's ids of a draft's tokens, which are stored as offsets from the draft's ids."""
        offsets = self.tensor(name, torch.int64)
        return offsets + torch.arange(len(offsets), device=self._device)

    def norm(self, module: str) -> Tensor:
        """Return a norm's weight in the form that `Norm` expects."""
        weight = self.tensor(f"{module}.weight")
        return weight * len(weight) ** 0.5 if weight.dtype == torch.float32 else weight

    def weight(self, name: str) -> Tensor:
        """Return a weight [out, in] or [experts, out, in] in the compute dtype, dequantized if it is FP8."""
        rule = self._rules[name]
        stored = join_shards(self._checkpoint, rule).to(self._device)
        if stored.dtype != torch.float8_e4m3fn:
            return stored.to(self._dtype)
        scale = row_scales(rule) if self._checkpoint.quantization.algo == FP8_ROWWISE else weight_scale(rule)
        return dequantize(stored, self._read(scale, torch.float32).unsqueeze(-1), self._dtype)

    def linear(self, *modules: str, order: Callable[[Tensor], Tensor] = lambda rows: rows) -> Linear:
        """Return a Linear that fuses modules with the same input; `order` permutes the concatenated outputs."""
        weights = [f"{module}.weight" for module in modules]
        biases = [self.tensor(f"{module}.bias") for module in modules if f"{module}.bias" in self]
        return Linear(
            matrix=make_matrix(order(_stack([self.weight(name) for name in weights]))),
            bias=order(_stack(biases)) if biases else None,
            quantize=self.quantization(weights),
        )

    def quantization(self, weights: Sequence[str]) -> Callable[[Tensor], Tensor] | None:
        """Return the input quantization of weights that share their input, or None unless they are FP8."""
        stored = find_shard(self._checkpoint, self._rules[weights[0]])
        if stored is None or stored.dtype != "F8_E4M3":
            return None
        if self._checkpoint.quantization.algo == FP8_ROWWISE:
            return round_rows_to_e4m3
        scales = [self._read(activation_scale(self._rules[name]), torch.float32) for name in weights]
        return partial(round_to_e4m3, scale=torch.cat(scales).amax())

    def block(self, prefix: str, config: ModelConfig) -> Block:
        """Return a layer whose tensors have TensorRT-LLM's names after `prefix`."""
        attention = f"{prefix}.attention"
        q_norm, k_norm = (f"{attention}.{kind}_layernorm.weight" for kind in "qk")
        return Block(
            qkv=self.linear(f"{attention}.qkv", order=partial(_paired_qkv, config=config)),
            qk_norm=_qk_norm(self.tensor(q_norm), self.tensor(k_norm), config) if q_norm in self else None,
            kv_scale=None,
            dense=self.linear(f"{attention}.dense"),
            post_norm=self.norm(f"{prefix}.post_layernorm"),
            mlp=self.mlp(f"{prefix}.mlp"),
        )

    def mlp(self, prefix: str) -> Sublayer:
        return GatedMlp(self.linear(f"{prefix}.fc", f"{prefix}.gate"), self.linear(f"{prefix}.proj"))

    def _read(self, rule: Rule, dtype: torch.dtype | None = None) -> Tensor:
        return join_shards(self._checkpoint, rule).to(self._device, dtype or self._dtype)


class DecoderWeights(WeightLoader):
    """Loader of a converted checkpoint's tensors, by the decoder rules for its config."""

    def __init__(self, checkpoint: TrtllmCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(checkpoint, decoder_rules(checkpoint.config), device, dtype)
        self._config = checkpoint.config

    def lm_head(self, embedding: Tensor) -> Linear | AdjustedHead:
        """Return the LM head, which is the embedding if they are tied."""
        tied, factor, cap = self._config.tied_embeddings, self._config.logit_multiplier, self._config.logit_cap
        head = Linear(make_matrix(embedding, is_shared=True)) if tied else self.linear("lm_head")
        return AdjustedHead(head, factor, cap) if cap or factor != 1.0 else head

    def layer(self, number: int) -> DecoderLayer:
        prefix = layer_tensor(number, "").removesuffix(".")
        block = self.block(prefix, self._config)
        norms = [f"{prefix}.{name}" if name else "" for name in self._config.sublayer_norms]
        input_norm, post_norm = (self.norm(name) if name else None for name in norms[::2])
        dense, mlp = self._adjusted(block.dense, norms[1]), self._adjusted(block.mlp, norms[3])
        block = replace(block, dense=dense, post_norm=post_norm, mlp=mlp)
        if self._checkpoint.quantization.kv_cache_algo:
            block = replace(block, kv_scale=self._kv_scale(f"{prefix}.{QKV}"))
        return DecoderLayer(**vars(block), input_norm=input_norm, has_window=self._config.has_window(number))

    def mlp(self, prefix: str) -> Sublayer:
        """Return a layer's MLP or mixture of experts; raise UnsupportedModel for an unknown activation."""
        if self._config.num_experts:
            return self._mixture(prefix)
        act = self._config.hidden_act
        if act not in ACTIVATIONS:
            message = f"hidden_act {act!r} is not supported; supported: {', '.join(ACTIVATIONS)}"
            raise self._checkpoint.document.unsupported(message)
        if act == "swiglu":  # the linear half is stored above the activated one
            halves = partial(torch.roll, shifts=self._config.intermediate_size, dims=0)
            gate_up = self.linear(f"{prefix}.fc", order=halves)
        else:
            gate_up = self.linear(f"{prefix}.fc", f"{prefix}.gate")
        return GatedMlp(gate_up, self.linear(f"{prefix}.proj"), ACTIVATIONS[act])

    def _mixture(self, prefix: str) -> MixtureOfExperts:
        """Return a layer's mixture of experts with one MLP per expert; the router is always float32."""
        # the experts' linear half is stored above the activated one
        halves = partial(torch.roll, shifts=self._config.intermediate_size, dims=1)
        return MixtureOfExperts(
            router=self.tensor(f"{prefix}.router.weight", torch.float32),
            top_k=self._config.experts_per_token,
            experts=tuple(map(GatedMlp, self._experts(f"{prefix}.fc", halves), self._experts(f"{prefix}.proj"))),
        )

    def _experts(self, module: str, order: Callable[[Tensor], Tensor] = lambda rows: rows) -> list[Linear]:
        """Return one linear layer per expert of a stacked weight [experts, out, in]."""
        name = f"{module}.weight"
        quantize = self.quantization([name])
        return [Linear(make_matrix(weight), None, quantize) for weight in order(self.weight(name))]

    def _adjusted(self, inner: Sublayer, module: str) -> Sublayer:
        """Return a sublayer with the output norm `module`, unless it is "", and the residual multiplier."""
        if module:
            norm = Norm(self._config.hidden_size, self._config.norm_epsilon, self._device)
            inner = NormalizedSublayer(inner, partial(norm, weight=self.norm(module)))
        factor = self._config.residual_multiplier
        return ScaledSublayer(inner, factor) if factor != 1.0 else inner

    def _kv_scale(self, qkv: str) -> Tensor:
        """Return the KV cache scale as in TensorRT-LLM: the larger of the k and v scales, or the common one."""
        rules = {kind: cache_scale(self._rules[qkv], kind) for kind in KV_SCALES}
        separate = all(find_shard(self._checkpoint, rules[kind]) for kind in ("k", "v"))
        kinds = ("k", "v") if separate else ("kv",)
        return torch.cat([self._read(rules[kind], torch.float32) for kind in kinds]).amax()


def _stack(tensors: list[Tensor]) -> Tensor:
    """Concatenate tensors along the first dimension; a single tensor is returned without a copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _paired_qkv(rows: Tensor, config: ModelConfig) -> Tensor:
    """Reorder the q and k rows of a stacked qkv so that rotary pairs are adjacent, as `Block` requires."""
    turning = (config.num_heads + config.num_kv_heads) * config.head_size
    return torch.cat([_paired(rows[:turning], config), rows[turning:]])


def _qk_norm(q: Tensor, k: Tensor, config: ModelConfig) -> Tensor:
    """Return the norm weights of q and k, for one head or for all heads, in the form of `Block.qk_norm`."""
    heads = ((q, config.num_heads), (k, config.num_kv_heads))
    paired = [(_paired(weight, config).view(-1, config.head_size), count) for weight, count in heads]
    return torch.cat([weight.expand(count, -1) for weight, count in paired])


def _paired(heads: Tensor, config: ModelConfig) -> Tensor:
    """Interleave the halves of each head's rotated part: rotary pairs (i, i + size/2) become (2i, 2i + 1)."""
    size = config.rotary_size
    order = torch.arange(config.head_size, device=heads.device)
    order[:size] = order[:size].view(2, -1).t().flatten()
    return heads.view(-1, config.head_size, *heads.shape[1:])[:, order].reshape(heads.shape)
