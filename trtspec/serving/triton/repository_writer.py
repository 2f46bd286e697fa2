# SPDX-License-Identifier: Apache-2.0
"""Write the models of a Triton repository: hand-written models with the recipe's values in their configurations.

Paths in the configurations are relative to each model's directory, so an artifact can be moved:

    ARTIFACT/checkpoints/{target,draft}  ARTIFACT/tokenizer  ARTIFACT/model_repository/MODEL/{config.pbtxt,1/}

Triton sends all requests of a warm-up sample (`model_warmup`) at once, one sample after the other. It waits only until
a sample's first request is released, and only logs failures. Warm-up therefore suits models whose backend keeps a
request until it is answered (triton-inference-server/core:src/backend_model_instance.cc, WarmUp).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from trtspec.core.errors import TrtspecError
from trtspec.core.files import copy_tree
from trtspec.core.paths import model_repository_dir
from trtspec.serving.triton.nvidia_compat import MODEL, NVIDIA, PARAMETER, add_nvidia_tensors

if TYPE_CHECKING:
    from trtspec.serving.triton.config import ModelConfig


WARMUP = "warmup"  # Triton's name of the data directory in a model's directory
INT32 = 8  # value in Triton's DataType


@dataclass(frozen=True)
class WarmupSample:
    """A warm-up sample of `requests` equal requests with one-dimensional int32 inputs (without batch dimension)."""

    name: str
    requests: int
    inputs: Mapping[str, Sequence[int]]


def add_samples(config: ModelConfig, model: Path, samples: Sequence[WarmupSample]) -> None:
    """Add warm-up samples to a configuration and write their data below the model's directory."""
    for sample in samples:
        entry = config.model_warmup.add(name=sample.name, batch_size=sample.requests)
        for tensor, values in sample.inputs.items():
            file = f"{sample.name}-{tensor}.int32"
            entry.inputs[tensor].data_type = INT32
            entry.inputs[tensor].dims.append(len(values))
            entry.inputs[tensor].input_data_file = file
            path = model / WARMUP / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(struct.pack(f"<{len(values)}i", *values))


Parameters: TypeAlias = Mapping[str, str | int | float | bool | None]

CONFIG = "config.pbtxt"
PYTHON = "python"
ENSEMBLE = "ensemble"  # Triton's platform; clients read the parameter of an ensemble too
MAX_QUEUE_SIZE = "max_queue_size"


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """Settings of all models in a repository; a model without the respective field ignores a setting."""

    max_batch_size: int
    max_queue_size: int = 128
    max_queue_delay_us: int = 100
    streaming: bool = True
    warmup: bool = False
    defaults: str = "trtspec"  # "trtspec", NVIDIA or MODEL


def emit_model(
    out: Path,
    model: str,
    settings: ServingSettings,
    parameters: Parameters,
    *,
    source: Path | None = None,
    config_file: Path | None = None,
    samples: Sequence[WarmupSample] = (),
) -> None:
    """Write one model below `out` from the hand-written `source`, by default the shared model of that name.

    `config_file` is a part of the configuration that several models share, or all of it.
    `parameters` replace parameters of the source, or remove them if None. With `samples`, the server warms up the model
    before it is ready. Raises TrtspecError if the source is missing or invalid.
    """
    from trtspec.serving.triton.config import set_parameter  # needs protobuf, which a plan does without

    source = source or model_repository_dir() / model
    if not source.is_dir():
        raise TrtspecError("this model is missing from the installation", where=str(source), hint="reinstall trtspec")
    config = read_config(source, config_file)
    config.name = model
    _set_fields(config, settings)
    for key in [*config.parameters]:
        if (value := parameters.get(key, config.parameters[key].string_value)) is None:
            del config.parameters[key]
        else:
            set_parameter(config, key, value)
    if settings.defaults == NVIDIA:
        add_nvidia_tensors(config)
    elif settings.defaults == MODEL and (config.backend == PYTHON or config.platform == ENSEMBLE):
        set_parameter(config, PARAMETER, MODEL)
    add_samples(config, out / model, samples)
    write_model(out / model, source, config)


def read_config(source: Path, shared: Path | None = None) -> ModelConfig:
    """Return the configuration of a hand-written model: the file `shared` with the additions in `source`, if any.

    An ensemble's step without an input map gets all inputs under their names.
    """
    from trtspec.serving.triton.config import load_config

    config = load_config(shared or source / CONFIG)
    if shared and (source / CONFIG).is_file():
        config.MergeFrom(load_config(source / CONFIG))
    for step in config.ensemble_scheduling.step:
        if not step.input_map:
            step.input_map.update({each.name: each.name for each in config.input})
    return config


def write_model(model: Path, source: Path, config: ModelConfig) -> None:
    """Write a model's directory: `config`, and copies of the version directory and warm-up data of `source`."""
    from trtspec.serving.triton.config import render_config

    for part in ("1", WARMUP):
        if (source / part).is_dir():
            copy_tree(source / part, model / part, without="__pycache__")
    (model / CONFIG).write_text(render_config(config), encoding="utf-8")


def _set_fields(config: ModelConfig, settings: ServingSettings) -> None:
    """Apply the settings to the fields that the configuration already has."""
    from trtspec.serving.triton.config import set_parameter

    config.max_batch_size = settings.max_batch_size
    if config.HasField("model_transaction_policy"):
        config.model_transaction_policy.decoupled = settings.streaming
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        batching.max_queue_delay_microseconds = settings.max_queue_delay_us
        # A Python model that responds in `execute` relies on the server's queue.
        if batching.HasField("default_queue_policy") or (config.backend == PYTHON and not settings.streaming):
            batching.default_queue_policy.max_queue_size = settings.max_queue_size
    if MAX_QUEUE_SIZE in config.parameters:
        set_parameter(config, MAX_QUEUE_SIZE, settings.max_queue_size)
