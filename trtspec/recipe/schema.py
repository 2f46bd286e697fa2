# SPDX-License-Identifier: Apache-2.0
"""The recipe as frozen pydantic models: every key with its type, range, default and description.

The validators need only the recipe itself, no files, checkpoints or methods. Field descriptions become the JSON Schema,
which editors show. A rule across two keys is a validator of the later key, so that a violation is reported at that
key's line, together with all other diagnostics.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from trtspec.core.image_references import IMAGE, MAX_NAME_CHARS, parse_image

FORMAT = "trtspec.recipe/1"

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
IDENTIFIER = r"^[a-z][a-z0-9_]{0,62}$"
GPU = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
COMMIT = r"^[0-9a-f]{40}$"
PICKLE = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.(bin|pt|pth)$"
SHA256 = r"^[0-9a-f]{64}$"
VERSION = r"^[0-9]{1,4}(\.[0-9]{1,4}){1,3}((rc|\.post)[0-9]{1,4})?$"
LABEL = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"
HUB_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$"

PATTERN_DESCRIPTIONS = {
    NAME: "a name: lower-case letters, digits, '.', '_' and '-', at most 63, a letter or digit first",
    IDENTIFIER: "an identifier: lower-case letters, digits and '_', a letter first",
    GPU: "a GPU's name: letters, digits, '.', '_' and '-', a letter or digit first",
    COMMIT: "a commit: 40 hexadecimal digits",
    PICKLE: "the name of a .bin, .pt or .pth file",
    SHA256: "a SHA-256: 64 hexadecimal digits, as sha256sum prints it",
    VERSION: "a version, as 1.2.1",
    LABEL: "a label: letters, digits, '.', '_', '-' and '/', at most 63, a letter or digit first and last",
    IMAGE: "a container image with a tag, a digest or both: NAME:TAG, NAME@sha256:<64 hexadecimal digits>",
}

KNOBS = (
    "schedule",
    "confidence",
    "verify",
    "acceptance_rate_threshold",
    "acceptance_window",
)  # optional keys of `speculation`; each backend supports some of them

T = TypeVar("T")


def refuse(code: str, message: str, hint: str | None = None) -> PydanticCustomError:
    """Return the exception for a validator to raise, with the code, message and hint of a Diagnostic."""
    return PydanticCustomError("recipe", "{message}", {"code": code, "message": message, "hint": hint})


def is_directory(model: str) -> bool:
    """Return True if a model is spelled as a directory, not as a hub id; loading makes directories absolute."""
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
        raise refuse("bad-value", f"trtllm-build would read {value!r} as another option")
    return value


def _image(image: str) -> str:
    if len(parse_image(image).name) > MAX_NAME_CHARS:
        raise refuse("bad-value", f"the image's name is longer than {MAX_NAME_CHARS} characters")
    return image


def _no_repeats(items: list[T]) -> list[T]:
    if len(set(items)) < len(items):
        raise refuse("bad-value", "duplicate value")
    return items


Identifier = Annotated[str, Field(pattern=IDENTIFIER)]
Argument = Annotated[Any, AfterValidator(_argument)]
Image = Annotated[str, Field(pattern=IMAGE), AfterValidator(_image)]
Pins = dict[Annotated[str, Field(pattern=PICKLE)], Annotated[str, Field(pattern=SHA256)]]
Labels = dict[Annotated[str, Field(pattern=LABEL)], Annotated[str, Field(pattern=LABEL)]]
GpuIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(_no_repeats)]


class StrictModel(BaseModel):
    """Base of frozen models that reject unknown keys and do not convert types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Calibration(StrictModel):
    """Prompts for measuring activation scales before quantization."""

    prompts: str | None = Field(default=None, description="A file of prompts (docs/prompts.md), relative to the recipe")
    samples: int = Field(default=128, ge=1, description="Number of prompts")
    max_len: int = Field(default=512, ge=1, description="Maximum tokens per prompt; longer prompts are cut")


class Quantization(StrictModel):
    """Storage formats of the weights and the KV cache of one model."""

    weights: Literal["none", "fp8", "fp8_rowwise"] = Field(default="none", description="Format of the linear layers")
    kv_cache: Literal["none", "fp8"] = Field(default="none", description="Format of the KV cache")
    exclude: list[str] = Field(
        default=["lm_head"], description="fnmatch patterns of modules not to quantize, with TensorRT-LLM's names"
    )
    calibration: Calibration = Field(default=Calibration(), description="Prompts for measuring the scales")


class Parallel(StrictModel):
    """Distribution of one model over GPUs by tensor and pipeline parallelism."""

    tensor: int = Field(default=1, ge=1, le=64, description="GPUs that share each layer")
    pipeline: int = Field(default=1, ge=1, le=64, description="Groups of GPUs that hold consecutive layers")
    embedding: bool = Field(default=True, description="Split the rows of the embedding over the GPUs too")

    @property
    def ranks(self) -> int:
        """Return the number of GPUs over which the model is distributed."""
        return self.tensor * self.pipeline


class ModelSource(StrictModel):
    """A checkpoint, its storage formats and its distribution over GPUs."""

    model: Annotated[str, AfterValidator(_model_reference)] = Field(
        description="A directory (relative to the recipe), or a hub id such as meta-llama/Llama-3.1-8B-Instruct"
    )
    revision: Annotated[str, Field(pattern=COMMIT)] | None = Field(
        default=None, validate_default=True, description="The commit, 40 hexadecimal digits; required for a hub id"
    )
    allow_pickle: bool = Field(default=False, description="Allow reading weights from the pickles pinned by sha256")
    sha256: Pins = Field(
        default={}, description="The pickle files of the weights, as pytorch_model.bin: <64 hex digits>"
    )
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = Field(
        default="auto", description="Compute type; auto is the checkpoint's. Some engines also support float32"
    )
    quantization: Quantization = Field(default=Quantization(), description="Storage format of weights and KV cache")
    parallel: Parallel = Field(default=Parallel(), description="How the model is distributed over GPUs")
    allow_nonfinite: bool = Field(default=False, description="Convert weights even if some are NaN or infinite")

    @field_validator("revision")
    @classmethod
    def _fits_the_model(cls, revision: str | None, info: ValidationInfo) -> str | None:
        model = info.data.get("model")
        if model and is_directory(model) and revision:
            raise refuse("bad-value", "a directory has no revision", "remove it: the files themselves are recorded")
        if model and not is_directory(model) and not revision:
            hint = f"add the commit, revision: <40 hex digits>; or write ./{model} if a directory is meant"
            raise refuse("missing-key", f"{model!r} is a hub id, which needs a revision", hint)
        return revision

    @field_validator("sha256")
    @classmethod
    def _may_be_opened(cls, sha256: Pins, info: ValidationInfo) -> Pins:
        if sha256 and info.data.get("allow_pickle") is False:
            hint = "set allow_pickle: true to allow reading them, or remove sha256"
            raise refuse("not-allowed", "sha256 pins pickles, but allow_pickle is false", hint)
        return sha256


class Target(ModelSource):
    """The target: the served model, which verifies drafted tokens."""


class Draft(ModelSource):
    """The drafter: a model, Medusa heads or an EAGLE head."""


class ScheduledLen(StrictModel):
    """Draft length while at most `max_batch` requests run concurrently."""

    max_batch: int = Field(ge=1, description="Maximum number of concurrent requests")
    draft_len: int = Field(ge=0, le=64, description="Tokens drafted per step up to that number; 0 disables drafting")


def _falls(schedule: list[ScheduledLen]) -> list[ScheduledLen]:
    for before, after in pairwise(schedule):
        if after.max_batch <= before.max_batch:
            message = f"max_batch {after.max_batch} follows {before.max_batch}, but must increase"
            raise refuse("bad-value", message, "sort the entries by max_batch, each with a different one")
        if after.draft_len > before.draft_len:
            message = f"draft_len grows from {before.draft_len} to {after.draft_len} with more requests"
            raise refuse("bad-value", message, "larger batches leave less time for drafts: keep or lower it")
    return schedule


class Speculation(StrictModel):
    """Speculative decoding: the method, the drafter and their settings."""

    method: Identifier = Field(default="none", description="none, draft_target, ngram, ... (each method is a file)")
    draft_len: int | None = Field(
        default=None, ge=1, le=64, description="Tokens drafted per step; the method may restrict the range"
    )
    draft: Draft | None = Field(default=None, description="The drafter, for methods that need a checkpoint")
    options: dict[str, Any] = Field(default={}, description="The method's own options, checked by the method")
    schedule: Annotated[list[ScheduledLen], AfterValidator(_falls)] = Field(
        default=[], description="draft_len by number of concurrent requests; no drafting above the last max_batch"
    )
    confidence: float = Field(
        default=0.0, ge=0, lt=1, description="Stop a draft when the product of its probabilities falls below this"
    )
    verify: Literal["standard", "block"] = Field(
        default="standard", description="Verify sampled drafts token by token, or as a block (arXiv:2403.10444)"
    )
    acceptance_rate_threshold: float | None = Field(
        default=None, gt=0, le=1, description="Stop drafting if the share of accepted drafted tokens is lower"
    )
    acceptance_window: int | None = Field(default=None, ge=1, description="Requests over which to average that share")

    @property
    def knobs(self) -> list[str]:
        """Return the optional keys (KNOBS) that differ from their defaults; not every backend supports all of them."""
        return [key for key in KNOBS if getattr(self, key) != type(self).model_fields[key].default]

    @field_validator("acceptance_window")
    @classmethod
    def _go_together(cls, window: int | None, info: ValidationInfo) -> int | None:
        if window is not None and info.data.get("acceptance_rate_threshold", 0) is None:
            raise refuse("bad-value", "acceptance_window requires acceptance_rate_threshold", "set both, or neither")
        return window

    @field_validator("draft", mode="before")
    @classmethod
    def _has_a_use(cls, draft: object, info: ValidationInfo) -> object:
        if draft is not None and info.data.get("method") == "none":
            hint = "set speculation.method (draft_target drafts with a model), or remove draft"
            raise refuse("unused-draft", "method none does not use a draft", hint)
        return draft


class EngineBuild(StrictModel):
    """Settings for running trtllm-build."""

    image: Image | None = Field(
        default=None,
        description="Container image for the build, NAME:TAG or NAME@sha256:...; default: trtllm-build on PATH",
    )
    timeout_s: int = Field(default=14400, ge=1, description="Maximum seconds per engine")
    timing_cache: str | None = Field(
        default=None, min_length=1, description="Timing cache to start the build from, relative to the recipe"
    )


class Engine(StrictModel):
    """The engine that runs the model, and the sizes it is built for."""

    backend: Identifier = Field(
        default="auto", description="Engine that runs the model (each backend is a folder); auto lets the plan choose"
    )
    version: Annotated[str, Field(pattern=VERSION)] | None = Field(
        default=None,
        description="The backend's version; default: the installed one, else the backend's (docs/recipe.md)",
    )
    device: Literal["gpu", "cpu"] | None = Field(
        default=None, description="Device type, for engines that need it; the default is a GPU"
    )
    gpu: Annotated[str, Field(pattern=GPU)] | None = Field(default=None, description="GPU model to run on, as h200")
    max_batch_size: int = Field(default=8, ge=1, description="Maximum requests per step")
    max_input_len: int | None = Field(
        default=None,
        ge=1,
        description="Maximum tokens of a prompt; at most max_seq_len, by default 1024",
    )
    max_seq_len: int = Field(
        default=2048, ge=1, validate_default=True, description="Maximum tokens of a prompt and its response together"
    )
    max_num_tokens: int | None = Field(default=None, ge=1, description="Maximum tokens per step over all requests")
    extra: dict[Identifier, Argument] = Field(
        default={}, description="Additional options of trtllm-build, as gemm_plugin: auto"
    )
    build: EngineBuild = Field(default=EngineBuild(), description="Where and how trtllm-build runs")

    @field_validator("max_seq_len")
    @classmethod
    def _holds_the_input(cls, max_seq_len: int, info: ValidationInfo) -> int:
        max_input_len = info.data.get("max_input_len") or 0
        if max_input_len > max_seq_len:
            message = f"max_seq_len {max_seq_len} is less than max_input_len {max_input_len}"
            raise refuse("out-of-range", message, "a sequence includes the prompt and the response")
        return max_seq_len


class Placement(StrictModel):
    """Assignment of models to GPUs."""

    target: GpuIds = Field(description="GPU ids of the target")
    draft: GpuIds | None = Field(default=None, description="GPU ids of the draft")


class Rollout(StrictModel):
    """Canary rollout that replaces the live artifact with a new one."""

    canary: Annotated[list[Annotated[int, Field(ge=1, le=100)]], Field(min_length=1, max_length=20)] = Field(
        default=[5, 25, 100], description="Traffic percentages of the new version, in sequence"
    )
    hold_s: float = Field(default=10.0, ge=0, le=86400, description="Minimum seconds at each percentage")
    min_requests: int = Field(
        default=20, ge=1, le=10000, description="Probe requests that both versions must answer at each percentage"
    )
    max_failed: int = Field(default=0, ge=0, description="Maximum failed requests at each percentage")
    max_latency_ratio: float = Field(
        default=2.0, ge=1, description="Maximum ratio of the new version's latencies to the old version's"
    )
    shadow: int = Field(
        default=0, ge=0, le=100, description="Percentage of live requests to mirror first; responses are discarded"
    )


class EntryLimits(StrictModel):
    """Limits of the OpenAI gateway; serving/gateway/config.py has the same defaults."""

    max_body_bytes: int = Field(default=4 << 20, ge=1024, le=1 << 30, description="Maximum bytes of a request body")
    max_choices: int = Field(default=16, ge=1, le=4096, description="Maximum texts per request, prompts times n")
    requests_per_minute: int = Field(
        default=0, ge=0, le=1_000_000, description="Limit per key, or over all clients without keys; 0: unlimited"
    )
    timeout_s: float = Field(default=600.0, ge=1, le=86400, description="Maximum seconds per request")
    stall_s: float = Field(default=30.0, ge=0.1, le=86400, description="Maximum seconds between two tokens")
    write_timeout_s: float = Field(
        default=1.0, ge=0.1, le=3600, description="Maximum seconds to wait for a client that does not read its response"
    )
    body_timeout_s: float = Field(default=10.0, ge=0.1, le=3600, description="Maximum seconds to receive a body")


class Tools(StrictModel):
    """Tool calls through the OpenAI gateway."""

    format: Literal["auto", "hermes", "llama3_json", "mistral"] = Field(
        default="auto", description="Format of the model's tool calls; auto: recognized by the chat template"
    )


class Serving(StrictModel):
    """Settings for serving the engines with Triton."""

    streaming: bool = Field(default=True, description="Serve decoupled models that stream their text")
    kv_cache_fraction: float = Field(
        default=0.9, gt=0, le=1, description="Fraction of the free GPU memory for the KV cache"
    )
    placement: Placement | None = Field(default=None, description="GPU ids; by default the first ones")
    fast_logits: bool = Field(
        default=False, description="Pass draft logits from GPU to GPU (draft_target with use_draft_logits)"
    )
    max_queue_size: int = Field(default=128, ge=1, description="Maximum number of waiting requests")
    warmup: bool = Field(default=False, description="Generate a few texts before the models report ready")
    openai: bool = Field(default=True, description="Also serve OpenAI's API, in addition to Triton's")
    openai_processes: int = Field(default=1, ge=1, le=64, description="Processes that serve OpenAI's API")
    limits: EntryLimits = Field(default=EntryLimits(), description="Limits for OpenAI clients")
    tools: Tools = Field(default=Tools(), description="Tool calls of OpenAI clients")
    rollout: Rollout = Field(default=Rollout(), description="How it replaces the live artifact")
    max_queue_delay_us: int = Field(default=100, ge=0, description="Maximum microseconds to wait for a larger batch")
    structured_output: bool = Field(
        default=False, description="Start the engine with support for grammars, if it is optional on the backend"
    )
    defaults: Literal["trtspec", "nvidia", "model"] = Field(
        default="trtspec",
        description="Defaults of omitted request fields: trtspec's, NVIDIA's repository's or generation_config.json's",
    )


class Gates(StrictModel):
    """Requirements that an artifact must meet before deployment."""

    lossless: bool = Field(default=True, description="The output equals the target's output")
    min_acceptance: float | None = Field(
        default=None, ge=0, le=1, description="Minimum share of drafted tokens that are accepted"
    )
    min_speedup: float | None = Field(
        default=None, gt=0, description="Minimum median speed-up over prompts: time without drafting / time with it"
    )
    quantized_parity: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Minimum share of a quantized target's tokens that the unquantized model would choose",
    )
    prompts: str | None = Field(default=None, description="A file of prompts for measuring the gates")


class Fleet(StrictModel):
    """Building with other recipes on a pool of machines (docs/fleets.md); it does not change the artifact."""

    labels: Labels = Field(default={}, description="Labels and values of the nodes that may run this recipe's steps")


class Recipe(StrictModel):
    """One artifact: target, drafter, engine, serving settings and gates."""

    schema_: Literal["trtspec.recipe/1"] = Field(alias="schema", description="The version of this format")
    name: Annotated[str, Field(pattern=NAME)] = Field(description="Name of the artifact and of its directory")
    target: Target = Field(description="The served model")
    speculation: Speculation = Field(default=Speculation(), description="How tokens are drafted")
    engine: Engine = Field(default=Engine(), description="The engine, and the sizes it is built for")
    serving: Serving = Field(default=Serving(), description="How Triton serves it")
    plugins: list[Identifier] = Field(default=[], description="Folders of plugins/ to compile")
    gates: Gates = Field(default=Gates(), description="Conditions for deploying the artifact")
    fleet: Fleet = Field(default=Fleet(), description="Machines that may build it, with --on")

    def with_engine(self, **settings: Any) -> Recipe:
        """Return a copy with other engine settings, which are not validated."""
        return self.model_copy(update={"engine": self.engine.model_copy(update=settings)})


_EXTENDS = {
    "type": "string",
    "description": "Recipe to start from: a path relative to this file, or the name of a shipped recipe",
}
_CHOICES = {"type": "array", "items": {"type": "object"}}
_MATRIX = {
    "type": "object",
    "description": "Several artifacts: lists of values by dotted recipe path, as speculation.draft_len: [3, 5]",
    "properties": {
        "include": {**_CHOICES, "description": "Keys added to matching combinations, or additional combinations"},
        "exclude": {**_CHOICES, "description": "Combinations to exclude"},
    },
    "additionalProperties": {"type": "array", "minItems": 1},
}


def recipe_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe file, for editors.

    Keys are required only if the file has neither `extends` nor `matrix`, which may provide them.
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
