# SPDX-License-Identifier: Apache-2.0
"""Checks specific to Medusa heads: the target's sizes, the number of heads, and untrained heads."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.writer import chunks
from trtspec.core.diagnostics import Diagnostic
from trtspec.families.decoder import read_decoder
from trtspec.methods.draft_formats.borrowed import have_equal_bits, target_tensor
from trtspec.methods.draft_formats.dialect import LM_HEAD
from trtspec.methods.medusa.heads import LISTED, Heads, find_heads

KIND = "medusa"
# Placeholder values that the reader of a decoder's config requires; the heads do not describe the target's layers.
_NO_LAYERS = {
    "architectures": ["LlamaForCausalLM"], "num_attention_heads": 1, "head_dim": 2, "num_hidden_layers": 1,
    "intermediate_size": 1, "max_position_embeddings": 1, "rms_norm_eps": 1e-6,
}  # fmt: skip
_VLLMS_HEADS = 5  # vLLM's default


def described_target(source: Source) -> ModelConfig:
    """Return a target of the heads' sizes; raise CheckpointError if the vocabulary size is unknown."""
    heads = find_heads(source)
    if not heads.vocab_size:
        raise source.reader.refuse("vocab_size and the heads' vocabulary matrices are missing", "give --target")
    sizes = {"hidden_size": heads.hidden_size, "vocab_size": heads.vocab_size}
    return read_decoder(ConfigReader(_NO_LAYERS | sizes, source.reader.where), "bfloat16")


def check_heads(source: Source, target: SourceModel | None) -> Iterator[Diagnostic]:
    """Yield warnings for heads that predict nothing new or that some readers ignore.

    Raise CheckpointError if config.json has more heads than there are tensors for.
    """
    heads = find_heads(source)
    configured = _configured_heads(source, heads)
    if configured > heads.num_heads:
        raise source.reader.refuse_value(f"has {configured} heads, but there are tensors for {heads.num_heads}")
    if configured < heads.num_heads:
        message = f"config.json has {configured} heads, but there are tensors for {heads.num_heads}"
        yield Diagnostic("model", "heads", message, f"all {heads.num_heads} are written", "warning")
    untrained = [head for head in range(heads.num_heads) if _adds_nothing(source, heads, head)]
    if idle := [head for head in untrained if _has_target_lm_head(source, heads, head, target)]:
        message = f"head {', '.join(map(str, idle))} equals the target's LM head: the blocks are zero"
        hint = "head 0 must predict the token after the next; remove copies of the target's LM head, or train them"
        yield Diagnostic("model", "idle-heads", message, hint, "warning")


def _configured_heads(source: Source, heads: Heads) -> int:
    reader, section = source.reader, source.reader.section("medusa")
    found = section.get("num_medusa_heads", int, heads.num_heads) if section else heads.num_heads
    found = reader.get("num_heads", int, _VLLMS_HEADS) if heads.names is LISTED else found
    return reader.get("medusa_num_heads", int, found)


def _adds_nothing(source: Source, heads: Heads, head: int) -> bool:
    """Return whether all blocks of a head are zero."""
    rules = [rule(head, layer) for layer in range(heads.num_layers) for rule in (heads.weight, heads.bias)]
    blocks = [source.tensors[rule.sources[0].name] for rule in rules if rule.sources[0].name]
    return all(chunk.count(0) == len(chunk) for tensor in blocks for chunk in chunks(tensor))


def _has_target_lm_head(source: Source, heads: Heads, head: int, target: SourceModel | None) -> bool:
    """Return whether a head's matrix is known to be the target's LM head."""
    matrix = source.tensors.get(heads.lm_head(head).sources[0].name)
    return heads.shared == "" or bool(target and matrix and have_equal_bits(matrix, target_tensor(LM_HEAD, target)))
