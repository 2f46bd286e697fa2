# SPDX-License-Identifier: Apache-2.0
"""Published rows (`rows.yaml`) as pairs for the planner, with headers of the published shapes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests._support.shapes import make_checkpoint, shapes
from trtspec.checkpoints.prequantized import QuantFormat, source_format
from trtspec.checkpoints.source import Source, load_source
from trtspec.core.gpus import GPUS
from trtspec.planning.prediction.flops import TensorSizes, Work, head_work, model_work
from trtspec.planning.prediction.speedup import DrafterCost, GpuGroup, TargetDraftPair

ROWS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text())


@cache
def source(name: str) -> Source:
    """Return a published checkpoint's headers and config, which remain available without the files."""
    shape = next(shape for shape in shapes() if shape.name == name)
    with TemporaryDirectory() as root:
        make_checkpoint(shape, Path(root) / name)
        return load_source(Path(root) / name)


@cache
def work(name: str, weights: str = "") -> Work:
    """Return the work of a published model, as stored or with weights and KV cache in a format."""
    found = source(name)
    return model_work(found, QuantFormat(weights, weights) if weights else source_format(found))


def pair(row: dict[str, Any]) -> TargetDraftPair:
    """Return the pair that a row was measured with, without drafting for a row without a draft."""
    machine = GpuGroup(GPUS[row["gpu"]], row.get("tensor", 1))
    target = _in_bytes(work(row["target"], row.get("format", "")), row.get("weights"))
    drafting = DrafterCost(None, machine, "none")
    if draft := row.get("draft"):
        is_head = draft.startswith("eagle")
        drafts = head_work(source(draft), target) if is_head else work(draft, row.get("format", ""))
        drafting = DrafterCost(drafts, machine)
    return TargetDraftPair(target, machine, drafting, row.get("context", 500))


def _in_bytes(work: Work, weights: float | None) -> Work:
    """Return the work with a fixed number of bytes per weight, as in weight-only quantization."""
    if weights is None:
        return work
    dense, experts = (TensorSizes(each.numbers, int(each.numbers * weights)) for each in (work.dense, work.experts))
    return replace(work, dense=dense, experts=experts)
