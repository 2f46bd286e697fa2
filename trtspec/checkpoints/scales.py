# SPDX-License-Identifier: Apache-2.0
"""The rules of scales, told from those of what they belong to: their names, their shapes, and how ranks share them."""

from __future__ import annotations

from dataclasses import replace

from trtspec.checkpoints.rules import Rule, SourceTensor, of_rows

# TensorRT-LLM takes the larger of the first two, or the last where it is alone.
KV_SCALES = ("k", "v", "kv")


def weight_scale(weight: Rule) -> Rule:
    """Return the rule of a weight's one scale, or one for each expert."""
    target = f"{_module(weight)}.weights_scaling_factor"
    if weight.experts:
        return Rule(target, (SourceTensor("", (weight.experts, 1)),), weight.at)
    return _scalar(target, weight)


def row_scales(weight: Rule) -> Rule:
    """Return the rule of a weight's scales, one for each row; its sources are in the order of the weight's."""
    sources = tuple(replace(source, name="", shape=source.shape[:1]) for source in weight.sources)
    target, split = f"{_module(weight)}.per_channel_scale", of_rows(weight.split)
    return replace(weight, target=target, sources=sources, split=split, linear=None)


def activation_scale(weight: Rule) -> Rule:
    """Return the rule of the scale of what a weight is multiplied with."""
    return _scalar(f"{_module(weight)}.activation_scaling_factor", weight)


def cache_scale(qkv: Rule, kind: str) -> Rule:
    """Return the rule of the scale of the keys, the values or both that a projection puts into the cache."""
    return _scalar(f"{qkv.block}.{kind}_cache_scaling_factor", qkv)


def _module(weight: Rule) -> str:
    return weight.target.removesuffix(".weight")


def _scalar(target: str, beside: Rule) -> Rule:
    return Rule(target, (SourceTensor("", (1,)),), beside.at)
