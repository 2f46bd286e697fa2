# SPDX-License-Identifier: Apache-2.0
"""The methods and model classes of each engine, how they were tested, and the sources of the known versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from benchmarks.upstream.engines import SGLANG_DATA, VLLM_DATA
from benchmarks.upstream.published import published_releases
from benchmarks.upstream.tables import load_table
from trtspec.backends.base import Backend, backends
from trtspec.backends.common.trtllm_versions import version_specs
from trtspec.backends.edge_llm.toolchain import releases as edge_llm_releases
from trtspec.backends.sglang.versions import releases as sglang_releases
from trtspec.backends.tensorrt_llm.rules.hardware import ARCHITECTURES
from trtspec.backends.vllm.versions import releases as vllm_releases
from trtspec.checkpoints.rules import Family
from trtspec.core.registry import discover, extension_names

LEGEND = {
    "run": "its text was compared on the real engine",
    "parsed": "the engine's own parser accepts its arguments",
    "planned": "built from upstream's documents; has not met the engine",
}


def evidence(backend: Backend, method: str) -> str:
    """Return a key of LEGEND, or "" if the backend does not support the method."""
    if method not in backend.methods():
        return ""
    return (
        "run" if backend.in_process or method in backend.runs else "parsed" if method in backend.parses else "planned"
    )


def support_table() -> str:
    """Return the Markdown table of methods and engines, without `none`."""
    known = dict(sorted(backends().items(), key=lambda item: (not item[1].in_process, item[0])))
    methods = [
        name for name in extension_names("trtspec.methods") if any(name in each.methods() for each in known.values())
    ]
    rows = [["method", *(f"`{name}`" for name in known)], ["---"] * (len(known) + 1)]
    for method in methods:
        if method != "none":
            rows.append([f"`{method}`", *(evidence(backend, method) for backend in known.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


MODEL_LEGEND = {
    "yes": "the engine runs it, with each of its methods that the model's size and tensors allow",
    "no drafter": "the class does not provide its hidden states: n-grams and separate draft models only",
    "not recorded": "it may run; what its class provides to drafters was not read",
}
YES, NO_DRAFTER, NOT_RECORDED = MODEL_LEGEND


def model_support(backend: str, architecture: str) -> str:
    """Return a key of MODEL_LEGEND for the newest version of an engine, or "" if it does not run the class."""
    return MODEL_SUPPORT.get(backend, lambda architecture: NOT_RECORDED)(architecture)


def _converted(architecture: str) -> str:
    return YES if architecture in converted_classes() else ""


def _tensorrt_llm(architecture: str) -> str:
    return YES if architecture in ARCHITECTURES and _converted(architecture) else ""


def _llmapi(architecture: str) -> str:
    api = [*version_specs().values()][-1].api
    if architecture in api.drafting:
        return YES
    return NO_DRAFTER if architecture in api.plain else NOT_RECORDED


def _vllm(architecture: str) -> str:
    newest = [*vllm_releases().values()][-1]
    return YES if architecture in newest.eagle3_targets | newest.mtp_architectures else NO_DRAFTER


def _sglang(architecture: str) -> str:
    return YES if architecture in [*sglang_releases().values()][-1].mtp_targets else NOT_RECORDED


def _edge_llm(architecture: str) -> str:
    model_type = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", architecture.removesuffix("ForCausalLM")).lower()
    return YES if model_type in [*edge_llm_releases().values()][-1].models else ""


MODEL_SUPPORT: dict[str, Callable[[str], str]] = {
    "embedded": _converted,
    "tensorrt_llm": _tensorrt_llm,
    "llmapi": _llmapi,
    "vllm": _vllm,
    "sglang": _sglang,
    "edge_llm": _edge_llm,
}


def converted_classes() -> dict[str, str]:
    """Return the families that are converted, by model class."""
    families: dict[str, Family] = discover("trtspec.families", "FAMILY")
    return {architecture: name for name, family in families.items() for architecture in family.architectures}


def model_classes() -> list[str]:
    """Return the converted classes, then the further ones that the newest LLM API has by name."""
    api, converted = [*version_specs().values()][-1].api, [*converted_classes()]
    return converted + sorted({*api.drafting, *api.plain} - {*converted})


def version_table() -> dict[str, list[tuple[str, str, str]]]:
    """Return version, release date ("" if unknown) and source of the known releases by engine, newest first."""
    found = {"TensorRT-LLM": [*_tensorrt_llm_versions()]}
    for name, data in {"vLLM": VLLM_DATA, "SGLang": SGLANG_DATA}.items():
        sources = load_table(*data).sources
        found[name] = [(version, each.get("released", ""), each["wheel"]) for version, each in sources.items()]
    edge_llm = edge_llm_releases().values()
    found["TensorRT Edge-LLM"] = [(each.version, each.released, each.source) for each in edge_llm]
    return {name: rows[::-1] for name, rows in found.items()}


def _tensorrt_llm_versions() -> Iterator[tuple[str, str, str]]:
    published = published_releases()
    for spec in version_specs().values():
        for release in spec.releases:
            each = published.get(release.version)
            yield release.version, release.released, each.source if each else f"as the other versions of {spec.minor}"
