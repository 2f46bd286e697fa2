# SPDX-License-Identifier: Apache-2.0
"""Prompts run through a source checkpoint layer by layer, to find the largest magnitudes, which FP8 scales come from.

In memory are one layer's weights, the hidden states of all prompts, and what the prompts under way make of them: as
many as torch has threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Matched, layer_tensor
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.trtllm import EMBEDDING, FINAL_NORM, LM_HEAD
from trtspec.core.errors import CheckpointError
from trtspec.engine.calibration.layer_pass import (
    INPUTS,
    KEYS,
    VALUES,
    LayerPass,
    Peaks,
    embedding_scale,
    norm,
    rotation,
)
from trtspec.engine.calibration.notes import CalibrationNotes
from trtspec.engine.device import choose_device
from trtspec.engine.model.rope import under_windows
from trtspec.engine.model.tensors import TORCH_DTYPES, map_tensor

NOTHING: Mapping[str, float] = MappingProxyType({})


def measure(
    config: ModelConfig,
    matched: Matched,
    prompts: Sequence[Sequence[int]],
    *,
    plus: Mapping[str, float] = NOTHING,
    device: str = "auto",
    on_bytes: Callable[[int], None] = lambda count: None,
    notes: Path | None = None,
    stamp: str = "",
) -> dict[str, dict[str, float]]:
    """Return the largest magnitudes over `prompts` (token ids, one text each, none empty) by module name.

    Under "inputs" is what goes into every linear layer and the head, under "keys" and "values" what each attention puts
    into its cache, keys rotated. The same on a device whatever the number of threads. `plus` is what belongs to the
    norms' weights and is not in them, by target. `on_bytes` is told the source bytes done with since the last call.
    With the `notes` of an interrupted run with the same `stamp` it goes on there. Raises CheckpointError where a
    magnitude is not finite.
    """
    where = choose_device(device)
    with _one_thread_an_operation() as threads, ThreadPoolExecutor(threads if where.type == "cpu" else 1) as pool:
        calibration = _Calibration(config, matched, plus, where, on_bytes)
        noted = CalibrationNotes(notes, stamp, where)
        done, states = calibration.resume(noted) or (0, calibration.embed(prompts))
        length = max(map(len, prompts))
        turns = [rotation(each, length, where, calibration.dtype) for each in (config, under_windows(config))]
        for number in range(done, config.num_layers):
            calibration.pass_layer(number, states, turns[config.has_window(number)], pool)
            noted.save(number + 1, states, calibration.tables)
        calibration.finish(states)
    return calibration.tables


@contextmanager
def _one_thread_an_operation() -> Iterator[int]:
    """Yield how many threads there are to run prompts side by side, each of them alone at its operations.

    An operation on several threads is divided by their number, which moves its last bits.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


class _Calibration:
    """The source's weights, read when their turn comes, and the peaks so far in `tables`: by kind, then by module."""

    def __init__(
        self,
        config: ModelConfig,
        matched: Matched,
        plus: Mapping[str, float],
        device: torch.device,
        on_bytes: Callable[[int], None],
    ) -> None:
        self.config, self.sources, self.plus = config, matched.sources, plus
        self.device, self.on_bytes = device, on_bytes
        self.dtype = TORCH_DTYPES[self.sources[EMBEDDING][0].dtype]
        self.tables: dict[str, dict[str, float]] = {INPUTS: {}, KEYS: {}, VALUES: {}}

    def resume(self, notes: CalibrationNotes) -> tuple[int, list[Tensor]] | None:
        """Return how many layers are done and the states behind them, the peaks so far taken; None without notes."""
        noted = notes.load()
        if noted is None:
            return None
        done, states, self.tables = noted
        layers = chain(*(self._layer(number).values() for number in range(done)))
        self.on_bytes(sum(source.nbytes for source in chain(self.sources[EMBEDDING], *layers)))
        return done, states

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the hidden states [1, tokens, hidden_size] that go into the first layer; touches only rows in use."""
        (source,) = self.sources[EMBEDDING]
        table = map_tensor(source)
        states = [F.embedding(torch.tensor([prompt]), table).to(self.device) for prompt in prompts]
        if self.config.scaled_embedding:
            states = [hidden * embedding_scale(self.config, self.dtype) for hidden in states]
        self.on_bytes(source.nbytes)
        return states

    def pass_layer(self, number: int, states: list[Tensor], turns: tuple[Tensor, Tensor], pool: Executor) -> None:
        """Replace each of `states` by what layer `number` makes of it."""
        prefix, sources = layer_tensor(number, ""), self._layer(number)
        weights = {name: [self._load(source) for source in joined(of)] for name, of in sources.items()}
        plus = self.plus.get(f"{prefix}input_layernorm.weight", 0.0)
        nbytes, peaks = sum(source.nbytes for source in chain(*sources.values())), Peaks()

        def run(hidden: Tensor) -> tuple[Tensor, Peaks]:
            layer_pass = LayerPass(self.config, prefix, weights, turns, self.config.has_window(number), plus)
            with torch.inference_mode():  # which each thread turns on for itself
                return layer_pass.run(hidden), layer_pass.peaks

        for done, (hidden, found) in enumerate(pool.map(run, states)):
            states[done] = hidden
            peaks.merge(found)
            # a layer's bytes are told as its prompts get done, which is what takes the time
            self.on_bytes(nbytes * (done + 1) // len(states) - nbytes * done // len(states))
        self._take(peaks)

    def finish(self, states: list[Tensor]) -> None:
        """Measure what goes into the head, whose weights are not needed for that."""
        (source,), (head,) = self.sources[FINAL_NORM], self.sources[LM_HEAD]
        weight, plus, peaks = self._load(source), self.plus.get(FINAL_NORM, 0.0), Peaks()
        for hidden in states:
            normed = norm(hidden, weight, self.config.norm_epsilon, plus)
            peaks.see(INPUTS, LM_HEAD.removesuffix(".weight"), normed)
        self._take(peaks)
        self.on_bytes(source.nbytes + (0 if self.config.tied_embeddings else head.nbytes))

    def _layer(self, number: int) -> dict[str, Sequence[TensorInfo]]:
        prefix = layer_tensor(number, "")
        return {name.removeprefix(prefix): of for name, of in self.sources.items() if name.startswith(prefix)}

    def _load(self, source: TensorInfo) -> Tensor:
        return map_tensor(source).to(self.device, self.dtype)

    def _take(self, peaks: Peaks) -> None:
        """Put peaks into the tables; raises for the first of them that is not finite."""
        for (kind, module), peak in peaks.found.items():
            value = peak.item()
            if not math.isfinite(value):
                message = f"the {kind} of {module} are not finite"
                hint = f"weights up to there are damaged, or too large for {str(self.dtype).removeprefix('torch.')}"
                raise CheckpointError(message, where=str(self.sources[EMBEDDING][0].file.parent), hint=hint)
            self.tables[kind][module] = value


def joined(sources: Sequence[TensorInfo]) -> list[TensorInfo]:
    """Return the tensors that parts are rows of, in which a source's own products are computed, or the parts."""
    first, *others = sorted(sources, key=lambda source: source.offset)
    if not others or any(other.name != first.name for other in others):
        return list(sources)
    rows, nbytes = (sum(column) for column in zip(*((one.shape[0], one.nbytes) for one in sources), strict=True))
    return [replace(first, shape=(rows, *first.shape[1:]), nbytes=nbytes)]
