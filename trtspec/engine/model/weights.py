# SPDX-License-Identifier: Apache-2.0
"""Loads a converted checkpoint into the layers of the forward pass: in the compute dtype, FP8 dequantized, fused.

One tensor is read at a time, so that peak memory is the weights plus one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule, Stage
from trtspec.checkpoints.scales import KV_SCALES, activation_scale, cache_scale, row_scales, weight_scale
from trtspec.checkpoints.trtllm import EMBEDDING, FINAL_NORM, FP8_ROWWISE, QKV, TrtllmCheckpoint
from trtspec.engine.model.fp8 import dequantize, round_rows_to_e4m3, round_to_e4m3
from trtspec.engine.model.layers import (
    ACTIVATIONS,
    CappedHead,
    DecoderLayer,
    GatedMlp,
    Linear,
    MixtureOfExperts,
    NormalizedModule,
)
from trtspec.engine.model.matrix import make_matrix
from trtspec.engine.model.merge_shards import find_shard, join_shards
from trtspec.engine.model.norm import Norm
from trtspec.engine.model.stored_rules import At, stored_rules


class WeightLoader:
    """The tensors of a checkpoint on a device; every call reads, and raises CheckpointError if a tensor is missing."""

    def __init__(self, checkpoint: TrtllmCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint, self._config = checkpoint, checkpoint.config
        self._device, self._dtype = device, dtype
        self._rules = stored_rules(checkpoint.config)

    def embedding(self) -> Tensor:
        """Return the embedding [vocab, hidden]."""
        return self._weight(self._rules[Stage.FIRST, EMBEDDING])

    def lm_head(self, embedding: Tensor) -> Linear | CappedHead:
        """Return the LM head, which is the embedding if they are tied."""
        tied = self._config.tied_embeddings
        head = Linear(make_matrix(embedding, is_shared=True)) if tied else self._linear(Stage.LAST, "lm_head")
        return CappedHead(head, self._config.logit_cap) if self._config.logit_cap else head

    def final_norm(self) -> Tensor:
        """Return the weight of the final norm."""
        return self._norm(Stage.LAST, FINAL_NORM)

    def layer(self, number: int) -> DecoderLayer:
        """Return the weights of layer `number`."""
        config = self._config
        qkv = self._linear(number, "attention.qkv", bias=config.attn_bias, order=partial(paired_qkv, config=config))
        dense = self._linear(number, "attention.dense", bias=config.dense_bias)
        norm_before_mlp = "pre_feedforward_layernorm" if config.inner_norms else "post_layernorm"
        return DecoderLayer(
            has_window=config.has_window(number),
            input_norm=self._norm(number, "input_layernorm.weight"),
            qkv=qkv,
            qk_norm=self._qk_norm(number) if config.qk_norm else None,
            kv_scale=self._kv_scale(number) if self._checkpoint.quantization.kv_cache_algo else None,
            dense=self._normed(dense, number, "post_layernorm") if config.inner_norms else dense,
            post_norm=self._norm(number, f"{norm_before_mlp}.weight"),
            mlp=self._feed_forward(number),
        )

    def _feed_forward(self, layer: int) -> GatedMlp | MixtureOfExperts | NormalizedModule:
        if self._config.num_experts:
            return self._mixture(layer)
        mlp = self._mlp(layer)
        return self._normed(mlp, layer, "post_feedforward_layernorm") if self._config.inner_norms else mlp

    def _normed(self, inner: Linear | GatedMlp, layer: int, module: str) -> NormalizedModule:
        norm = Norm(self._config.hidden_size, self._config.norm_epsilon, self._device)
        return NormalizedModule(inner, partial(norm, weight=self._norm(layer, f"{module}.weight")))

    def _mlp(self, layer: int) -> GatedMlp:
        bias, act = self._config.mlp_bias, self._config.hidden_act
        if act not in ACTIVATIONS:
            message = f"hidden_act {act!r} is not supported; supported: {', '.join(ACTIVATIONS)}"
            raise self._checkpoint.document.unsupported(message)
        if act == "swiglu":  # the linear half is stored above the activated one
            halves = partial(torch.roll, shifts=self._config.intermediate_size, dims=0)
            gate_up = self._linear(layer, "mlp.fc", bias=bias, order=halves)
        else:
            gate_up = self._linear(layer, "mlp.fc", "mlp.gate", bias=bias)
        return GatedMlp(gate_up, self._linear(layer, "mlp.proj", bias=bias), ACTIVATIONS[act])

    def _mixture(self, layer: int) -> MixtureOfExperts:
        """Return the mixture with separate experts; the router is always float32."""
        # the experts' linear half is stored above the activated one
        halves = partial(torch.roll, shifts=self._config.intermediate_size, dims=1)
        fc, proj = self._rules[layer, "mlp.fc.weight"], self._rules[layer, "mlp.proj.weight"]
        return MixtureOfExperts(
            router=self._take(self._rules[layer, "mlp.router.weight"], torch.float32),
            top_k=self._config.experts_per_token,
            experts=tuple(map(GatedMlp, self._experts(fc, halves), self._experts(proj))),
        )

    def _linear(
        self, at: At, *modules: str, bias: bool = False, order: Callable[[Tensor], Tensor] = lambda rows: rows
    ) -> Linear:
        """Return the modules stacked into one; `order` permutes rows."""
        weights = [self._rules[at, f"{module}.weight"] for module in modules]
        biases = [self._take(self._rules[at, f"{module}.bias"]) for module in modules if bias]
        return Linear(
            matrix=make_matrix(order(stack([self._weight(weight) for weight in weights]))),
            bias=order(stack(biases)) if biases else None,
            quantize=self._quantize(weights),
        )

    def _experts(self, rule: Rule, order: Callable[[Tensor], Tensor] = lambda rows: rows) -> list[Linear]:
        """Return the experts of a weight [experts, out, in]."""
        quantize = self._quantize([rule])
        return [Linear(make_matrix(weight), None, quantize) for weight in order(self._weight(rule))]

    def _weight(self, rule: Rule) -> Tensor:
        """Return a weight [out, in], or [experts, out, in]."""
        stored = join_shards(self._checkpoint, rule).to(self._device)
        if stored.dtype != torch.float8_e4m3fn:
            return stored.to(self._dtype)
        scale = row_scales(rule) if self._checkpoint.quantization.algo == FP8_ROWWISE else weight_scale(rule)
        return dequantize(stored, self._take(scale, torch.float32).unsqueeze(-1), self._dtype)

    def _quantize(self, weights: list[Rule]) -> Callable[[Tensor], Tensor] | None:
        """Return the input quantization of weights that share their input, or None unless they are FP8."""
        stored = find_shard(self._checkpoint, weights[0])
        if stored is None or stored.dtype != "F8_E4M3":
            return None
        if self._checkpoint.quantization.algo == FP8_ROWWISE:
            return round_rows_to_e4m3
        scales = [self._take(activation_scale(weight), torch.float32) for weight in weights]
        return partial(round_to_e4m3, scale=torch.cat(scales).amax())

    def _kv_scale(self, layer: int) -> Tensor:
        """Return the KV cache's scale as in TensorRT-LLM: the larger of the scales of k and v, or the common scale."""
        rules = {kind: cache_scale(self._rules[layer, QKV], kind) for kind in KV_SCALES}
        separate = all(find_shard(self._checkpoint, rules[kind]) for kind in ("k", "v"))
        kinds = ("k", "v") if separate else ("kv",)
        return torch.cat([self._take(rules[kind], torch.float32) for kind in kinds]).amax()

    def _norm(self, at: At, target: str) -> Tensor:
        return norm_weight(self._take(self._rules[at, target]))

    def _qk_norm(self, layer: int) -> Tensor:
        names = (f"attention.{kind}_layernorm.weight" for kind in "qk")
        q, k = (self._take(self._rules[layer, name]) for name in names)
        return qk_norm(q, k, self._config)

    def _take(self, rule: Rule, dtype: torch.dtype | None = None) -> Tensor:
        return join_shards(self._checkpoint, rule).to(self._device, dtype or self._dtype)


def stack(tensors: list[Tensor]) -> Tensor:
    """Concatenate tensors along the first dimension; a single tensor is returned without a copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def norm_weight(weight: Tensor) -> Tensor:
    """Return a norm's weight in the form that `Norm` expects."""
    return weight * len(weight) ** 0.5 if weight.dtype == torch.float32 else weight


def paired_qkv(rows: Tensor, config: ModelConfig) -> Tensor:
    """Reorder the rows of q and k within the rows of q, k and v for `Block`."""
    turning = (config.num_heads + config.num_kv_heads) * config.head_size
    return torch.cat([_paired(rows[:turning], config), rows[turning:]])


def qk_norm(q: Tensor, k: Tensor, config: ModelConfig) -> Tensor:
    """Return the norm weights of q and k, [head_size] each, in the form of `Block.qk_norm`."""
    heads = ((q, config.num_heads), (k, config.num_kv_heads))
    return torch.cat([_paired(weight, config).expand(count, -1) for weight, count in heads])


def _paired(heads: Tensor, config: ModelConfig) -> Tensor:
    """Interleave the halves of each head's rotated part: rotary pairs (i, i + size/2) become (2i, 2i + 1)."""
    size = config.rotary_size
    order = torch.arange(config.head_size, device=heads.device)
    order[:size] = order[:size].view(2, -1).t().flatten()
    return heads.view(-1, config.head_size, *heads.shape[1:])[:, order].reshape(heads.shape)
