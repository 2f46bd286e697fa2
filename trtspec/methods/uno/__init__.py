# SPDX-License-Identifier: Apache-2.0
"""UNO: the target itself drafts in one pass, with a LoRA adapter that was trained to predict several tokens ahead.

The pass reads the last token and random tokens behind it. The last token's row uses the target's own weights and gives
the next token. The other rows use the adapter and give drafts, which a second pass of the target verifies
(sgl-project/sglang:python/sglang/srt/speculative/uno_worker_v2.py@v0.5.23). Engines that load the unchanged checkpoints
run it. The adapter is a directory in the format of PEFT, without a config.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from trtspec.checkpoints.safe_json import inside
from trtspec.checkpoints.safetensors import read_header
from trtspec.checkpoints.source import ADAPTER, MAX_CONFIG_BYTES, read_json
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.methods.base import DraftShape, Method, Options
from trtspec.recipe.schema import refuse

OPTION = "speculation.options.adapter"
WEIGHTS = "adapter_model.safetensors"
TRAINED = "name the directory of an adapter that was trained for UNO with this target"
MAX_NAMES = 1000


class UnoOptions(Options):
    """The adapter, and the shape of the draft: a chain by default, or a tree with `top_k` and `nodes`."""

    adapter: str | None = Field(
        default=None, min_length=1, description="Directory of the LoRA adapter, with adapter_config.json; required"
    )
    top_k: int | None = Field(
        default=None, ge=2, le=64, description="Width of the tree: candidates for each position of the draft"
    )
    nodes: int | None = Field(
        default=None, ge=1, le=127, validate_default=True, description="Number of the tree's tokens that are verified"
    )

    @field_validator("nodes")
    @classmethod
    def _go_together(cls, nodes: int | None, info: ValidationInfo) -> int | None:
        if "top_k" in info.data and (info.data["top_k"] is None) != (nodes is None):
            raise refuse("bad-value", "a tree requires both top_k and nodes; set both, or none for a chain")
        return nodes


def adapter_files(options: UnoOptions) -> list[Path]:
    """Return the files of the adapter that engines read: its configuration and its weights."""
    return [Path(options.adapter) / name for name in (ADAPTER, WEIGHTS)] if options.adapter else []


def read_adapter(root: Path) -> dict[str, Any]:
    """Return adapter_config.json of a directory, whose weights are complete according to their header.

    Raises CheckpointError for files that are missing, too large, damaged, or links to places outside `root`.
    """
    if not root.is_dir():
        raise CheckpointError(f"no such directory: {root}", hint=TRAINED)
    config = inside(root, ADAPTER)
    if not config.is_file():
        raise CheckpointError(f"the directory lacks {ADAPTER}", where=str(root), hint=TRAINED)
    weights = inside(root, WEIGHTS)
    if not weights.is_file():
        hint = "save the adapter with safetensors: pickles are not copied"
        raise CheckpointError(f"the adapter lacks {WEIGHTS}", where=str(root), hint=hint)
    read_header(weights)
    return read_json(config, MAX_CONFIG_BYTES)


def check_adapter(config: Mapping[str, Any], target_names: set[str]) -> Iterator[Diagnostic]:
    """Yield the problems of an adapter_config.json that do not depend on the engine.

    `target_names` are the known names of the target; another base model is a warning, since copies have other names.
    """
    kind, rank, alpha = config.get("peft_type"), config.get("r"), config.get("lora_alpha")
    if kind != "LORA":
        yield Diagnostic(OPTION, "kind", f"its peft_type is {str(kind)[:40]}, not LORA", TRAINED)
        return
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        message = f"{ADAPTER} must contain a positive rank r and a number lora_alpha"
        yield Diagnostic(OPTION, "rank", message, "save the adapter again with PEFT")
    if not _are_modules(config.get("target_modules")):
        message = f"target_modules of {ADAPTER} must be a list of names, all-linear or all"
        yield Diagnostic(OPTION, "modules", message, "save the adapter again, with the names of its modules")
    base = str(config.get("base_model_name_or_path") or "")
    if base and _last_part(base) not in {_last_part(name) for name in target_names}:
        message = f"the adapter was trained with {base[:200]}, which does not have the target's name"
        hint = "with another target its drafts are rarely accepted"
        yield Diagnostic(OPTION, "base-model", message, hint, severity="warning")


def _are_modules(modules: object) -> bool:
    """Return whether target_modules names modules; PEFT also has regular expressions, which engines do not read."""
    if isinstance(modules, str):
        return modules in ("all", "all-linear")
    if not isinstance(modules, list) or not 0 < len(modules) <= MAX_NAMES:
        return False
    return all(isinstance(name, str) and name for name in modules)


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


METHOD = Method(
    summary="the target drafts a chain or a tree in one pass, with a LoRA adapter trained for it",
    drafts_with="nothing",
    draft_passes="one",
    draft_lens=range(1, 33),
    default_draft_len=4,
    options=UnoOptions,
    draft_shape=lambda options, draft_len: DraftShape(draft_len, max(draft_len, options.nodes or 0)),
)
