# SPDX-License-Identifier: Apache-2.0
"""Whether a release of vLLM runs a draft net as it is stored, beside the target of the recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import VllmRelease, cite, having
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.eagle3 import AUX_LAYERS

# vLLM makes the class of a net by putting this before the architecture that its config.json names
PREFIXES = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash", "dspark": ""}
AS_NAMED = ("LiLiCorrDraftModel",)
DSPARK, QWEN3_DSPARK = "DSparkDraftModel", "names_qwen3_dspark"
MODEL = "speculation.draft.model"
CONVERTS = "use a backend that converts checkpoints"
REGISTRY, INTERFACES = "model_executor/models/registry.py", "model_executor/models/interfaces.py"
SPECULATORS = "transformers_utils/configs/speculators/algos.py"
RUNNER = "vllm-project/vllm:vllm/v1/worker/gpu_model_runner.py@v0.32.0, _get_eagle3_aux_layers_from_config"


def check_net(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield what keeps the net from being loaded, or from drafting for this target."""
    method = release.methods[context.recipe.speculation.method]
    if method not in PREFIXES:
        return
    net = context.sources["draft"]
    if (kind := net.config.get("speculators_model_type")) is not None:
        yield from _about_kind(str(kind), release)
    else:
        yield from _about_class(net, method, release)
    yield from _about_positions(context, method, release)
    if method == "eagle3":
        yield from _about_layers(net.config)
    if method != "eagle":
        yield from _about_target(context.sources["target"], method, release)


def architecture_of(source: Source) -> str:
    """Return the first architecture that a config.json names, "" where it names none."""
    named = source.config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _about_kind(kind: str, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield where a net of the speculators project is of a type that the release does not read."""
    if kind not in release.speculators:
        message = f"vLLM {release.version} reads no net of the speculators project of the type {kind}"
        hint = having(lambda each: kind in each.speculators)
        yield Diagnostic(MODEL, "net-class", message, hint, source=cite(release, SPECULATORS))


def _about_class(net: Source, method: str, release: VllmRelease) -> Iterable[Diagnostic]:
    name = _class_of(architecture_of(net), method)
    if name not in release.heads:
        message = f"vLLM {release.version} has no class {name}, which it would run this net with"
        hint = having(lambda each: name in each.heads) or CONVERTS
        yield Diagnostic(MODEL, "net-class", message, hint, source=cite(release, REGISTRY))
    elif name == DSPARK and net.config.get("model_type") == "qwen3" and QWEN3_DSPARK not in release.does:
        message = f"vLLM {release.version} takes a net that is called {DSPARK} for layers of DeepSeek V4"
        hint = having(lambda each: QWEN3_DSPARK in each.does)
        yield Diagnostic(MODEL, "net-class", message, hint, source=cite(release))
    elif method == "eagle" and "fc.bias" in net.tensors and name not in release.biased_heads:
        message = f"the net has fc.bias, and {name} of vLLM {release.version} has no place for it"
        yield Diagnostic(MODEL, "net-bias", message, CONVERTS, source="vllm-project/vllm#11126")


def _class_of(architecture: str, method: str) -> str:
    prefix = PREFIXES[method]
    ends = method != "eagle" and architecture.endswith(prefix)
    named = architecture.startswith(prefix) or ends or architecture in AS_NAMED
    return architecture if named else prefix + architecture


def _about_layers(config: Mapping[str, Any]) -> Iterable[Diagnostic]:
    """Warn of layers that are named by their outputs: vLLM adds no 1, as SGLang does, and reads the layers before."""
    section = config.get("eagle_config")
    named = section.get(AUX_LAYERS) if isinstance(section, Mapping) else None
    if config.get(AUX_LAYERS) or not isinstance(named, list) or not all(type(number) is int for number in named):
        return
    inputs = [number + 1 for number in named]
    message = f"eagle_config names the layers {named} by their outputs, and vLLM reads what goes into them"
    hint = f"it drafts better with {AUX_LAYERS}: {inputs} at the top of config.json, which vLLM takes first"
    yield Diagnostic(MODEL, "aux-layers", message, hint, "warning", source=RUNNER)


def _about_positions(context: PlanContext, method: str, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield where texts grow beyond the net's table of positions, which vLLM then reads past its end."""
    length, layer = context.recipe.engine.max_seq_len, _layer_config(context.sources["draft"])
    positions = layer.get("max_position_embeddings")
    word = "raises_positions" if method in ("eagle", "eagle3") else "raises_block_positions"
    if isinstance(positions, int) and positions < length and word not in release.does:
        message = f"the net has {positions} positions, and vLLM {release.version} reads past them in longer texts"
        hint = f"set engine.max_seq_len to at most {positions}; {having(lambda each: word in each.does)}"
        yield Diagnostic(MODEL, "positions", message, hint, source="vllm-project/vllm#48894, #57941")


def _layer_config(net: Source) -> Mapping[str, Any]:
    layer = net.config.get("transformer_layer_config")  # where the speculators project has it
    return layer if isinstance(layer, Mapping) else net.config


def _about_target(target: Source, method: str, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield where the target does not hand over the hidden states that the net reads."""
    architecture, text = architecture_of(target), target.config.get("text_config")
    model_type = str((text if isinstance(text, Mapping) else target.config).get("model_type"))
    known = sorted(release.eagle3_models)
    if known and method == "eagle3" and not any(part in model_type for part in known):
        message = f"vLLM {release.version} runs {method} for {', '.join(known)} and not for {model_type}"
        hint = having(lambda each: not each.eagle3_models)
        yield Diagnostic("target.model", "version", message, hint, source=cite(release))
    elif architecture and architecture not in release.eagle3_targets:
        message = f"{architecture} of vLLM {release.version} gives {method} no hidden states"
        hint = having(lambda each: architecture in each.eagle3_targets) or "use method: ngram"
        yield Diagnostic("target.model", "version", message, hint, source=cite(release, INTERFACES))
