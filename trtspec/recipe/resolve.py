# SPDX-License-Identifier: Apache-2.0
"""Resolved recipes, which have a value for every setting: the input of the plan and a part of the manifest.

All functions are pure: facts about checkpoints, machines and methods are parameters. No value is None: a string that
does not apply is "", a disabled limit is 0, and `drafts` is a tuple of zero or one models. `find_unsafe_overrides`
lists the keys that are less strict than their defaults.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, field_validator

from trtspec.recipe.load import change_paths
from trtspec.recipe.schema import (
    Calibration,
    Engine,
    EngineBuild,
    Gates,
    ModelSource,
    Placement,
    Quantization,
    Recipe,
    Rollout,
    Serving,
    Speculation,
    StrictModel,
)

Resolved = TypeVar("Resolved", bound=StrictModel)
LEAST_MAX_NUM_TOKENS = 8192
MOST_MAX_INPUT_LEN = 1024  # upper bound of the default in tokens


class ResolvedCalibration(Calibration):
    """Calibration settings; `prompts` is an absolute path, or "" if not set."""

    prompts: str


class ResolvedQuantization(Quantization):
    """Quantization settings with resolved calibration settings."""

    calibration: ResolvedCalibration


class ResolvedModel(ModelSource):
    """A target or draft model; `revision` is "" for a directory, whose files are recorded instead.

    `dtype` is "source" if the engine reads a checkpoint of an unknown family in its stored dtype.
    """

    revision: str
    dtype: Literal["float16", "bfloat16", "float32", "source"]  # type: ignore[assignment]  # recipes cannot set "source"
    quantization: ResolvedQuantization


class ResolvedSpeculation(Speculation):
    """Speculation settings; `draft_len` is the maximum number of consecutive drafted tokens, 0 for method none.

    `acceptance` is the rule for accepting drafts; with any rule but "exact" the output differs from the target's.
    `drafts` has the draft model instead of `draft`. Without a threshold `acceptance_rate_threshold` and
    `acceptance_window` are 0.
    """

    draft_len: int
    acceptance: Literal["exact", "typical"]
    draft: None = Field(default=None, exclude=True)
    drafts: tuple[ResolvedModel, ...]
    options: dict[str, Any]
    acceptance_rate_threshold: float = 0.0
    acceptance_window: int = 0


class ResolvedEngineBuild(EngineBuild):
    """Settings of trtllm-build; `image` and `timing_cache` (an absolute path) are "" if not set."""

    image: str
    timing_cache: str


class ResolvedEngine(Engine):
    """Engine settings; `gpu` and `device` are "" if not set, `version` is "" for the engine that comes with trtspec."""

    backend: str
    backend_why: str
    version: str
    device: Literal["", "gpu", "cpu"] = ""  # type: ignore[assignment]  # never None
    gpu: str
    build: ResolvedEngineBuild
    max_input_len: int
    max_num_tokens: int

    @field_validator("backend")
    @classmethod
    def _is_chosen(cls, backend: str) -> str:
        if backend == "auto":
            raise ValueError("a resolved recipe names its backend")
        return backend


class ResolvedPlacement(Placement):
    """Assignment of models to GPUs; `draft` is empty without a draft model."""

    draft: list[int]


class ResolvedServing(Serving):
    """Serving settings in which each model is assigned to GPUs."""

    placement: ResolvedPlacement


class ResolvedGates(Gates):
    """Gates; a minimum of 0 disables a gate, and `prompts` is "" if not set."""

    min_acceptance: float
    min_speedup: float
    prompts: str


class ResolvedRecipe(StrictModel):
    """All settings of a recipe with defaults applied, as the plan and the manifest need them."""

    name: str
    target: ResolvedModel
    speculation: ResolvedSpeculation
    engine: ResolvedEngine
    serving: ResolvedServing
    plugins: list[str]
    gates: ResolvedGates

    @property
    def models(self) -> dict[str, ResolvedModel]:
        """Return the models by role: "target" and, if there is one, "draft"."""
        return dict(zip(("target", "draft"), (self.target, *self.speculation.drafts), strict=False))

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON values with sorted keys; the key `draft` is absent without a draft model."""
        document = self.model_dump(mode="json")
        for draft in document["speculation"].pop("drafts"):
            document["speculation"]["draft"] = draft
        ordered: dict[str, Any] = json.loads(json.dumps(document, sort_keys=True))
        return ordered

    def without_directories(self) -> ResolvedRecipe:
        """Return a copy in which each absolute path is replaced with its last component (./NAME)."""
        document = self.as_dict()
        change_paths(document, lambda path: f"./{os.path.basename(path)}")
        return self.from_dict(document)

    @classmethod
    def from_dict(cls, document: Any) -> ResolvedRecipe:
        """Parse the output of `as_dict`; raises pydantic's ValidationError for anything else."""
        if isinstance(document, dict) and isinstance(speculation := document.get("speculation"), dict):
            drafts = [speculation["draft"]] if "draft" in speculation else []
            rest = {key: value for key, value in speculation.items() if key != "draft"}
            document = document | {"speculation": rest | {"drafts": drafts}}
        return cls.model_validate_json(json.dumps(document))


def resolve_max_input_len(engine: Engine) -> int:
    """Return the maximum prompt length in tokens: the recipe's, or the default."""
    return engine.max_input_len or min(MOST_MAX_INPUT_LEN, engine.max_seq_len)


def resolve_max_num_tokens(engine: Engine, max_draft_tokens: int) -> int:
    """Return the maximum tokens per step over all requests; the default admits a full batch of verification."""
    return engine.max_num_tokens or max(LEAST_MAX_NUM_TOKENS, engine.max_batch_size * (max_draft_tokens + 1))


def resolve_recipe(
    recipe: Recipe,
    *,
    target_dtype: str,
    draft_dtype: str | None,
    backend: str,
    backend_why: str,
    version: str,
    draft_len: int,
    max_draft_tokens: int,
    options: dict[str, Any],
    acceptance: str,
    has_draft_model: bool,
) -> ResolvedRecipe:
    """Return the recipe with all defaults applied, from values that depend on its checkpoints, backend and method.

    The dtypes are the stored dtypes of the checkpoints. `options` are the method's options including defaults,
    `max_draft_tokens` is the number of tokens drafted per step, and `version` is the backend's. `has_draft_model` is
    False for a draft head, which is stored with the target.
    """
    asked, draft, engine = recipe.speculation, recipe.speculation.draft, recipe.engine
    return ResolvedRecipe(
        name=recipe.name,
        target=_model(recipe.target, target_dtype),
        speculation=_completed(
            ResolvedSpeculation,
            asked,
            draft_len=draft_len,
            acceptance=acceptance,
            draft=None,
            drafts=(_model(draft, draft_dtype),) if draft else (),
            options=options,
        ),
        engine=_completed(
            ResolvedEngine,
            engine,
            backend=backend,
            backend_why=backend_why,
            version=version,
            device=engine.device or "",
            build=_completed(ResolvedEngineBuild, engine.build),
            max_input_len=resolve_max_input_len(engine),
            max_num_tokens=resolve_max_num_tokens(engine, max_draft_tokens),
        ),
        serving=_completed(ResolvedServing, recipe.serving, placement=_placement(recipe, has_draft_model)),
        plugins=recipe.plugins,
        gates=_completed(ResolvedGates, recipe.gates),
    )


def _completed(kind: type[Resolved], given: StrictModel, **decided: Any) -> Resolved:
    """Convert a recipe section to `kind` with the `decided` values; unset strings become "" and unset numbers 0."""
    values = {name: value for name, value in dict(given).items() if name in kind.model_fields} | decided
    for name, field in kind.model_fields.items():
        if values.get(name) is None and field.annotation in (str, int, float):
            values[name] = field.annotation()
    return kind.model_validate(values)


def _model(source: ModelSource, stored_dtype: str | None) -> ResolvedModel:
    quantization = source.quantization
    calibration = _completed(ResolvedCalibration, quantization.calibration)
    return _completed(
        ResolvedModel,
        source,
        dtype=stored_dtype if source.dtype == "auto" else source.dtype,
        quantization=_completed(ResolvedQuantization, quantization, calibration=calibration),
    )


def _placement(recipe: Recipe, has_draft_model: bool) -> ResolvedPlacement:
    """Assign models to GPUs; without a placement in the recipe, each model gets the GPUs from id 0 on."""
    draft, placement = recipe.speculation.draft if has_draft_model else None, recipe.serving.placement
    target_ids = placement.target if placement else list(range(recipe.target.parallel.ranks))
    draft_ids = (placement and placement.draft) or list(range(draft.parallel.ranks if draft else 0))
    return ResolvedPlacement(target=target_ids, draft=draft_ids)


Keys = dict[str, tuple[type[BaseModel], tuple[str, ...]]]
# Keys with a safe default: lower values (LOOSER_BELOW) or higher values (LOOSER_ABOVE) are less strict.
LOOSER_BELOW: Keys = {
    "gates": (Gates, ("lossless", "quantized_parity")),
    "serving.rollout": (Rollout, ("hold_s", "min_requests")),
}
LOOSER_ABOVE: Keys = {
    "serving.rollout": (Rollout, ("max_failed", "max_latency_ratio")),
    "serving": (Serving, ("kv_cache_fraction", "max_queue_size")),
    "target": (ModelSource, ("allow_pickle", "allow_nonfinite")),
}


@dataclass(frozen=True)
class UnsafeOverride:
    """A recipe key whose value is less strict than its default."""

    path: str
    value: Any
    default: Any

    def __str__(self) -> str:
        return f"{self.path} is {json.dumps(self.value)}, by default {json.dumps(self.default)}"


def find_unsafe_overrides(recipe: Recipe | ResolvedRecipe) -> Iterator[UnsafeOverride]:
    """Yield the keys of LOOSER_BELOW and LOOSER_ABOVE whose value in the recipe is less strict than the default."""
    for table, sign in ((LOOSER_BELOW, -1), (LOOSER_ABOVE, 1)):
        for path, (model, keys) in table.items():
            for key in keys:
                value, default = attrgetter(f"{path}.{key}")(recipe), model.model_fields[key].default
                if sign * (value - default) > 0:
                    yield UnsafeOverride(f"{path}.{key}", value, default)
