# SPDX-License-Identifier: Apache-2.0
"""What only Medusa heads have: a target that no key describes, numbers of heads, and heads that say nothing new."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.writer import chunks
from trtspec.core.diagnostics import Diagnostic
from trtspec.families.decoder import read_decoder
from trtspec.methods.draft_formats.borrowed import of_target, same
from trtspec.methods.draft_formats.dialect import LM_HEAD
from trtspec.methods.medusa.heads import LISTED, Heads, find_heads

KIND = "medusa"
# What a decoder's reader has to be told; of the target's layers the heads know nothing.
_NO_LAYERS = {
    "architectures": ["LlamaForCausalLM"], "num_attention_heads": 1, "head_dim": 2, "num_hidden_layers": 1,
    "intermediate_size": 1, "max_position_embeddings": 1, "rms_norm_eps": 1e-6,
}  # fmt: skip
_VLLMS_HEADS = 5  # where config.json says no number


def claimed_target(source: Source) -> ModelConfig:
    """Return a target of the heads' sizes; raises CheckpointError where they do not say the vocabulary's."""
    heads = find_heads(source)
    if not heads.vocab_size:
        raise source.reader.refuse("says no vocab_size, and its heads have no matrix to tell it by", "give --target")
    sizes = {"hidden_size": heads.hidden_size, "vocab_size": heads.vocab_size}
    return read_decoder(ConfigReader(_NO_LAYERS | sizes, source.reader.where), "bfloat16")


def check_heads(source: Source, target: SourceModel | None) -> Iterator[Diagnostic]:
    """Yield warnings of heads that nobody would draft with, or that readers would leave out.

    Raises CheckpointError where config.json says more heads than there are.
    """
    heads = find_heads(source)
    said = _said_heads(source, heads)
    if said > heads.num_heads:
        raise source.reader.refuse_value(f"makes it {said} heads, but their tensors are those of {heads.num_heads}")
    if said < heads.num_heads:
        message = f"config.json makes it {said} heads, and their tensors are those of {heads.num_heads}"
        yield Diagnostic("model", "heads", message, f"all {heads.num_heads} are written", "warning")
    silent = [head for head in range(heads.num_heads) if _adds_nothing(source, heads, head)]
    if idle := [head for head in silent if _has_the_targets(source, heads, head, target)]:
        message = f"the target's own LM head says what head {', '.join(map(str, idle))} says: its blocks add nothing"
        hint = "head 0 is for the token after the next; leave the target's own out, or train them"
        yield Diagnostic("model", "idle-heads", message, hint, "warning")


def _said_heads(source: Source, heads: Heads) -> int:
    reader, section = source.reader, source.reader.section("medusa")
    found = section.get("num_medusa_heads", int, heads.num_heads) if section else heads.num_heads
    found = reader.get("num_heads", int, _VLLMS_HEADS) if heads.names is LISTED else found
    return reader.get("medusa_num_heads", int, found)


def _adds_nothing(source: Source, heads: Heads, head: int) -> bool:
    """Tell whether a head's blocks are zeros."""
    rules = [rule(head, layer) for layer in range(heads.num_layers) for rule in (heads.weight, heads.bias)]
    blocks = [source.tensors[rule.sources[0].name] for rule in rules if rule.sources[0].name]
    return all(chunk.count(0) == len(chunk) for tensor in blocks for chunk in chunks(tensor))


def _has_the_targets(source: Source, heads: Heads, head: int, target: SourceModel | None) -> bool:
    """Tell whether a head has the target's LM head, as far as that is known."""
    matrix = source.tensors.get(heads.lm_head(head).sources[0].name)
    return heads.shared == "" or bool(target and matrix and same(matrix, of_target(LM_HEAD, target)))
