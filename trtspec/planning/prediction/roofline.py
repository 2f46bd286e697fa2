# SPDX-License-Identifier: Apache-2.0
"""Time of a pass on a machine: reading plus computing, and the overhead of layers and all-reduces.

A roofline (doi:10.1145/1498765.1498785) takes the maximum of the two. Published batches are slower than that, and their
sum fits them (docs/planning.md). Independent of speculation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trtspec.core.gpus import Gpu
from trtspec.planning.prediction.efficiency import EfficiencyData, efficiency_for
from trtspec.planning.prediction.flops import ITEM_BYTES, Work

REDUCES = 2  # per layer: after attention and after the MLP


@dataclass(frozen=True)
class GpuGroup:
    """GPUs that share each layer of a model; pipeline stages run sequentially, so they do not change the time."""

    gpu: Gpu
    tensor: int = 1

    @cached_property
    def reached(self) -> EfficiencyData:
        """Return the efficiency that engines reach on its GPUs."""
        return efficiency_for(self.gpu)


def pass_seconds(work: Work, machine: GpuGroup, texts: int, new_tokens: float, context: int) -> float:
    """Return the seconds of a pass that adds `new_tokens` to each of `texts` texts of `context` tokens."""
    tokens = max(1, round(texts * new_tokens))
    reached, gpu = machine.reached, machine.gpu
    cache = work.cache_bytes(texts, context, machine.tensor)
    reading = (work.weight_bytes(tokens) / machine.tensor + cache) / (gpu.bandwidth * reached.bandwidth)
    peak = gpu.fp8_flops if work.is_fp8 and gpu.fp8_flops else gpu.flops
    computing = work.flops(tokens) / machine.tensor / (peak * reached.compute)
    return reading + computing + work.num_layers * (reached.layer_s + _reducing(work, machine, tokens))


def _reducing(work: Work, machine: GpuGroup, tokens: int) -> float:
    """Return a layer's seconds of communication: in a ring each GPU sends and receives nearly everything twice."""
    if machine.tensor == 1:
        return 0.0
    sent = 2 * (machine.tensor - 1) / machine.tensor * tokens * work.hidden_size * ITEM_BYTES
    return REDUCES * sent / machine.gpu.link
