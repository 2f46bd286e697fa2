# SPDX-License-Identifier: Apache-2.0
"""Medusa: heads on the target's last hidden state draft a tree; head k predicts the token k + 2 positions ahead.

Cai et al. 2024, arXiv:2401.10774. A head consists of residual blocks x + silu(linear(x)) and a vocabulary matrix. The
tree of ranks is static.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, field_validator

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Rule, Skip, SourceTensor, Split, Stage
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.base import DraftHead, DraftShape, HeadTarget, LossyOptions, Method, Suggestion
from trtspec.methods.draft_head import NOT_THIS_KIND, check_sizes
from trtspec.methods.tree_choices import MEDUSA_CHOICES, Choice, check_ranks, find_choices, smaller_trees

LM_HEAD = "lm_head.weight"
_FIELDS = {"head": r"(?P<head>\d{1,2})", "layer": r"(?P<layer>\d{1,2})", "kind": "(?P<kind>weight|bias)"}
SHARED = "shared-lm-head"  # diagnostic code for heads without a vocabulary matrix
OF_THE_BASE = Skip(r"(model|lm_head)\..*", "part of the target")


@dataclass(frozen=True)
class MedusaNames:
    """A naming scheme of Medusa heads: name patterns of a block's tensors, and of a head's vocabulary matrix.

    `matrix` may number the vocabulary matrix as the layer after the blocks. With a `prefix`, the heads are stored in
    the target's files.
    """

    block: str
    matrix: str
    prefix: str = ""

    def blocks(self, source: Source) -> list[dict[str, str]]:
        """Return the fields head, layer and kind (weight or bias) of each block tensor's name in a source."""
        return self._found(self.block, source)

    def matrices(self, source: Source) -> list[dict[str, str]]:
        """Return the fields of each vocabulary matrix's name in a source, among them the head."""
        return self._found(self.matrix, source)

    def _found(self, form: str, source: Source) -> list[dict[str, str]]:
        pattern = re.compile(re.escape(self.prefix) + form.replace(".", r"\.").format(**_FIELDS))
        return [found.groupdict() for found in map(pattern.fullmatch, source.tensors) if found]


# FasterDecoding/Medusa:medusa/model/medusa_model.py@e2a5d20; 1.0 saves heads and target together, like ModelOpt.
SEQUENTIAL = MedusaNames("{head}.{layer}.linear.{kind}", "{head}.{layer}.weight")
IN_A_MODEL = replace(SEQUENTIAL, prefix="medusa_heads.")
# vllm-project/vllm:vllm/model_executor/models/medusa.py@v0.32.0
LISTED = MedusaNames("blocks.{head}.layers.{layer}.{kind}", "lm_heads.{head}.weight")
KNOWN = (SEQUENTIAL, replace(SEQUENTIAL, prefix="medusa_head."), IN_A_MODEL, LISTED)


@dataclass(frozen=True)
class Heads:
    """Medusa heads of `num_layers` blocks each; `vocab_size` is 0 if unknown.

    `shared` is the tensor name of a vocabulary matrix that all heads share, "" if the heads use the target's matrix, or
    None if each head has its own. Blocks without a bias are converted with zero biases.
    """

    num_heads: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    names: MedusaNames = SEQUENTIAL
    has_bias: bool = True
    shared: str | None = None

    def weight(self, head: int, layer: int) -> Rule:
        """Return the conversion rule of a block's matrix [hidden, hidden]."""
        return self._block(head, layer, "weight", self.hidden_size, self.hidden_size)

    def bias(self, head: int, layer: int) -> Rule:
        """Return the conversion rule of a block's bias [hidden]."""
        return self._block(head, layer, "bias", self.hidden_size)

    def lm_head(self, head: int) -> Rule:
        """Return the conversion rule of a head's vocabulary matrix [vocab, hidden]."""
        name = self.shared or self.names.prefix + self.names.matrix.format(head=head, layer=self.num_layers)
        source = SourceTensor(name, (self.vocab_size, self.hidden_size))
        target = f"medusa_heads.{head}.lm_head.weight"
        return Rule(target, (source,), Stage.LAST, Split.VOCABULARY, copy=self.shared is not None)

    def rules(self) -> Iterator[Rule]:
        """Yield the conversion rules of all heads; without vocabulary matrices if the heads use the target's."""
        for head in range(self.num_heads):
            for layer in range(self.num_layers):
                yield from (self.weight(head, layer), self.bias(head, layer))
            if self.shared != "":
                yield self.lm_head(head)

    def _block(self, head: int, layer: int, kind: str, *shape: int) -> Rule:
        name = self.names.prefix + self.names.block.format(head=head, layer=layer, kind=kind)
        source = SourceTensor(name if kind == "weight" or self.has_bias else "", shape)
        return Rule(f"medusa_heads.{head}.medusa_layers.{layer}.linear.{kind}", (source,), Stage.LAST, Split.ROWS)


def find_heads(source: Source) -> Heads:
    """Return the Medusa heads in a source, counted by tensor names, because published configs have wrong numbers.

    Raise CheckpointError if heads are missing, or if their number of layers contradicts config.json.
    """
    if len(found := _schemes(source)) != 1:
        message = "does not contain Medusa heads: tensors like 0.0.linear.weight are missing"
        raise source.reader.refuse(message if not found else "has Medusa heads under two prefixes", NOT_THIS_KIND)
    (names,) = found
    blocks, matrices = names.blocks(source), names.matrices(source)
    num_layers = 1 + max((int(each["layer"]) for each in blocks), default=-1)
    configured = _configured_layers(source.reader, names, num_layers)
    if configured != num_layers:
        raise source.reader.refuse_value(f"has {configured} layers per head, but the tensors have {num_layers}")
    num_heads = 1 + max(int(each["head"]) for each in (*blocks, *matrices))
    has_bias = any(each["kind"] == "bias" for each in blocks)
    heads = Heads(num_heads, num_layers, 0, 0, names, has_bias, _shared(source, names, bool(matrices)))
    if names is LISTED:
        _check_listed(source, heads)
    return _sized(source, heads)


def _schemes(source: Source) -> list[MedusaNames]:
    """Return the naming schemes for which a source has tensors."""
    return [names for names in KNOWN if names.blocks(source) or names.matrices(source)]


def _configured_layers(reader: ConfigReader, names: MedusaNames, found: int) -> int:
    section = reader.section("medusa")
    layers = section.get("num_medusa_layers", int, found) if section else found
    layers = reader.get("num_hidden_layers", int, 1) if names is LISTED else layers  # 1 is vLLM's default
    return reader.get("medusa_num_layers", int, layers)


def _shared(source: Source, names: MedusaNames, have_matrices: bool) -> str | None:
    """Return the value of `Heads.shared`.

    The first vLLM releases with a shared matrix store it under the name of the first head's matrix.
    """
    if names is LISTED and source.reader.get("original_lm_head", bool, False):
        first = names.matrix.format(head=0)
        return first if first in source.tensors and LM_HEAD not in source.tensors else LM_HEAD
    return None if have_matrices or names is LISTED or names.prefix else ""


def _check_listed(source: Source, heads: Heads) -> None:
    """Raise CheckpointError for vLLM heads with a reduced vocabulary or biases that contradict config.json."""
    has_bias = source.reader.get("medusa_fc_bias", bool, False)
    if heads.num_layers and has_bias != heads.has_bias:
        what = "ignores the biases" if heads.has_bias else "does not initialize the biases"
        raise source.reader.refuse_value(f"vLLM {what} because medusa_fc_bias is {str(has_bias).lower()}")
    vocab, drafted = (source.reader.values.get(key) for key in ("vocab_size", "truncated_vocab_size"))
    if vocab is not None and drafted not in (None, vocab):  # otherwise vLLM uses the target's sizes
        mapped = "with a token_map" if "token_map" in source.tensors else "without a token_map, which vLLM requires"
        raise source.reader.refuse(
            f"drafts {drafted} of {vocab} tokens {mapped}; only heads with all tokens are supported",
            "export the heads with all tokens",
        )


def _sized(source: Source, heads: Heads) -> Heads:
    """Return the heads with the sizes from config.json, or from the first tensors if it lacks them."""
    matrix = _matrix(source, heads)
    block = source.tensors.get(heads.weight(0, 0).sources[0].name)
    hidden = block.shape[0] if block and block.shape else matrix.shape[1] if matrix else 0
    # the other dimension of the matrix; a transposed matrix is reported later, when its rule is matched
    other = next((size for size in matrix.shape if size != hidden), hidden) if matrix else 0
    reader = source.reader
    vocab = reader.positive("vocab_size") if reader.values.get("vocab_size") is not None else other
    return replace(heads, hidden_size=reader.positive("hidden_size", hidden), vocab_size=vocab)


def _matrix(source: Source, heads: Heads) -> TensorInfo | None:
    """Return the first head's vocabulary matrix, or None if the heads use the target's."""
    if heads.shared == "":
        return None
    name = heads.lm_head(0).sources[0].name
    matrix = source.tensors.get(name)
    if matrix is None or len(matrix.shape) != 2:
        raise source.reader.refuse(
            f"{name}, the first head's vocabulary matrix, is missing", "export the heads with their matrices"
        )
    return matrix


class MedusaOptions(LossyOptions):
    """Options of the static draft tree."""

    choices: str | list[list[int]] = Field(
        default="mc_sim_7b_63",
        description="Name of a published tree, or paths: [0, 2] is the third best after the best",
    )

    @field_validator("choices", mode="before")
    @classmethod
    def _make_a_tree(cls, written: Any) -> Any:
        find_choices(written, MEDUSA_CHOICES)
        return written

    @property
    def paths(self) -> tuple[Choice, ...]:
        return find_choices(self.choices, MEDUSA_CHOICES)


def read_head(source: Source, base: HeadTarget, options: MedusaOptions) -> DraftHead:
    heads, config = find_heads(source), base.config
    return DraftHead(
        config={
            "architecture": "MedusaForCausalLM",
            "base_architecture": config.architecture,
            # TensorRT-LLM distinguishes the two kinds of base models by this key
            "model_type": dict(config.extra).get("qwen_type", "llama"),
            "num_medusa_heads": heads.num_heads,
            "num_medusa_layers": heads.num_layers,
            "max_draft_len": len(options.paths),
        },
        rules=list(heads.rules()),
        skips=[OF_THE_BASE] if heads.names.prefix else [],
        excluded=("*medusa_heads*",),
        diagnostics=tuple(_check_head(heads, config, _draft_shape(options, 0).max_depth)),
    )


def _check_head(heads: Heads, config: ModelConfig, depth: int) -> Iterator[Diagnostic]:
    yield from check_sizes("the heads are", heads.hidden_size, heads.vocab_size or config.vocab_size, config)
    if heads.shared == "":
        message = "the heads use the target's LM head, which is not among their tensors"
        hint = "convert them to vLLM's format, which includes it: trtspec convert-draft with --target"
        yield Diagnostic("model", SHARED, message, hint)
    if heads.num_heads < depth:
        message = f"the choices are {depth} tokens deep, but there are {heads.num_heads} heads"
        yield Diagnostic("model", "heads", message, f"list choices with a depth of at most {heads.num_heads}")


def _draft_shape(options: MedusaOptions, draft_len: int) -> DraftShape:
    return DraftShape(max(map(len, options.paths)), len(options.paths))


def _suggest(source: Source) -> Suggestion | None:
    if not _schemes(source):
        return None
    heads = find_heads(source)
    paths, why = MedusaOptions().paths, f"DRAFT has {heads.num_heads} Medusa heads"
    short = [list(path) for path in paths if len(path) <= heads.num_heads]
    if len(short) == len(paths):
        return Suggestion(1, why)
    return Suggestion(1, why, {"choices": short}, f"the default tree, limited to the depth of {heads.num_heads} heads")


METHOD = Method(
    summary="Medusa heads on the target's last hidden state draft a tree",
    drafts_with="head",
    draft_passes="one",
    options=MedusaOptions,
    draft_shape=_draft_shape,
    check_options=lambda options, config: check_ranks(options.paths, config),
    read_head=read_head,
    suggest=_suggest,
    variants=lambda options: smaller_trees(options.paths),
)
