# SPDX-License-Identifier: Apache-2.0
"""Prompts run through a source checkpoint layer by layer, to find the largest magnitudes, which FP8 scales come from.

One layer's weights are in memory at a time, beside the hidden states of all prompts. The operations, their order and
their dtypes are those of transformers, so that the magnitudes are what a quantizer sees that runs the model itself;
`decoder` computes the same in another order, which is faster and rounds elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.rules import Matched, layer_tensor
from trtspec.checkpoint.safetensors import TensorInfo
from trtspec.checkpoint.trtllm import EMBEDDING, FINAL_NORM, LM_HEAD
from trtspec.engines.embedded.device import choose_device
from trtspec.engines.embedded.moe import mix_experts
from trtspec.engines.embedded.rope import attention_factor, frequencies
from trtspec.engines.embedded.tensors import TORCH_DTYPES, map_tensor
from trtspec.errors import CheckpointError

INPUTS, KEYS, VALUES = "inputs", "keys", "values"

Peaks = dict[tuple[str, str], Tensor]
"""The largest magnitude of what (INPUTS, KEYS or VALUES) at which module."""


def measure(
    config: ModelConfig,
    matched: Matched,
    prompts: Sequence[Sequence[int]],
    *,
    device: str = "auto",
    on_bytes: Callable[[int], None] = lambda count: None,
) -> dict[str, dict[str, float]]:
    """Return the largest magnitudes over `prompts` (token ids, one text each, none empty) by module name.

    Under "inputs" is what goes into every linear layer and the head, under "keys" and "values" what each attention puts
    into its cache, keys rotated. The same on a device whatever the number of threads. `on_bytes` is told the source
    bytes done with since the last call. Raises CheckpointError where a magnitude is not finite.
    """
    where = choose_device(device)
    with _one_thread_an_operation() as threads, ThreadPoolExecutor(threads if where.type == "cpu" else 1) as pool:
        calibration = _Calibration(config, matched, where, on_bytes)
        states = calibration.embed(prompts)
        for number in range(config.num_layers):
            calibration.pass_layer(number, states, pool)
        calibration.finish(states)
    return calibration.tables()


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
    """The source's weights, read when their turn comes, and the peaks so far."""

    def __init__(
        self, config: ModelConfig, matched: Matched, device: torch.device, on_bytes: Callable[[int], None]
    ) -> None:
        self.config, self.sources = config, matched.parts
        self.device, self.on_bytes = device, on_bytes
        self.dtype = TORCH_DTYPES[self.sources[EMBEDDING][0].dtype]
        self.peaks: Peaks = {}

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the hidden states [1, tokens, hidden_size] that go into the first layer; reads only rows in use."""
        (source,) = self.sources[EMBEDDING]
        table = map_tensor(source)
        self.rotation = _rotation(self.config, max(map(len, prompts)), self.device, self.dtype)
        states = [F.embedding(torch.tensor([prompt]), table).to(self.device) for prompt in prompts]
        self.on_bytes(source.nbytes)
        return states

    def pass_layer(self, number: int, states: list[Tensor], pool: Executor) -> None:
        """Replace each of `states` by what layer `number` makes of it."""
        prefix = layer_tensor(number, "")
        sources = {name.removeprefix(prefix): of for name, of in self.sources.items() if name.startswith(prefix)}
        nbytes = sum(source.nbytes for source in chain(*sources.values()))
        weights = {name: [self._load(source) for source in of] for name, of in sources.items()}

        def run(hidden: Tensor) -> tuple[Tensor, Peaks]:
            layer_pass = LayerPass(self.config, prefix, weights, self.rotation)
            with torch.inference_mode():  # which each thread turns on for itself
                return layer_pass.run(hidden), layer_pass.peaks

        for done, (hidden, peaks) in enumerate(pool.map(run, states)):
            states[done] = hidden
            self._merge(peaks)
            # a layer's bytes are told as its prompts get done, which is what takes the time
            self.on_bytes(nbytes * (done + 1) // len(states) - nbytes * done // len(states))
        self._check_finite()

    def finish(self, states: list[Tensor]) -> None:
        """Measure what goes into the head, whose weights are not needed for that."""
        (source,) = self.sources[FINAL_NORM]
        weight = self._load(source)
        module = LM_HEAD.removesuffix(".weight")
        for hidden in states:
            self._merge({(INPUTS, module): _amax(_norm(hidden, weight, self.config.norm_epsilon))})
        self._check_finite()
        (head,) = self.sources[LM_HEAD]
        self.on_bytes(source.nbytes + (0 if self.config.tied_embeddings else head.nbytes))

    def tables(self) -> dict[str, dict[str, float]]:
        """Return the peaks by kind and module."""
        tables: dict[str, dict[str, float]] = {INPUTS: {}, KEYS: {}, VALUES: {}}
        for (kind, module), peak in self.peaks.items():
            tables[kind][module] = peak.item()
        return tables

    def _load(self, source: TensorInfo) -> Tensor:
        return map_tensor(source).to(self.device, self.dtype)

    def _merge(self, peaks: Peaks) -> None:
        for at, peak in peaks.items():
            self.peaks[at] = torch.maximum(self.peaks.get(at, peak), peak)

    def _check_finite(self) -> None:
        """Raise for the first peak, in the order of the computation, that is not finite."""
        for (kind, module), peak in self.peaks.items():
            if not peak.isfinite():
                message = f"the {kind} of {module} are not finite"
                hint = f"weights up to there are damaged, or too large for {str(self.dtype).removeprefix('torch.')}"
                raise CheckpointError(message, where=str(self.sources[EMBEDDING][0].file.parent), hint=hint)


@dataclass
class LayerPass:
    """One prompt's way through one layer, and the peaks met on it.

    `weights` are by the target's name in the layer, as the source's parts: three matrices for "attention.qkv.weight".
    `rotation` is cosines and sines, [positions, head_size] each, of at least as many positions as the prompt has.
    """

    config: ModelConfig
    prefix: str
    weights: dict[str, list[Tensor]]
    rotation: tuple[Tensor, Tensor]
    peaks: Peaks = field(default_factory=dict)

    def run(self, hidden: Tensor) -> Tensor:
        """Return what the layer makes of hidden states [1, tokens, hidden_size]."""
        hidden = hidden + self._attend(self._norm(hidden, "input_layernorm"))
        mlp = self._mix if self.config.num_experts else self._mlp
        return hidden + mlp(self._norm(hidden, "post_layernorm"))

    def _attend(self, hidden: Tensor) -> Tensor:
        config, width = self.config, hidden.shape[1]
        queries, keys, values = (
            rows.view(1, width, -1, config.head_size) for rows in self._linear("attention.qkv", hidden)
        )
        if config.qk_norm:
            queries = self._norm(queries, "attention.q_layernorm")
            keys = self._norm(keys, "attention.k_layernorm")
        cosines, sines = (table[:width] for table in self.rotation)
        queries = _rotate(queries.transpose(1, 2), cosines, sines)
        keys, values = _rotate(keys.transpose(1, 2), cosines, sines), values.transpose(1, 2)
        self._see(KEYS, "attention", keys)
        self._see(VALUES, "attention", values)
        mixed = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            is_causal=True,
            scale=config.head_size**-0.5,
            enable_gqa=config.num_heads > config.num_kv_heads,
        )
        return self._linear("attention.dense", mixed.transpose(1, 2).reshape(1, width, -1))[0]

    def _mlp(self, hidden: Tensor) -> Tensor:
        (activated,) = self._linear("mlp.fc", hidden)
        (linear,) = self._linear("mlp.gate", hidden)
        return self._linear("mlp.proj", F.silu(activated) * linear)[0]

    def _mix(self, hidden: Tensor) -> Tensor:
        (router,) = self.weights["mlp.router.weight"]
        mixed = mix_experts(hidden[0], router, self.config.experts_per_token, self._expert)
        return mixed.unsqueeze(0)

    def _expert(self, number: int, rows: Tensor) -> Tensor:
        self._see(INPUTS, "mlp.fc", rows)
        linear, activated = self.weights["mlp.fc.weight"][2 * number : 2 * number + 2]
        inner = F.silu(F.linear(rows, activated)) * F.linear(rows, linear)
        self._see(INPUTS, "mlp.proj", inner)
        return F.linear(inner, self.weights["mlp.proj.weight"][number])

    def _linear(self, module: str, rows: Tensor) -> list[Tensor]:
        """Return what each of the module's matrices makes of `rows`."""
        self._see(INPUTS, module, rows)
        matrices = self.weights[f"{module}.weight"]
        biases = self.weights.get(f"{module}.bias", [None] * len(matrices))
        return [F.linear(rows, matrix, bias) for matrix, bias in zip(matrices, biases, strict=True)]

    def _norm(self, rows: Tensor, module: str) -> Tensor:
        return _norm(rows, self.weights[f"{module}.weight"][0], self.config.norm_epsilon)

    def _see(self, kind: str, module: str, rows: Tensor) -> None:
        at, peak = (kind, self.prefix + module), _amax(rows)
        self.peaks[at] = torch.maximum(self.peaks.get(at, peak), peak)


def _amax(rows: Tensor) -> Tensor:
    return rows.abs().amax()


def _norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    exact = rows.float()
    exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * exact.to(rows.dtype)


def _rotation(config: ModelConfig, width: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for positions 0 to `width` - 1, [width, head_size] each: both halves of a head alike."""
    angles = torch.outer(torch.arange(width, dtype=torch.float32), frequencies(config)).repeat(1, 2).to(device)
    factor = attention_factor(config)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def _rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return heads * cosines + torch.cat((-second, first), -1) * sines
