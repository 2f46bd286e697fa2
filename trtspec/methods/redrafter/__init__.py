# SPDX-License-Identifier: Apache-2.0
"""Recurrent Drafter: a recurrent draft head on the target's last hidden state drafts by beam search.

Zhang et al. 2024, arXiv:2403.09919. The head reads the hidden state of the last token that the target processed, and
the target's embeddings of the draft tokens. Beams with a common prefix share its nodes, and all beams are verified as
one tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from trtspec.checkpoints.model_config import ConfigReader
from trtspec.checkpoints.rules import Rule, SourceTensor, Split, Stage
from trtspec.checkpoints.source import Source
from trtspec.methods.base import DraftHead, DraftShape, HeadTarget, Method, Options, suggest_for
from trtspec.methods.draft_head import NOT_THIS_KIND, check_sizes

# Tokens considered after each beam, as in the reference implementation; also the maximum number of beams.
CANDIDATES = 50
MOST_LAYERS = 64
# Tensor names in different versions of apple/ml-recurrent-drafter.
STACKS, PROJECTIONS = ("lm_head", "lm_heads", "0"), ("input_proj", "input_projs")


class RedrafterOptions(Options):
    """Options of the beam search; `greedy` is a build option of TensorRT engines."""

    beams: int = Field(default=5, ge=1, le=CANDIDATES, description="Number of beams")
    greedy: bool = Field(
        default=True, description="Build engines for greedy text; the torch engine follows each request's sampling"
    )


@dataclass(frozen=True)
class RedrafterHeadConfig:
    """The configuration of a recurrent draft head.

    `exit_dim` is the width of the output layers. The input has width 2 * `hidden_size`; an input projection exists only
    if the two differ. Without `is_rnn`, the recurrent state is the sum of the embeddings. `stack` and `projection` are
    a source's tensor name prefixes for the output layers and the input projection.
    """

    hidden_size: int
    vocab_size: int
    exit_dim: int
    num_layers: int
    is_rnn: bool
    stack: str = STACKS[0]
    projection: str = PROJECTIONS[0]

    @property
    def projects(self) -> bool:
        return 2 * self.hidden_size != self.exit_dim

    def rules(self) -> Iterator[Rule]:
        exit_dim, hidden = self.exit_dim, self.hidden_size
        if self.projects:
            yield from _linear_rules("input_proj", self.projection, exit_dim, 2 * hidden)
        for layer in range(self.num_layers):
            yield from _linear_rules(f"layers.{layer}.linear", f"{self.stack}.{layer}.linear", exit_dim, exit_dim)
        lm_head = f"{self.stack}.{self.num_layers}.weight"
        yield _rule("lm_head.weight", lm_head, Split.VOCABULARY, self.vocab_size, exit_dim)
        if self.is_rnn:
            yield from _linear_rules("rnn_u", "rnn_u", hidden, hidden)
            yield _rule("rnn_w.weight", "rnn_w.weight", Split.ROWS, hidden, hidden)


def _linear_rules(target: str, source: str, rows: int, columns: int) -> Iterator[Rule]:
    yield _rule(f"{target}.weight", f"{source}.weight", Split.ROWS, rows, columns)
    yield _rule(f"{target}.bias", f"{source}.bias", Split.ROWS, rows)


def _rule(target: str, source: str, split: Split, *shape: int) -> Rule:
    return Rule(f"drafter.{target}", (SourceTensor(source, shape),), Stage.LAST, split)


def stored_head(document: ConfigReader) -> RedrafterHeadConfig:
    """Return the head's configuration from the config.json of a converted checkpoint."""
    return RedrafterHeadConfig(
        hidden_size=document.positive("redrafter_hidden_size"),
        vocab_size=document.positive("vocab_size"),
        exit_dim=document.positive("redrafter_exit_dim"),
        num_layers=_num_layers(document, "redrafter_num_layers"),
        is_rnn=document.get("redrafter_is_rnn", bool),
    )


def read_head(source: Source, base: HeadTarget, options: RedrafterOptions) -> DraftHead:
    head, config = find_head(source), base.config
    return DraftHead(
        config={
            "architecture": "ReDrafterForQWenLM" if "qwen_type" in dict(config.extra) else "ReDrafterForLLaMALM",
            "base_model_architecture": config.architecture,
            "redrafter_num_layers": head.num_layers,
            "redrafter_hidden_size": head.hidden_size,
            "redrafter_exit_dim": head.exit_dim,
            "redrafter_is_rnn": head.is_rnn,
            "redrafter_num_beams": options.beams,
            "redrafter_draft_len_per_beam": base.draft_len,
            "redrafter_greedy_search": options.greedy,
        },
        rules=list(head.rules()),
        excluded=("*drafter*",),
        diagnostics=tuple(check_sizes("the drafter is", head.hidden_size, head.vocab_size, config)),
    )


def find_head(source: Source) -> RedrafterHeadConfig:
    """Return the head's configuration from a source's config.json; raise CheckpointError if tensors are missing."""
    reader, tensors = source.reader, source.tensors
    layers = _num_layers(reader, "num_draft_layers")
    stack = next((name for name in STACKS if f"{name}.{layers}.weight" in tensors), None)
    if stack is None:
        named = ", ".join(f"{name}.{layers}.weight" for name in STACKS)
        raise reader.refuse(
            f"does not contain a recurrent drafter of {layers} layers: the tensors {named} are missing",
            f"correct num_draft_layers in config.json, or {NOT_THIS_KIND}",
        )
    return RedrafterHeadConfig(
        hidden_size=reader.positive("hidden_size"),
        vocab_size=reader.positive("vocab_size"),
        exit_dim=reader.positive("exit_dim"),
        num_layers=layers,
        is_rnn=reader.get("rnn", bool, False),
        stack=stack,
        projection=next((name for name in PROJECTIONS if f"{name}.weight" in tensors), PROJECTIONS[0]),
    )


def _num_layers(reader: ConfigReader, key: str) -> int:
    layers = reader.get(key, int)
    if not 0 <= layers <= MOST_LAYERS:
        raise reader.refuse_value(f"{key} is {layers}, expected a number of at most {MOST_LAYERS}")
    return layers


METHOD = Method(
    summary="a recurrent draft head on the target's last hidden state drafts by beam search",
    drafts_with="head",
    draft_lens=range(1, 33),
    default_draft_len=5,
    options=RedrafterOptions,
    draft_shape=lambda options, draft_len: DraftShape(draft_len, draft_len * options.beams),
    read_head=read_head,
    suggest=suggest_for(
        lambda source: {"exit_dim", "num_draft_layers"} <= source.config.keys(),
        "DRAFT is a recurrent drafter: its config.json has an exit_dim",
    ),
    variants=lambda options: ({"beams": beams} for beams in (1, 2, 3, 5, 8)),
)
