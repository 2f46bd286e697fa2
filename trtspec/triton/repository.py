# SPDX-License-Identifier: Apache-2.0
"""Emit the Triton repository of an artifact: the hand-written models, with this recipe's values set in their fields.

Paths inside are relative to each model's directory, so that an artifact can be moved:

    ARTIFACT/checkpoints/{target,draft}  ARTIFACT/tokenizer  ARTIFACT/model_repository/MODEL/{config.pbtxt,1/}
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.errors import TrtspecError
from trtspec.paths import model_repository_dir

if TYPE_CHECKING:
    from trtspec.triton.config import ModelConfig

MODELS = ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing")
CONFIG = "config.pbtxt"


@dataclass(frozen=True)
class RepositorySettings:
    """What differs from one repository to the next; lengths are in tokens, the method's `options` are JSON."""

    method: str
    draft_len: int
    options: str
    has_draft: bool
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_queue_size: int = 128
    max_queue_delay_us: int = 100
    streaming: bool = True
    device: str = "auto"
    dtype: str = "auto"
    target_path: str = "../../checkpoints/target"
    draft_path: str = "../../checkpoints/draft"
    tokenizer_path: str = "../../tokenizer"


def emit_repository(out: Path, settings: RepositorySettings) -> None:
    """Write the models below `out`, a directory that is ours to fill."""
    from trtspec.triton.config import load_config, render_config, set_parameter  # protobuf: a plan does without

    for model in MODELS:
        source = model_repository_dir() / model
        if not source.is_dir():
            raise TrtspecError("the installation lacks this model", where=str(source), hint="install trtspec again")
        shutil.copytree(source / "1", out / model / "1", ignore=shutil.ignore_patterns("__pycache__"))
        config = load_config(source / CONFIG)
        _set_fields(config, settings)
        for key, value in _parameters(settings).items():
            if key in config.parameters:
                set_parameter(config, key, value)
        (out / model / CONFIG).write_text(render_config(config), encoding="utf-8")


def _set_fields(config: ModelConfig, settings: RepositorySettings) -> None:
    """Set the fields that the model of this name has."""
    config.max_batch_size = settings.max_batch_size
    if config.HasField("model_transaction_policy"):
        config.model_transaction_policy.decoupled = settings.streaming
    if config.HasField("dynamic_batching"):
        config.dynamic_batching.max_queue_delay_microseconds = settings.max_queue_delay_us
        config.dynamic_batching.default_queue_policy.max_queue_size = settings.max_queue_size


def _parameters(settings: RepositorySettings) -> dict[str, str | int]:
    """Return all parameters; each model sets those that it has."""
    return {
        "tokenizer_dir": settings.tokenizer_path,
        "gpt_model_path": settings.target_path,
        "draft_model_path": settings.draft_path if settings.has_draft else "",
        "speculation_method": settings.method,
        "draft_len": settings.draft_len,
        "speculation_options": settings.options,
        "max_input_len": settings.max_input_len,
        "max_seq_len": settings.max_seq_len,
        "max_num_tokens": settings.max_num_tokens,
        "max_queue_size": settings.max_queue_size,
        "device": settings.device,
        "dtype": settings.dtype,
    }
