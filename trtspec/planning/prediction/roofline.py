# SPDX-License-Identifier: Apache-2.0
"""How long a pass takes on a machine: reading and computing, one after the other, and what layers and all-reduces add.

A roofline (doi:10.1145/1498765.1498785) takes the longer of the two. Published batches are slower than that: their sum
is what fits them (docs/planning.md). Knows no speculation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trtspec.core.gpus import Gpu
from trtspec.planning.prediction.efficiency import Reached, reached_of
from trtspec.planning.prediction.flops import ITEM_BYTES, Work

REDUCES = 2  # of each layer: behind attention, and behind the MLP


@dataclass(frozen=True)
class Machine:
    """GPUs that share each layer of a model; pipeline stages run one after the other, so they change no time."""

    gpu: Gpu
    tensor: int = 1

    @cached_property
    def reached(self) -> Reached:
        """Return what engines reach on its GPUs."""
        return reached_of(self.gpu)


def pass_seconds(work: Work, machine: Machine, texts: int, new_tokens: float, context: int) -> float:
    """Return the seconds of a pass that adds `new_tokens` to each of `texts` texts of `context` tokens."""
    tokens = max(1, round(texts * new_tokens))
    reached, gpu = machine.reached, machine.gpu
    cache = work.cache_bytes(texts, context, machine.tensor)
    reading = (work.weight_bytes(tokens) / machine.tensor + cache) / (gpu.bandwidth * reached.bandwidth)
    peak = gpu.fp8_flops if work.is_fp8 and gpu.fp8_flops else gpu.flops
    computing = work.flops(tokens) / machine.tensor / (peak * reached.compute)
    return reading + computing + work.num_layers * (reached.layer_s + _reducing(work, machine, tokens))


def _reducing(work: Work, machine: Machine, tokens: int) -> float:
    """Return the seconds that a layer waits for the other GPUs: each sends and gets nearly all of it twice (a ring)."""
    if machine.tensor == 1:
        return 0.0
    sent = 2 * (machine.tensor - 1) / machine.tensor * tokens * work.hidden_size * ITEM_BYTES
    return REDUCES * sent / machine.gpu.link
