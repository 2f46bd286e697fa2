# SPDX-License-Identifier: Apache-2.0
"""Rules of scales, derived from the rules of their weights: names, shapes and division over ranks."""

from __future__ import annotations

from dataclasses import replace

from trtspec.checkpoints.rules import Rule, SourceTensor, row_split

# TensorRT-LLM uses the larger of the first two, or the last if it is the only one.
KV_SCALES = ("k", "v", "kv")


def weight_scale(weight: Rule) -> Rule:
    """Return the rule of a weight's scale: one value, or one per expert."""
    target = f"{_module(weight)}.weights_scaling_factor"
    if weight.experts:
        return Rule(target, (SourceTensor("", (weight.experts, 1)),), weight.at)
    return _scalar(target, weight)


def row_scales(weight: Rule) -> Rule:
    """Return the rule of a weight's scales, one per row; its sources have the order of the weight's sources."""
    sources = tuple(replace(source, name="", shape=source.shape[:1]) for source in weight.sources)
    target, split = f"{_module(weight)}.per_channel_scale", row_split(weight.split)
    return replace(weight, target=target, sources=sources, split=split, linear=None)


def activation_scale(weight: Rule) -> Rule:
    """Return the rule of the scale of a weight's input activations."""
    return _scalar(f"{_module(weight)}.activation_scaling_factor", weight)


def cache_scale(qkv: Rule, kind: str) -> Rule:
    """Return the rule of the KV cache scale of a projection, for keys ("k"), values ("v") or both ("kv")."""
    return _scalar(f"{qkv.block}.{kind}_cache_scaling_factor", qkv)


def _module(weight: Rule) -> str:
    return weight.target.removesuffix(".weight")


def _scalar(target: str, weight: Rule) -> Rule:
    return Rule(target, (SourceTensor("", (1,)),), weight.at)
