# SPDX-License-Identifier: Apache-2.0
"""Division of a checkpoint over ranks: the pipeline stage of each layer, and each rank's shard of a tensor.

The rules are TensorRT-LLM's (tensorrt_llm/mapping.py, layers/linear.py, layers/embedding.py). Column-parallel weights
are divided by rows. Row-parallel weights are divided by columns, and their biases are stored whole on every rank. q, k
and v are divided separately and then concatenated. A key head that several ranks need is stored on each of them, and a
vocabulary is padded to a multiple of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule, SourceTensor, Split, Stage, layer_tensor

MOST_RANKS = 512  # each rank is an open file


@dataclass(frozen=True)
class ParallelMapping:
    """Tensor and pipeline parallelism of a model: rank = stage * tensor + position in the stage.

    With `embedding`, the rows of the embedding are also divided over a stage's ranks (`use_parallel_embedding`).
    """

    tensor: int = 1
    pipeline: int = 1
    embedding: bool = True

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline

    def stage_ranks(self, stage: int) -> range:
        return range(stage * self.tensor, (stage + 1) * self.tensor)

    def layers(self, stage: int, num_layers: int) -> range:
        """Return the layers of a stage; if they do not divide evenly, the first stages have one more."""
        even, more = divmod(num_layers, self.pipeline)
        first = stage * even + min(stage, more)
        return range(first, first + even + (stage < more))

    def locate(self, at: int | Stage, num_layers: int) -> tuple[int, int]:
        """Return (stage, layer number within the stage) for a rule's `at`; the number is 0 outside the layers."""
        if isinstance(at, Stage):
            return (0 if at is Stage.FIRST else self.pipeline - 1), 0
        stage = next(stage for stage in range(self.pipeline) if at in self.layers(stage, num_layers))
        return stage, at - self.layers(stage, num_layers).start


def mapping_problems(config: ModelConfig, mapping: ParallelMapping) -> list[str]:
    """Return a message for each reason why a model cannot be divided by `mapping`."""
    tensor, problems = mapping.tensor, []
    for count, what in ((config.num_heads, "attention heads"), (config.intermediate_size, "MLP columns")):
        if count % tensor:
            problems.append(f"{count} {what} cannot be divided by {tensor} ranks")
    if config.num_kv_heads % tensor and tensor % config.num_kv_heads:
        problems.append(f"{config.num_kv_heads} key heads can neither be divided by nor shared among {tensor} ranks")
    if mapping.ranks > MOST_RANKS:
        problems.append(f"{mapping.ranks} ranks; at most {MOST_RANKS} are supported")
    if mapping.pipeline > config.num_layers:
        problems.append(f"{config.num_layers} layers cannot be divided over {mapping.pipeline} pipeline stages")
    return problems


def valid_sizes_hint(config: ModelConfig, mapping: ParallelMapping) -> str:
    """Return a hint that lists the supported tensor and pipeline sizes of a model."""
    powers = (1 << power for power in range(MOST_RANKS.bit_length()))
    fit = [str(each) for each in powers if not mapping_problems(config, replace(mapping, tensor=each, pipeline=1))]
    return f"tensor can be {', '.join(fit)}; pipeline at most {config.num_layers}"


def resolve_split(rule: Rule, mapping: ParallelMapping) -> Split:
    """Return the division of a rule's target tensor, resolving EMBEDDING to VOCABULARY or WHOLE."""
    if rule.split is Split.EMBEDDING:
        return Split.VOCABULARY if mapping.embedding else Split.WHOLE
    return rule.split


def row_split_problems(rules: Iterable[Rule], mapping: ParallelMapping) -> list[str]:
    """Return a message for each target tensor that cannot be divided by rows; complements `mapping_problems`."""
    problems = []
    for rule in rules:
        for source in rule.sources if rule.split is Split.ROWS else ():
            count, what = (source.heads, "heads") if source.heads else (source.shape[0], "rows")
            if count % mapping.tensor and not (source.heads and mapping.tensor % source.heads == 0):
                problems.append(f"{rule.name}: {count} {what} cannot be divided by {mapping.tensor} ranks")
    return problems


@dataclass(frozen=True)
class ShardRegion:
    """A rectangle of a source tensor that a rank stores, starting at row `at_row` of the rank's target tensor."""

    rank: int
    rows: range
    columns: range
    at_row: int


@dataclass(frozen=True)
class ShardedTarget:
    """A target tensor on the ranks that store it: name and shape per rank, and the regions of each source tensor."""

    name: str
    ranks: range
    shape: tuple[int, ...]
    places: tuple[tuple[ShardRegion, ...], ...]


def shard(rule: Rule, mapping: ParallelMapping, num_layers: int) -> ShardedTarget:
    stage, layer = mapping.locate(rule.at, num_layers)
    ranks, split = mapping.stage_ranks(stage), resolve_split(rule, mapping)
    at_row, columns, by_source = 0, range(0), []
    for source in rule.sources:
        height, places = 0, []
        for position, rank in enumerate(ranks):
            rows, columns, height = _rectangle(source, split, position, mapping.tensor)
            places.append(ShardRegion(rank, rows, columns, at_row))
        by_source.append(tuple(places))
        at_row += height
    width = () if len(rule.sources[0].shape) == 1 else (len(columns),)
    shape = (rule.experts, at_row // rule.experts, *width) if rule.experts else (at_row, *width)
    name = rule.target if isinstance(rule.at, Stage) else layer_tensor(layer, rule.target)
    return ShardedTarget(name, ranks, shape, tuple(by_source))


def _rectangle(source: SourceTensor, split: Split, position: int, tensor: int) -> tuple[range, range, int]:
    """Return a rank's rows and columns of a source tensor, and the number of target rows they occupy."""
    rows, columns = source.shape[0], prod(source.shape[1:])
    if split is Split.ROWS:
        rank_rows = _head_rows(source, position, tensor) if source.heads else _share(rows, position, tensor)
        return rank_rows, range(columns), len(rank_rows)
    if split is Split.COLUMNS:
        return range(rows), _share(columns, position, tensor), rows
    if split is Split.VOCABULARY:
        height = ceil(source.target_rows / tensor)
        return range(min(position * height, rows), min((position + 1) * height, rows)), range(columns), height
    return range(rows), range(columns), source.target_rows


def _share(count: int, position: int, tensor: int) -> range:
    return range(position * (count // tensor), (position + 1) * (count // tensor))


def _head_rows(source: SourceTensor, position: int, tensor: int) -> range:
    size, heads = source.shape[0] // source.heads, max(1, source.heads // tensor)
    first = position * source.heads // tensor
    return range(first * size, (first + heads) * size)


def distinct_regions(sharded: ShardedTarget) -> Iterator[tuple[int, ShardRegion]]:
    """Yield (source number, region) so that every element of every source tensor is covered exactly once."""
    for number, places in enumerate(sharded.places):
        seen = set()
        for place in places:
            if (area := (place.rows, place.columns)) not in seen and len(place.rows):
                seen.add(area)
                yield number, place
