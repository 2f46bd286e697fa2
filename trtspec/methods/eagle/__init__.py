# SPDX-License-Identifier: Apache-2.0
"""EAGLE: a head of one layer predicts the next hidden state of the target and drafts a tree.

Li et al. 2024, arXiv:2401.15077 (EAGLE, with a static tree) and arXiv:2406.16858 (EAGLE-2, with dynamic trees). Both
use the same heads: a matrix that combines a token's embedding with the preceding hidden state, and a Llama layer
without its input norm. Draft tokens are predicted with the target's LM head. The embedding is usually the target's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule, Skip, SourceTensor, Split, Stage
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.trtllm import EMBEDDING, LM_HEAD
from trtspec.core.diagnostics import Diagnostic
from trtspec.families.decoder import HEAD_DEFAULTS, read_decoder
from trtspec.methods.base import DraftHead, DraftShape, HeadTarget, LossyOptions, Method, suggest_for
from trtspec.methods.draft_head import NOT_THIS_KIND, check_layer, check_layers, check_sizes, count_layers, layer_rules
from trtspec.methods.tree_choices import EAGLE_CHOICES, MOST_NODES, Choice, check_ranks, find_choices, smaller_trees
from trtspec.recipe.schema import refuse

NETS, NET_CONFIG = "eagle_nets", "eagle_net_config"

OPTIONAL = _EMBEDDING, _FC_BIAS = "embed_tokens.weight", "fc.bias"  # names in a source
_DEFAULT_CHOICES = "mc_sim_7b_63"
# SafeAILab/EAGLE's defaults: its depth 7 does not count the first level, its total_token 60 counts the root
_DEFAULTS = {"top_k": 10, "depth": 8, "nodes": 59}
_SKIPS = [
    Skip(r"layers\.0\.input_layernorm\.weight", "the layer has no input norm"),
    Skip(r"layers\.0\.self_attn\.rotary_emb\.inv_freq", "computed from rope_theta"),
]


class Growth(NamedTuple):
    """The size of a dynamic tree, which grows where the head is confident; `nodes` excludes the root."""

    top_k: int
    depth: int
    nodes: int


def _size(option: str, most: int, what: str) -> Any:
    """Return the pydantic field for an option of dynamic trees; the default depends on `dynamic`."""
    description = f"Dynamic: {what} ({_DEFAULTS[option]})"
    return Field(default=None, validate_default=True, ge=1, le=most, description=description)


class EagleOptions(LossyOptions):
    """Options of the tree: `choices` if it is static; `top_k`, `depth` and `nodes` if dynamic; the others are None."""

    dynamic: bool = Field(
        default=False, description="Use a dynamic tree, which follows the head's confidence (EAGLE-2)"
    )
    choices: str | list[list[int]] | None = Field(
        default=None,
        validate_default=True,
        description=f"Name of a published tree, or paths: [0, 2] is the third best after the best ({_DEFAULT_CHOICES})",
    )
    top_k: int | None = _size("top_k", 64, "tokens ranked after a node, and nodes extended per level")
    depth: int | None = _size("depth", 32, "levels of tokens, one more than EAGLE-2's depth")
    nodes: int | None = _size("nodes", MOST_NODES, "total drafted tokens")

    @field_validator("choices", mode="before")
    @classmethod
    def _make_a_tree(cls, written: Any, info: ValidationInfo) -> Any:
        if info.data.get("dynamic"):
            if written is not None:
                raise refuse("not-allowed", "choices requires a static tree", "remove choices or dynamic")
            return None
        written = _DEFAULT_CHOICES if written is None else written
        find_choices(written, EAGLE_CHOICES)
        return written

    @field_validator("top_k", "depth", "nodes")
    @classmethod
    def _grows(cls, written: int | None, info: ValidationInfo) -> int | None:
        if info.data.get("dynamic"):
            return _DEFAULTS[str(info.field_name)] if written is None else written
        if written is not None and "dynamic" in info.data:
            raise refuse("not-allowed", f"{info.field_name} requires a dynamic tree", "add dynamic: true")
        return None

    @property
    def paths(self) -> tuple[Choice, ...]:
        """Return the paths of the static tree; empty for a dynamic tree."""
        return () if self.dynamic else find_choices(self.choices, EAGLE_CHOICES)

    @property
    def growth(self) -> Growth | None:
        """Return the size of the dynamic tree, or None for a static tree."""
        if self.top_k is None or self.depth is None or self.nodes is None:
            return None
        return Growth(self.top_k, self.depth, self.nodes)


def head_rules(config: ModelConfig, prefix: str) -> list[Rule]:
    """Return the conversion rules of an EAGLE head's tensors except the LM head.

    Several rules may use a tensor, because an engine contains a copy of the head for each level of the tree.
    """
    hidden, vocab = config.hidden_size, config.vocab_size
    found = [
        Rule(f"{prefix}.{name}", (tensor,), Stage.LAST, split, copy=True)
        for name, tensor, split in (
            ("fc.weight", SourceTensor("fc.weight", (hidden, 2 * hidden)), Split.ROWS),
            ("fc.bias", SourceTensor(_FC_BIAS, (hidden,)), Split.ROWS),
            ("vocab_embedding.weight", SourceTensor(_EMBEDDING, (vocab, hidden)), Split.EMBEDDING),
        )
    ]
    layer = layer_rules(config, 0, f"{prefix}.layers.0", "layers.0")
    return found + [replace(rule, copy=True) for rule in layer if not rule.name.endswith(".input_layernorm.weight")]


def read_head(source: Source, base: HeadTarget, options: EagleOptions) -> DraftHead:
    head, draft_shape = read_head_config(source, base.config), _draft_shape(options, 0)
    rules: list[Rule] = []
    borrowed: list[Rule] = []
    # an engine contains a copy of the head for each level of the tree
    for level in range(draft_shape.max_depth):
        for rule in head_rules(head, f"{NETS}.{level}.drafter"):
            (tensor, *_), absent = rule.sources, rule.sources[0].name not in source.tensors
            if absent and tensor.name == _EMBEDDING:
                borrowed.append(replace(rule, sources=_find_sources(base, EMBEDDING)))
            elif absent and tensor.name == _FC_BIAS:
                rules.append(replace(rule, sources=(replace(tensor, name=""),)))
            else:
                rules.append(rule)
        lm_head = f"{NETS}.{level}.lm_head.weight"
        borrowed.append(Rule(lm_head, _find_sources(base, LM_HEAD), Stage.LAST, Split.VOCABULARY, copy=True))
    return DraftHead(
        config={
            "architecture": "EagleForCausalLM",
            "num_eagle_layers": draft_shape.max_depth,
            "max_non_leaves_per_layer": _most_inner(options),
            "max_draft_len": draft_shape.max_tokens,
        },
        rules=rules,
        skips=_SKIPS,
        borrowed=borrowed,
        models={NET_CONFIG: head},
        excluded=(f"*{NETS}*",),
        diagnostics=(
            *check_sizes("the head is", head.hidden_size, head.vocab_size, base.config),
            *check_layers(source.reader.positive("num_hidden_layers", 1), 1),
            *check_layer(head, base.config),
        ),
    )


def read_head_config(source: Source, target: ModelConfig) -> ModelConfig:
    """Return the config of an EAGLE head's layer; raise CheckpointError for other heads and for several layers."""
    reader = source.reader
    if _is_eagle3(source):
        raise reader.refuse("describes an EAGLE-3 head, which reads other hidden states", "use method: eagle3")
    if "fc.weight" not in source.tensors:
        raise reader.refuse("is not an EAGLE head: the tensor fc.weight is missing", NOT_THIS_KIND)
    # the config may name the class of the target or of the head, or no class
    of_a_llama = reader.with_defaults(HEAD_DEFAULTS).replacing(architectures=["LlamaForCausalLM"], num_hidden_layers=1)
    attn_bias = "layers.0.self_attn.q_proj.bias" in source.tensors
    head = read_decoder(of_a_llama, target.dtype, attn_bias=attn_bias, tied_embeddings=False)
    if (layers := max(1, count_layers(source.tensors))) > 1:
        message = f"has {layers} layers; only EAGLE heads of one layer are supported"
        raise reader.refuse(message, "use a head of one layer")
    return replace(head, num_layers=1)


def _is_eagle3(source: Source) -> bool:
    return any("hidden_norm." in name for name in source.tensors)


def _find_sources(base: HeadTarget, target: str) -> tuple[SourceTensor, ...]:
    return next(rule.sources for rule in base.rules if rule.name == target)


def _most_inner(options: EagleOptions) -> int:
    """Return the maximum number of nodes with children in a level of the tree."""
    if options.growth:
        return options.growth.top_k
    parents = {choice[:-1] for choice in options.paths}
    return max(Counter(map(len, parents)).values())


def _draft_shape(options: EagleOptions, draft_len: int) -> DraftShape:
    if options.growth:
        top_k, depth, nodes = options.growth
        return DraftShape(depth, min(nodes, top_k + (depth - 1) * top_k**2))
    return DraftShape(max(map(len, options.paths)), len(options.paths))


def _check_options(options: EagleOptions, config: ModelConfig) -> Iterator[Diagnostic]:
    if options.growth is None:
        yield from check_ranks(options.paths, config)
    elif (top_k := options.growth.top_k) > config.vocab_size:
        message = f"{top_k} is more than the target's {config.vocab_size} vocabulary entries"
        yield Diagnostic("top_k", "out-of-range", message)


def _variants(options: EagleOptions) -> Iterator[dict[str, Any]]:
    """Yield trees that are at most as deep as the configured one: a converted checkpoint has one net per level."""
    yield from smaller_trees(options.paths)
    if options.growth:
        for depth in (2, 4, 6, 8):
            for top_k, nodes in ((2, 8), (4, 16), (8, 32), (10, 60)):
                if depth <= options.growth.depth:
                    yield {"depth": depth, "top_k": top_k, "nodes": nodes}


METHOD = Method(
    summary="an EAGLE head that predicts the target's hidden states drafts a tree",
    drafts_with="head",
    options=EagleOptions,
    draft_shape=_draft_shape,
    check_options=_check_options,
    read_head=read_head,
    suggest=suggest_for(
        lambda source: "fc.weight" in source.tensors and not _is_eagle3(source),
        "DRAFT is an EAGLE head: fc.weight, and a layer without hidden_norm",
    ),
    variants=_variants,
)
