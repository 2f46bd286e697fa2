# SPDX-License-Identifier: Apache-2.0
"""Calibration for FP8 scales: runs prompts through a source checkpoint layer by layer and records amax values.

Memory use is one layer's weights, the hidden states of all prompts, and the activations of as many prompts as torch has
threads. The hidden states between two layers and the peaks so far are saved from time to time, so that a killed process
loses only the work since the last save.
"""

from __future__ import annotations

import math
import time
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
from trtspec.engine.device import TORCH_DTYPES, choose_device, load_resume_state, map_tensor, save_resume_state
from trtspec.engine.model.layer_pass import (
    INPUTS,
    KEYS,
    VALUES,
    AmaxObserver,
    LayerPass,
    embedding_scale,
    norm,
    rotation,
)
from trtspec.engine.model.positions import sliding_window_config

SAVE_EVERY_S = 60.0  # the states of many prompts are gigabytes

Tables = dict[str, dict[str, float]]
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
) -> Tables:
    """Return the largest magnitudes over `prompts` (token ids, one text each, none empty) by kind and module name.

    "inputs" has the inputs of every linear layer and the head; "keys" (rotated) and "values" have the KV-cache entries
    of each attention module. On one device the result does not depend on the number of threads. `plus` maps the names
    of norm weights to a value that is added to the stored weight. `on_bytes` gets the number of source bytes processed
    since the last call. With the `notes` of an interrupted run with the same `stamp`, calibration resumes. Raises
    CheckpointError if a magnitude is not finite.
    """
    where = choose_device(device)
    with _one_thread_an_operation() as threads, ThreadPoolExecutor(threads if where.type == "cpu" else 1) as pool:
        calibration = _Calibration(config, matched, plus, where, on_bytes, notes, stamp)
        done, states = calibration.resume() or (0, calibration.embed(prompts))
        length = max(map(len, prompts))
        turns = [rotation(each, length, where, calibration.dtype) for each in (config, sliding_window_config(config))]
        for number in range(done, config.num_layers):
            calibration.pass_layer(number, states, turns[config.has_window(number)], pool)
            calibration.save(number + 1, states)
        calibration.finish(states)
    return calibration.tables


@contextmanager
def _one_thread_an_operation() -> Iterator[int]:
    """Run each torch operation on one thread; yield the number of threads for running prompts in parallel.

    torch splits an operation by the number of threads, which would change its last bits.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


class _Calibration:
    """A calibration run that reads the weights layer by layer and collects peaks in `tables`, by kind and module.

    `notes` is the file of the saved state, or None to save nothing. `stamp` identifies the measurement and its inputs;
    a state with another stamp is ignored.
    """

    def __init__(
        self,
        config: ModelConfig,
        matched: Matched,
        plus: Mapping[str, float],
        device: torch.device,
        on_bytes: Callable[[int], None],
        notes: Path | None,
        stamp: str,
    ) -> None:
        self.config, self.sources, self.plus = config, matched.sources, plus
        self.device, self.on_bytes = device, on_bytes
        self.dtype = TORCH_DTYPES[self.sources[EMBEDDING][0].dtype]
        self.tables: Tables = {INPUTS: {}, KEYS: {}, VALUES: {}}
        on_cuda = device.type == "cuda"
        machine = torch.cuda.get_device_name(device) if on_cuda else torch.backends.cpu.get_cpu_capability()
        self._stamp = f"{stamp} {torch.__version__} {device.type} {machine}"
        self._notes, self._saved_at = notes, time.monotonic()

    def resume(self) -> tuple[int, list[Tensor]] | None:
        """Restore `tables` and return (finished layers, hidden states [1, tokens, hidden_size] per prompt), or None."""
        noted = load_resume_state(self._notes, self.device) if self._notes else None
        if noted is None or noted.get("stamp") != self._stamp:
            return None
        self.tables, done = noted["tables"], noted["done"]
        layers = chain(*(self._layer(number).values() for number in range(done)))
        self.on_bytes(sum(source.nbytes for source in chain(self.sources[EMBEDDING], *layers)))
        return done, noted["states"]

    def save(self, done: int, states: list[Tensor]) -> None:
        """Save the state after `done` layers, unless the last save was less than SAVE_EVERY_S ago."""
        if self._notes is None or time.monotonic() - self._saved_at < SAVE_EVERY_S:
            return
        state = {"stamp": self._stamp, "done": done, "states": states, "tables": self.tables}
        save_resume_state(self._notes, state)
        self._saved_at = time.monotonic()

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the embeddings [1, tokens, hidden_size] of each prompt, reading only the rows in use."""
        (source,) = self.sources[EMBEDDING]
        table = map_tensor(source)
        states = [F.embedding(torch.tensor([prompt]), table).to(self.device) for prompt in prompts]
        scale = embedding_scale(self.config, self.dtype, self.device)
        states = states if scale is None else [hidden * scale for hidden in states]
        self.on_bytes(source.nbytes)
        return states

    def pass_layer(self, number: int, states: list[Tensor], turns: tuple[Tensor, Tensor], pool: Executor) -> None:
        """Replace each of `states` by the output of layer `number` for it, running prompts in parallel on `pool`."""
        prefix, sources = layer_tensor(number, ""), self._layer(number)
        weights = {name: [self._load(source) for source in merge_parts(of)] for name, of in sources.items()}
        plus = self.plus.get(f"{prefix}input_layernorm.weight", 0.0)
        nbytes, peaks = sum(source.nbytes for source in chain(*sources.values())), AmaxObserver()

        def run(hidden: Tensor) -> tuple[Tensor, AmaxObserver]:
            layer_pass = LayerPass(self.config, prefix, weights, turns, self.config.has_window(number), plus)
            with torch.inference_mode():  # thread-local
                return layer_pass.run(hidden), layer_pass.peaks

        for done, (hidden, found) in enumerate(pool.map(run, states)):
            states[done] = hidden
            peaks.merge(found)
            # a layer's bytes are reported as its prompts finish, because they take the time
            self.on_bytes(nbytes * (done + 1) // len(states) - nbytes * done // len(states))
        self._take(peaks)

    def finish(self, states: list[Tensor]) -> None:
        """Measure the input of the LM head; the head's weights are not needed."""
        (source,), (head,) = self.sources[FINAL_NORM], self.sources[LM_HEAD]
        weight, plus, peaks = self._load(source), self.plus.get(FINAL_NORM, 0.0), AmaxObserver()
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

    def _take(self, peaks: AmaxObserver) -> None:
        """Add peaks to the tables; raise CheckpointError for the first one that is not finite."""
        for (kind, module), peak in peaks.found.items():
            value = peak.item()
            if not math.isfinite(value):
                message = f"the {kind} of {module} are not finite"
                dtype = str(self.dtype).removeprefix("torch.")
                hint = f"weights up to this module are corrupt or too large for {dtype}"
                raise CheckpointError(message, where=str(self.sources[EMBEDDING][0].file.parent), hint=hint)
            self.tables[kind][module] = value


def merge_parts(sources: Sequence[TensorInfo]) -> list[TensorInfo]:
    """Join row ranges of one stored tensor to that tensor; return separately stored tensors unchanged."""
    first, *others = sorted(sources, key=lambda source: source.offset)
    if not others or any(other.name != first.name for other in others):
        return list(sources)
    rows, nbytes = (sum(column) for column in zip(*((one.shape[0], one.nbytes) for one in sources), strict=True))
    return [replace(first, shape=(rows, *first.shape[1:]), nbytes=nbytes)]
