# SPDX-License-Identifier: Apache-2.0
"""The recipe as frozen models: every key, its type, its range and its default.

Owns what can be said of a recipe by looking at nothing but the recipe; knows no file, no checkpoint and no method.
Descriptions become the JSON Schema, which editors show. Rules across keys sit on the later key of the two, so that
they are reported beside all other diagnostics and at their own line.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

FORMAT = "trtspec.recipe/1"

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
IDENTIFIER = r"^[a-z][a-z0-9_]{0,62}$"
GPU = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
COMMIT = r"^[0-9a-f]{40}$"
PICKLE = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.(bin|pt|pth)$"
SHA256 = r"^[0-9a-f]{64}$"
VERSION = r"^[0-9]{1,4}(\.[0-9]{1,4}){1,3}((rc|\.post)[0-9]{1,4})?$"
IMAGE = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,254}@sha256:[0-9a-f]{64}$"
HUB_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$"

SAYS = {
    NAME: "a name: lower-case letters, digits, '.', '_' and '-', at most 63, a letter or digit first",
    IDENTIFIER: "an identifier: lower-case letters, digits and '_', a letter first",
    GPU: "a GPU's name: letters, digits, '.', '_' and '-', a letter or digit first",
    COMMIT: "a commit: 40 hexadecimal digits",
    PICKLE: "the name of a .bin, .pt or .pth file",
    SHA256: "a SHA-256: 64 hexadecimal digits, as sha256sum prints it",
    VERSION: "a version, as 1.2.1",
    IMAGE: "a container image by digest: NAME@sha256:<64 hexadecimal digits>",
}

KNOBS = (
    "schedule",
    "confidence",
    "verify",
    "acceptance_rate_threshold",
    "acceptance_window",
)  # of speculation, by backend

T = TypeVar("T")


def refuse(code: str, message: str, hint: str | None = None) -> PydanticCustomError:
    """Return the error a validator raises, in the terms of a Diagnostic."""
    return PydanticCustomError("recipe", "{message}", {"code": code, "message": message, "hint": hint})


def is_directory(model: str) -> bool:
    """Tell a directory from a hub id, by its spelling alone: loading makes relative directories absolute."""
    return model.startswith(("/", ".", "~"))


def _model_reference(model: str) -> str:
    if is_directory(model) or re.fullmatch(HUB_ID, model):
        return model
    hint = "a directory relative to the recipe (./models/x), or a hub id (org/name)"
    raise refuse("bad-value", f"{model!r} is neither a directory nor a hub id", hint)


def _argument(value: Any) -> Any:
    if not isinstance(value, (str, int, float)):
        raise refuse("wrong-type", "a trtllm-build option is a string, a number or true/false")
    if isinstance(value, str) and value.startswith("-"):
        raise refuse("bad-value", f"{value!r} would be read as another option of trtllm-build")
    return value


def _no_repeats(items: list[T]) -> list[T]:
    if len(set(items)) < len(items):
        raise refuse("bad-value", "the same value stands twice")
    return items


Identifier = Annotated[str, Field(pattern=IDENTIFIER)]
Argument = Annotated[Any, AfterValidator(_argument)]
Pins = dict[Annotated[str, Field(pattern=PICKLE)], Annotated[str, Field(pattern=SHA256)]]
GpuIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(_no_repeats)]


class StrictModel(BaseModel):
    """A frozen value whose keys are all known and whose types are not converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Calibration(StrictModel):
    """What activations are measured on before they are quantized."""

    prompts: str | None = Field(default=None, description="A file of prompts (docs/prompts.md), relative to the recipe")
    samples: int = Field(default=128, ge=1, description="How many prompts are used")
    max_len: int = Field(default=512, ge=1, description="Tokens a prompt is cut to")


class Quantization(StrictModel):
    """How the weights and the KV cache of one model are stored."""

    weights: Literal["none", "fp8", "fp8_rowwise"] = Field(default="none", description="Format of the linear layers")
    kv_cache: Literal["none", "fp8"] = Field(default="none", description="Format of the KV cache")
    exclude: list[str] = Field(
        default=["lm_head"], description="fnmatch patterns of modules that are not quantized, by TensorRT-LLM's names"
    )
    calibration: Calibration = Field(default=Calibration(), description="What scales are measured on")


class Parallel(StrictModel):
    """How one model is divided over GPUs."""

    tensor: int = Field(default=1, ge=1, le=64, description="GPUs that share each layer")
    pipeline: int = Field(default=1, ge=1, le=64, description="Groups of GPUs that hold consecutive layers")
    embedding: bool = Field(default=True, description="Divide the rows of the embedding among the GPUs too")

    @property
    def ranks(self) -> int:
        """Return how many GPUs hold a part."""
        return self.tensor * self.pipeline


class ModelSource(StrictModel):
    """A checkpoint, and how it is stored and divided."""

    model: Annotated[str, AfterValidator(_model_reference)] = Field(
        description="A directory (relative to the recipe), or a hub id such as meta-llama/Llama-3.1-8B-Instruct"
    )
    revision: Annotated[str, Field(pattern=COMMIT)] | None = Field(
        default=None, validate_default=True, description="The commit, 40 hexadecimal digits; required for a hub id"
    )
    allow_pickle: bool = Field(default=False, description="Whether weights may come from the pickles that sha256 pins")
    sha256: Pins = Field(
        default={}, description="The pickles that hold the weights, as pytorch_model.bin: <64 hex digits>"
    )
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = Field(
        default="auto", description="Compute type; auto is the checkpoint's. float32 is for engines that take it"
    )
    quantization: Quantization = Field(default=Quantization(), description="How weights and KV cache are stored")
    parallel: Parallel = Field(default=Parallel(), description="How the model is divided over GPUs")
    allow_nonfinite: bool = Field(default=False, description="Convert weights although some are NaN or infinite")

    @field_validator("revision")
    @classmethod
    def _fits_the_model(cls, revision: str | None, info: ValidationInfo) -> str | None:
        model = info.data.get("model")
        if model and is_directory(model) and revision:
            raise refuse("bad-value", "a directory has no revision", "remove it: the files themselves are recorded")
        if model and not is_directory(model) and not revision:
            hint = f"add the commit, revision: <40 hex digits>; or write ./{model} if a directory is meant"
            raise refuse("missing-key", f"{model!r} is read as a hub id, which needs a revision", hint)
        return revision

    @field_validator("sha256")
    @classmethod
    def _may_be_opened(cls, sha256: Pins, info: ValidationInfo) -> Pins:
        if sha256 and info.data.get("allow_pickle") is False:
            hint = "set allow_pickle: true if they may be opened, or remove sha256"
            raise refuse("not-allowed", "sha256 pins pickles, and allow_pickle is false", hint)
        return sha256


class Target(ModelSource):
    """The model whose text is served."""


class Draft(ModelSource):
    """What drafts: a model, Medusa heads or an EAGLE head."""


class ScheduledLen(StrictModel):
    """How much is drafted while at most `max_batch` requests run together."""

    max_batch: int = Field(ge=1, description="Requests that run together, at most")
    draft_len: int = Field(ge=0, le=64, description="Tokens drafted a step for so many; 0 drafts nothing")


def _falls(schedule: list[ScheduledLen]) -> list[ScheduledLen]:
    for before, after in pairwise(schedule):
        if after.max_batch <= before.max_batch:
            message = f"max_batch {after.max_batch} stands after {before.max_batch}: it has to ascend"
            raise refuse("bad-value", message, "one entry for each number of requests, the smallest first")
        if after.draft_len > before.draft_len:
            message = f"draft_len grows from {before.draft_len} to {after.draft_len} with more requests"
            raise refuse("bad-value", message, "larger batches have less time to spare: keep it or lower it")
    return schedule


class Speculation(StrictModel):
    """How tokens are drafted."""

    method: Identifier = Field(default="none", description="none, draft_target, ngram, ... (each method is a file)")
    draft_len: int | None = Field(
        default=None, ge=1, le=64, description="Tokens drafted a step; the method narrows the range"
    )
    draft: Draft | None = Field(default=None, description="What drafts, for the methods that need a checkpoint")
    options: dict[str, Any] = Field(default={}, description="The method's own options, checked by the method")
    schedule: Annotated[list[ScheduledLen], AfterValidator(_falls)] = Field(
        default=[], description="draft_len by how many requests run together; beyond the last max_batch none is drafted"
    )
    confidence: float = Field(
        default=0.0, ge=0, lt=1, description="End a drafted chain where the product of its probabilities is smaller"
    )
    verify: Literal["standard", "block"] = Field(
        default="standard", description="Verify sampled drafts token by token, or as a block (arXiv:2403.10444)"
    )
    acceptance_rate_threshold: float | None = Field(
        default=None, gt=0, le=1, description="Stop drafting where a smaller part of the drafted tokens is accepted"
    )
    acceptance_window: int | None = Field(default=None, ge=1, description="Requests over which that part is averaged")

    @property
    def knobs(self) -> list[str]:
        """Return the keys that are set beyond method, length, draft and options; not every backend honours them."""
        return [key for key in KNOBS if getattr(self, key) != type(self).model_fields[key].default]

    @field_validator("acceptance_window")
    @classmethod
    def _go_together(cls, window: int | None, info: ValidationInfo) -> int | None:
        if window is not None and info.data.get("acceptance_rate_threshold", 0) is None:
            raise refuse("bad-value", "no acceptance_rate_threshold is averaged over it", "give both, or neither")
        return window

    @field_validator("draft", mode="before")
    @classmethod
    def _has_a_use(cls, draft: object, info: ValidationInfo) -> object:
        if draft is not None and info.data.get("method") == "none":
            hint = "set speculation.method (draft_target drafts with a model), or remove draft"
            raise refuse("unused-draft", "method none drafts with nothing", hint)
        return draft


class EngineBuild(StrictModel):
    """Where and how trtllm-build runs."""

    image: Annotated[str, Field(pattern=IMAGE)] | None = Field(
        default=None, description="The container image it runs in, by digest; without one, the trtllm-build on PATH"
    )
    timeout_s: int = Field(default=14400, ge=1, description="Seconds that one engine may take")
    timing_cache: str | None = Field(
        default=None, min_length=1, description="A timing cache that the build starts from, relative to the recipe"
    )


class Engine(StrictModel):
    """What runs the model, and for which sizes it is built."""

    backend: Identifier = Field(
        default="auto", description="What runs the model (each backend is a folder); auto is decided by the plan"
    )
    version: Annotated[str, Field(pattern=VERSION)] | None = Field(
        default=None, description="The backend's version; by default the one installed here, else the newest known"
    )
    device: Literal["gpu", "cpu"] | None = Field(
        default=None, description="What it runs on, for engines that have to be told; they take a GPU without"
    )
    gpu: Annotated[str, Field(pattern=GPU)] | None = Field(default=None, description="The GPU it will run on, as h200")
    max_batch_size: int = Field(default=8, ge=1, description="Requests a step")
    max_input_len: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of the longest prompt; at most max_seq_len, by default 1024",
    )
    max_seq_len: int = Field(
        default=2048, ge=1, validate_default=True, description="Tokens of the longest prompt and its answer together"
    )
    max_num_tokens: int | None = Field(default=None, ge=1, description="Tokens a step over all requests")
    extra: dict[Identifier, Argument] = Field(
        default={}, description="Further options of trtllm-build, as gemm_plugin: auto"
    )
    build: EngineBuild = Field(default=EngineBuild(), description="Where and how trtllm-build runs")

    @field_validator("max_seq_len")
    @classmethod
    def _holds_the_input(cls, max_seq_len: int, info: ValidationInfo) -> int:
        max_input_len = info.data.get("max_input_len") or 0
        if max_input_len > max_seq_len:
            message = f"max_seq_len {max_seq_len} is less than max_input_len {max_input_len}"
            raise refuse("out-of-range", message, "a sequence is the prompt and the answer together")
        return max_seq_len


class Placement(StrictModel):
    """Which GPUs hold which model."""

    target: GpuIds = Field(description="GPU ids of the target")
    draft: GpuIds | None = Field(default=None, description="GPU ids of the draft")


class Rollout(StrictModel):
    """How an artifact takes the place of one that is live."""

    canary: Annotated[list[Annotated[int, Field(ge=1, le=100)]], Field(min_length=1, max_length=20)] = Field(
        default=[5, 25, 100], description="Percent of the requests it gets, one after the other"
    )
    hold_s: float = Field(default=10.0, ge=0, le=86400, description="Seconds at each share, at least")
    min_requests: int = Field(
        default=20, ge=1, le=10000, description="Requests of our own that both answer at each share, before it goes on"
    )
    max_failed: int = Field(default=0, ge=0, description="Requests that it may fail at one share")
    max_latency_ratio: float = Field(
        default=2.0, ge=1, description="Its latencies over those of the one before, at most"
    )
    shadow: int = Field(
        default=0, ge=0, le=100, description="Percent of the others' requests that it gets as well, unheard, on trial"
    )


class EntryLimits(StrictModel):
    """What the entry for OpenAI's clients takes before it refuses; the defaults are openai/config.py's."""

    max_body_bytes: int = Field(default=4 << 20, ge=1024, le=1 << 30, description="Bytes of a request's body, at most")
    max_choices: int = Field(default=16, ge=1, le=4096, description="Texts of one request, prompts times n, at most")
    requests_per_minute: int = Field(
        default=0, ge=0, le=1_000_000, description="Of one key, or of all clients where there are no keys; 0: no limit"
    )
    timeout_s: float = Field(default=600.0, ge=1, le=86400, description="Seconds that all of a request may take")
    stall_s: float = Field(default=30.0, ge=0.1, le=86400, description="Seconds between two tokens, at most")
    write_timeout_s: float = Field(
        default=1.0, ge=0.1, le=3600, description="Seconds that a client which reads nothing may keep a text waiting"
    )
    body_timeout_s: float = Field(default=10.0, ge=0.1, le=3600, description="Seconds a body may take to arrive")


class Serving(StrictModel):
    """How Triton serves the engines."""

    streaming: bool = Field(default=True, description="Serve decoupled models that stream their text")
    kv_cache_fraction: float = Field(
        default=0.9, gt=0, le=1, description="Part of the free GPU memory the KV cache takes"
    )
    placement: Placement | None = Field(default=None, description="GPU ids; by default the first ones")
    fast_logits: bool = Field(
        default=False, description="Hand draft logits from GPU to GPU (draft_target with use_draft_logits)"
    )
    max_queue_size: int = Field(default=128, ge=1, description="Requests that may wait")
    warmup: bool = Field(default=False, description="Compute a few texts before the models are ready")
    openai: bool = Field(default=True, description="Answer OpenAI's clients too, beside Triton's own")
    limits: EntryLimits = Field(default=EntryLimits(), description="What that takes of OpenAI's clients")
    rollout: Rollout = Field(default=Rollout(), description="How it takes the place of one that is live")
    max_queue_delay_us: int = Field(default=100, ge=0, description="Microseconds a request may wait for company")
    defaults: Literal["trtspec", "nvidia", "model"] = Field(
        default="trtspec",
        description="What omitted fields of a request mean: ours, NVIDIA's repository's, or generation_config.json's",
    )


class Gates(StrictModel):
    """What must hold before an artifact may be deployed."""

    lossless: bool = Field(default=True, description="The text is the target's own")
    min_acceptance: float | None = Field(
        default=None, ge=0, le=1, description="Least part of the drafted tokens accepted"
    )
    min_speedup: float | None = Field(
        default=None, gt=0, description="Least median, over prompts, of the time without drafting over that with it"
    )
    quantized_parity: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Least part of a quantized target's tokens that are the source's own choice",
    )
    prompts: str | None = Field(default=None, description="A file of prompts that the gates are measured on")


class Recipe(StrictModel):
    """One artifact: a target, what drafts for it, the engine, how it is served and what must hold."""

    schema_: Literal["trtspec.recipe/1"] = Field(alias="schema", description="The version of this format")
    name: Annotated[str, Field(pattern=NAME)] = Field(description="The artifact's name, and its directory's")
    target: Target = Field(description="The model whose text is served")
    speculation: Speculation = Field(default=Speculation(), description="How tokens are drafted")
    engine: Engine = Field(default=Engine(), description="What runs the model, and for which sizes it is built")
    serving: Serving = Field(default=Serving(), description="How Triton serves it")
    plugins: list[Identifier] = Field(default=[], description="Folders of plugins/ to compile")
    gates: Gates = Field(default=Gates(), description="What must hold before an artifact may be deployed")


_EXTENDS = {
    "type": "string",
    "description": "Another recipe that this one changes: a path relative to this file, or a shipped recipe's name",
}
_CHOICES = {"type": "array", "items": {"type": "object"}}
_MATRIX = {
    "type": "object",
    "description": "Several artifacts: dotted recipe paths, each with its values, as speculation.draft_len: [3, 5]",
    "properties": {
        "include": {**_CHOICES, "description": "Keys added to matching combinations, or further combinations"},
        "exclude": {**_CHOICES, "description": "Combinations left out"},
    },
    "additionalProperties": {"type": "array", "minItems": 1},
}


def recipe_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe file, for editors.

    With `extends` or `matrix` a file may leave required keys to the other place, so they are asked for without only.
    """
    schema = Recipe.model_json_schema()
    needs_model = {"required": ["model"]}
    for kind in ("Target", "Draft"):
        schema["$defs"][kind].pop("required")
    complete = {
        "required": schema.pop("required"),
        "properties": {"target": needs_model, "speculation": {"properties": {"draft": needs_model}}},
    }
    schema["properties"] |= {"extends": _EXTENDS, "matrix": _MATRIX}
    composed = {"anyOf": [{"required": ["extends"]}, {"required": ["matrix"]}]}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": FORMAT,
        "title": "trtspec recipe",
    }
    return {**schema, **head, "if": composed, "else": complete}
