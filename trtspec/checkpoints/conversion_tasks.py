# SPDX-License-Identifier: Apache-2.0
"""The tasks that write the files of a planned conversion: the encoding and the source tensors of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from trtspec.checkpoints.arithmetic import Arithmetic, choose_arithmetic
from trtspec.checkpoints.conversion import Activations, Conversion, TargetTensor
from trtspec.checkpoints.encodings import (
    Cast,
    Copy,
    CopyRows,
    CopyScales,
    CopyTensors,
    MergedScale,
    QuantizeRows,
    QuantizeTensors,
    ScaleGroup,
    ScaleSlot,
    compute_scale,
)
from trtspec.checkpoints.prequantized import Prequantized
from trtspec.checkpoints.rules import INTEGERS, Matched, Rule
from trtspec.checkpoints.safetensors import ITEM_BYTES, FileLayout, TensorInfo
from trtspec.checkpoints.stream import Destination, Encoding, Task, Transfer, TransferWorker
from trtspec.core.errors import CheckpointError

# NVIDIA's exporter never scales a cache up: values below 448 are stored unscaled
LEAST_CACHE_SCALE = 1.0


@dataclass(frozen=True)
class ConstantScales:
    """Scales of activations and of the KV cache, which are known in advance."""

    values: tuple[tuple[ScaleSlot, np.float32], ...]

    def run(self, worker: TransferWorker) -> None:
        for slot, value in self.values:
            worker.put(slot.rank, slot.offset, np.array([value], np.float32))


def plan_tasks(
    plan: Conversion,
    layouts: list[FileLayout],
    matched: Matched,
    activations: Activations,
    existing: Prequantized | None = None,
) -> list[Task]:
    """Return the tasks; tensors that are already quantized in the source (`existing`) are copied.

    Also chooses the arithmetic, which may compile a library. Raises CheckpointError if an activation was not measured.
    """
    arithmetic = choose_arithmetic(sum(tensor.nbytes for sources in matched.sources.values() for tensor in sources))
    if existing:
        taken = CopyScales(tuple(_taken_scales(plan, layouts, matched, existing)))
        scales = _task("scales", taken, taken.sources.values())
    else:
        scales = Task("scales", ConstantScales(tuple(_constants(plan, layouts, activations))), 0)
    casts = _cast_tasks(plan, layouts, matched, arithmetic)
    return [*casts, *_fp8_tasks(plan, layouts, matched, arithmetic, existing), scales]


def _cast_tasks(plan: Conversion, layouts: list[FileLayout], matched: Matched, arithmetic: Arithmetic) -> list[Task]:
    found: dict[tuple[TensorInfo, ...], tuple[str, TargetTensor, tuple[Transfer, ...]]] = {}
    for name, sources in matched.sources.items():
        target = plan.targets[name]
        if target.dtype == "F8_E4M3":
            continue
        transfers = _transfers(target, sources, layouts)
        if sources in found:  # a source used twice (a tied head, the heads of several steps) is read once
            name, _, others = found[sources]  # noqa: PLW2901
            transfers = _joined(others, transfers)
        found[sources] = name, target, transfers
    return [
        _task(name, _plain(target, transfers, arithmetic), _sources(transfers))
        for name, target, transfers in found.values()
    ]


def _plain(target: TargetTensor, transfers: tuple[Transfer, ...], arithmetic: Arithmetic) -> Encoding:
    if target.dtype in INTEGERS:
        return Copy(transfers)
    return Cast(transfers, target.dtype, arithmetic, target.rule.plus)


def _joined(one: tuple[Transfer, ...], other: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
    return tuple(
        replace(mine, destinations=mine.destinations + theirs.destinations)
        for mine, theirs in zip(one, other, strict=True)
    )


def _fp8_tasks(
    plan: Conversion,
    layouts: list[FileLayout],
    matched: Matched,
    arithmetic: Arithmetic,
    existing: Prequantized | None,
) -> list[Task]:
    tasks = []
    with_another: set[str] = set()
    for name, sources in matched.sources.items():
        target = plan.targets[name]
        if target.dtype != "F8_E4M3" or name in with_another:
            continue
        transfers = _transfers(target, sources, layouts)
        if plan.scheme.weights == "fp8_rowwise":
            scales = sources if existing is None else existing.row_scales(target.rule)
            by_row = _transfers(plan.find_scale(target, "per_channel_scale"), scales, layouts)
            tasks.append(_row_task(name, transfers, by_row, arithmetic, existing))
        else:
            if twin := plan.fused_with(target):
                with_another.add(twin.rule.name)
            groups = _groups(plan, layouts, matched, target, transfers)
            tasks.append(_tensor_task(name, groups, arithmetic, existing))
    return tasks


def _row_task(
    name: str,
    transfers: tuple[Transfer, ...],
    scales: tuple[Transfer, ...],
    arithmetic: Arithmetic,
    existing: Prequantized | None,
) -> Task:
    if existing is None:
        return _task(name, QuantizeRows(transfers, scales, arithmetic), _sources(transfers))
    return _task(name, CopyRows(transfers, scales), _sources(transfers + scales))


def _tensor_task(
    name: str, groups: tuple[ScaleGroup, ...], arithmetic: Arithmetic, existing: Prequantized | None
) -> Task:
    sources = _sources(transfer for group in groups for transfer in group.transfers)
    if existing is None:
        return _task(name, QuantizeTensors(groups, arithmetic), sources)
    scales = {source.name: existing.weight_scale(source.name) for source in sources}
    return _task(name, CopyTensors(groups, scales), [*sources, *scales.values()])


def _groups(
    plan: Conversion, layouts: list[FileLayout], matched: Matched, target: TargetTensor, transfers: tuple[Transfer, ...]
) -> tuple[ScaleGroup, ...]:
    """Return the tensors that share a scale: an expert's, a fused MLP's fc and gate, or all of a target."""
    scale = plan.find_scale(target, "weights_scaling_factor")
    if experts := target.rule.experts:
        size = len(transfers) // experts
        return tuple(
            ScaleGroup(transfers[number * size : (number + 1) * size], _slots(scale, layouts, number))
            for number in range(experts)
        )
    slots = _slots(scale, layouts)
    if twin := plan.fused_with(target):
        transfers += _transfers(twin, matched.sources[twin.rule.name], layouts)
        slots += _slots(plan.find_scale(twin, "weights_scaling_factor"), layouts)
    return (ScaleGroup(transfers, slots),)


def _constants(
    plan: Conversion, layouts: list[FileLayout], activations: Activations
) -> Iterable[tuple[ScaleSlot, np.float32]]:
    for target in plan.targets.values():
        rule = target.rule
        if rule.target.endswith(".activation_scaling_factor"):
            value = compute_scale(np.float32(_measured(activations.inputs, rule.module)))
        elif cached := _cached(rule):
            tables = {"k": activations.keys, "v": activations.values}
            largest = max(_measured(tables[kind], rule.module) for kind in cached)
            value = max(compute_scale(np.float32(largest)), np.float32(LEAST_CACHE_SCALE))
        else:
            continue
        for slot in _slots(target, layouts):
            yield slot, value


def _taken_scales(
    plan: Conversion, layouts: list[FileLayout], matched: Matched, existing: Prequantized
) -> Iterable[MergedScale]:
    for target in plan.targets.values():
        rule, slots = target.rule, _slots(target, layouts)
        if rule.target.endswith(".activation_scaling_factor"):
            weight = plan.targets[f"{rule.module}.weight"]
            fused = [weight, twin] if (twin := plan.fused_with(weight)) else [weight]
            sources = [source for one in fused for source in matched.sources[one.rule.name]]
            yield MergedScale(tuple(existing.input_scale(source.name) for source in sources), slots)
        elif cached := _cached(rule):
            _, keys, values = matched.sources[f"{rule.module}.qkv.weight"]
            projections = {"k": keys, "v": values}
            scales = tuple(existing.cache_scale(projections[kind].name, kind) for kind in cached)
            yield MergedScale(scales, slots, LEAST_CACHE_SCALE)


def _cached(rule: Rule) -> str:
    """Return the kind of a KV cache scale ("k", "v" or "kv" for both), or "" for other rules."""
    kind, found, _ = rule.target.removeprefix("attention.").partition("_cache_scaling_factor")
    return kind if found else ""


def _measured(table: dict[str, float], module: str) -> float:
    if module not in table:
        raise CheckpointError(
            f"the activation of {module} was not measured", hint="calibrate with a prompt that reaches it"
        )
    return table[module]


def _transfers(
    target: TargetTensor, sources: tuple[TensorInfo, ...], layouts: list[FileLayout]
) -> tuple[Transfer, ...]:
    item, name = ITEM_BYTES[target.dtype], target.sharded.name
    return tuple(
        Transfer(
            source,
            tuple(
                Destination(
                    place.rank,
                    place.rows,
                    place.columns,
                    layouts[place.rank].offsets[name] + place.at_row * len(place.columns) * item,
                )
                for place in places
            ),
        )
        for source, places in zip(sources, target.sharded.places, strict=True)
    )


def _slots(target: TargetTensor, layouts: list[FileLayout], number: int = 0) -> tuple[ScaleSlot, ...]:
    return tuple(
        ScaleSlot(rank, layouts[rank].offsets[target.sharded.name] + 4 * number) for rank in target.sharded.ranks
    )


def _sources(transfers: Iterable[Transfer]) -> list[TensorInfo]:
    return [transfer.source for transfer in transfers]


def _task(name: str, encoding: Encoding, sources: Collection[TensorInfo]) -> Task:
    return Task(name, encoding, sum(source.nbytes for source in sources))
