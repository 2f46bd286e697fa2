# SPDX-License-Identifier: Apache-2.0
"""Checks of a recipe and its drafter against its version of vLLM: errors that prevent serving, and ignored settings.

The checks of a single method are in `methods/NAME/vllm.py`. A draft model with another vocabulary drafts shared tokens
(use_heterogeneous_vocab, arXiv:2502.05202).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trtspec.backends.common import checks
from trtspec.backends.common.checks import DRAFT, METHOD, OPTIONS, SCHEDULE, VERIFY, source_architecture
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import VllmRelease, cite, having, methods, releases
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.tokenizer import check_tokenizers
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import TrtspecError
from trtspec.methods.dflash import block_size
from trtspec.methods.eagle3 import AUX_LAYERS

LENGTHS = "num_speculative_tokens_per_batch_size"
# vLLM derives the drafter's class by adding this prefix to the architecture in its config.json
PREFIXES = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash", "dspark": ""}
AS_NAMED = ("LiLiCorrDraftModel",)
WHOLE_BLOCK = "Qwen3OmniDSparkModel"  # draft_len must equal its block size; only 0.33 was read
DSPARK, QWEN3_DSPARK = "DSparkDraftModel", "names_qwen3_dspark"
OTHER_TYPE = "no known release reads this type: use a checkpoint in the format of the class that vLLM has for it"
CONVERTS = "use a backend that converts checkpoints"
REGISTRY, INTERFACES = "model_executor/models/registry.py", "model_executor/models/interfaces.py"
SPECULATORS = "transformers_utils/configs/speculators/algos.py"
RUNNER = "vllm-project/vllm:vllm/v1/worker/gpu_model_runner.py@v0.32.0, _get_eagle3_aux_layers_from_config"
FIELD = "use_heterogeneous_vocab"


def _check_features(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield errors for a schedule or a verification rule that the release does not support for the method."""
    speculation = context.recipe.speculation
    if speculation.schedule and LENGTHS not in release.fields:
        message = f"vLLM {release.version} does not adapt the draft length to the batch size"
        hint = having(lambda each: LENGTHS in each.fields)
        yield Diagnostic(SCHEDULE, "version", message, hint, source=cite(release))
    elif speculation.schedule and methods()[speculation.method].fixed_length:
        message = f"vLLM does not adapt the draft length of {speculation.method} to the batch size"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule", source=cite(release, "v1/spec_decode"))
    if speculation.verify == "block" and (message := _block_rejection(context, release)):
        hint = "set verify: standard" if "runs_v2" in release.does else having(lambda each: "runs_v2" in each.does)
        yield Diagnostic(VERIFY, "not-supported", message, hint, source=cite(release, "v1/sample/rejection_sampler.py"))


def _block_rejection(context: PlanContext, release: VllmRelease) -> str:
    """Return the reason why block verification is not available; "" if it is.

    vLLM's V1 model runner does not support block verification and silently ignores the setting.
    """
    method = context.method_name
    if "block" not in release.rules or "runs_v2" not in release.does:
        return f"vLLM {release.version} does not support block verification for every target"
    if context.method.draft_passes == "none":
        same = "so block verification accepts the same tokens as standard"
        return f"{method} does not provide draft probabilities, {same}"
    v1 = release.methods[method] in release.not_in_v2 or methods()[method].in_parallel
    if v1 or (context.method.drafts_with == "model" and has_other_vocabulary(context)):
        return f"vLLM runs this drafter on its V1 model runner, which verifies {method} token by token"
    return ""


def check(context: PlanContext) -> Iterable[Diagnostic]:
    release, method = releases()[context.version], context.method_name
    if method != "none" and method not in release.methods:
        message, hint = f"vLLM {release.version} does not support {method}", having(lambda each: method in each.methods)
        yield Diagnostic(METHOD, "method", message, hint, source=cite(release))
        return
    if method != "none":
        yield from _check_options(context, cite(release))
        yield from methods()[method].check(context, release)
        yield from _check_parallel(context, release)
        yield from _check_drafter(context, release)
        yield from _check_features(context, release)
        yield from _check_vocabulary(context)
    yield from checks.check_online(context, "vLLM", release.online)
    maps_vocabularies = supports_heterogeneous_vocab(release.version, method)
    yield from checks.check_unconverted(context, "vLLM", maps_vocabularies=maps_vocabularies)
    if not context.recipe.serving.streaming:
        message = "Triton's vLLM backend serves decoupled models only"
        source = "triton-inference-server/vllm_backend:src/model.py@00ea75bc"
        yield Diagnostic("serving.streaming", "not-supported", message, "set it to true", source=source)


def _check_options(context: PlanContext, source: str) -> Iterable[Diagnostic]:
    draft_shape = context.draft_shape
    message = "vLLM accepts drafts exactly; typical acceptance is not supported"
    yield from checks.check_acceptance(context, message, source)
    yield from checks.check_full_drafts(context, "vLLM", source)
    yield from checks.check_confidence_table(context, "vLLM")
    if draft_shape.max_tokens > draft_shape.max_depth:
        message = f"vLLM drafts a chain of {draft_shape.max_depth} tokens, not the tree's {draft_shape.max_tokens}"
        yield Diagnostic(OPTIONS, "tree", message, severity="warning", source=source)


def _check_parallel(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield errors for parallelism of draft and target that vLLM does not support."""
    speculation, parallel = context.recipe.speculation, context.recipe.target.parallel
    draft = speculation.draft
    if draft and "parallel" in draft.model_fields_set and draft.parallel.tensor != parallel.tensor:
        message = f"the draft uses the target's {parallel.tensor} GPUs in vLLM, not {draft.parallel.tensor}"
        source = cite(release, "v1/spec_decode/draft_model.py")
        yield Diagnostic("speculation.draft.parallel.tensor", "parallel", message, "remove it", source=source)
    relayed = release.pipeline_targets if speculation.method == "eagle3" else ()
    if parallel.pipeline > 1 and source_architecture(context.sources["target"]) not in relayed:
        message = f"vLLM {release.version} does not support {speculation.method} with pipeline parallelism"
        hint = f"set parallel: {{tensor: {parallel.ranks}}}, or method: none"
        source = "vllm-project/vllm#49355, #57755 and pull 50514, which adds eagle3"
        yield Diagnostic("target.parallel.pipeline", "parallel", message, hint, source=source)


def _check_drafter(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield errors for drafters that vLLM cannot load or cannot use with this target."""
    method = release.methods[context.method_name]
    if method not in PREFIXES:
        return
    net = context.sources["draft"]
    kind = net.config.get("speculators_model_type")
    if kind is None:
        yield from _check_class(net, method, release, context.draft_shape.max_depth)
    elif str(kind) not in release.speculators:
        message = f"vLLM {release.version} does not support drafters of the speculators type {kind}"
        hint = having(lambda each: str(kind) in each.speculators) or OTHER_TYPE
        yield Diagnostic(DRAFT, "net-class", message, hint, source=cite(release, SPECULATORS))
    yield from _check_positions(context, method, release)
    if method == "eagle3":
        yield from _check_layers(net.config)
    if method != "eagle":
        yield from _check_target(context.sources["target"], method, release)


def _check_class(net: Source, method: str, release: VllmRelease, depth: int) -> Iterable[Diagnostic]:
    name = _class_name(source_architecture(net), method)
    if name not in release.heads:
        message = f"vLLM {release.version} lacks the class {name}, which this drafter requires"
        hint = having(lambda each: name in each.heads) or CONVERTS
        yield Diagnostic(DRAFT, "net-class", message, hint, source=cite(release, REGISTRY))
    elif name == DSPARK and net.config.get("model_type") == "qwen3" and QWEN3_DSPARK not in release.does:
        message = f"vLLM {release.version} expects layers of DeepSeek V4 in a drafter of the class {DSPARK}"
        hint = having(lambda each: QWEN3_DSPARK in each.does)
        yield Diagnostic(DRAFT, "net-class", message, hint, source=cite(release))
    elif name == WHOLE_BLOCK and release.version == "0.33.0" and (block := block_size(net)) not in (None, depth):
        message = f"vLLM {release.version} drafts the whole block of a {name}, {block} tokens, not {depth}"
        hint = f"set speculation.draft_len: {block}"
        source = cite(release, "config/speculative.py")
        yield Diagnostic("speculation.draft_len", "block-size", message, hint, source=source)
    elif method == "eagle" and "fc.bias" in net.tensors and name not in release.biased_heads:
        message = f"the drafter has fc.bias, which {name} of vLLM {release.version} does not support"
        yield Diagnostic(DRAFT, "net-bias", message, CONVERTS, source="vllm-project/vllm#11126")


def _class_name(architecture: str, method: str) -> str:
    prefix = PREFIXES[method]
    ends = method != "eagle" and architecture.endswith(prefix)
    named = architecture.startswith(prefix) or ends or architecture in AS_NAMED
    return architecture if named else prefix + architecture


def _check_layers(config: Mapping[str, Any]) -> Iterable[Diagnostic]:
    """Yield a warning if eagle_config lists target layers by their outputs, as SGLang reads them.

    vLLM reads the numbers as inputs, so it would use the preceding layers.
    """
    section = config.get("eagle_config")
    named = section.get(AUX_LAYERS) if isinstance(section, Mapping) else None
    if config.get(AUX_LAYERS) or not isinstance(named, list) or not all(type(number) is int for number in named):
        return
    inputs = [number + 1 for number in named]
    message = f"eagle_config lists the layers {named} by their outputs, but vLLM reads the inputs of these layers"
    hint = f"set {AUX_LAYERS}: {inputs} at the top of config.json, which vLLM prefers, for better acceptance"
    yield Diagnostic(DRAFT, "aux-layers", message, hint, "warning", source=RUNNER)


def _check_positions(context: PlanContext, method: str, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield an error if texts can exceed the drafter's position table, past whose end vLLM would read."""
    length, config = context.recipe.engine.max_seq_len, context.sources["draft"].config
    layer = config.get("transformer_layer_config")  # the key of the speculators format
    positions = (layer if isinstance(layer, Mapping) else config).get("max_position_embeddings")
    feature = "raises_positions" if method in ("eagle", "eagle3") else "raises_block_positions"
    if isinstance(positions, int) and positions < length and feature not in release.does:
        message = f"the drafter has {positions} positions, and vLLM {release.version} reads past them in longer texts"
        hint = f"set engine.max_seq_len to at most {positions}; {having(lambda each: feature in each.does)}"
        yield Diagnostic(DRAFT, "positions", message, hint, source="vllm-project/vllm#48894, #57941")


def _check_target(target: Source, method: str, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield an error if the target's class does not provide the hidden states that the drafter reads."""
    architecture, text = source_architecture(target), target.config.get("text_config")
    model_type = str((text if isinstance(text, Mapping) else target.config).get("model_type"))
    supported = sorted(release.eagle3_models)
    if supported and method == "eagle3" and not any(part in model_type for part in supported):
        message = f"vLLM {release.version} supports {method} for {', '.join(supported)}, but not for {model_type}"
        hint = having(lambda each: not each.eagle3_models)
        yield Diagnostic("target.model", "version", message, hint, source=cite(release))
    elif architecture and architecture not in release.eagle3_targets:
        message = f"{architecture} of vLLM {release.version} does not provide hidden states to {method}"
        hint = having(lambda each: architecture in each.eagle3_targets) or "use method: ngram"
        yield Diagnostic("target.model", "version", message, hint, source=cite(release, INTERFACES))


def supports_heterogeneous_vocab(version: str, method: str) -> bool:
    """Return whether a release supports a draft model whose tokens differ from the target's."""
    theirs = methods().get(method)
    return bool(theirs and theirs.maps_vocabularies) and FIELD in releases()[version].fields


def has_other_vocabulary(context: PlanContext) -> bool:
    """Return whether the draft model's vocabulary differs from the target's in size or tokens."""
    ours, theirs = context.target_config, context.draft_config
    return bool(ours and theirs and ours.vocab_size != theirs.vocab_size) or _has_other_tokens(context)


def _has_other_tokens(context: PlanContext) -> bool:
    target, draft = (context.sources[role].root for role in ("target", "draft"))
    if not all((root / "tokenizer.json").is_file() for root in (target, draft)):
        return False
    try:
        check_tokenizers(target, draft)
    except TrtspecError:
        return True
    return False


def _check_vocabulary(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield a warning for a draft model with another vocabulary, which can draft only shared tokens."""
    if not supports_heterogeneous_vocab(context.version, context.method_name) or not has_other_vocabulary(context):
        return
    message = "draft and target have different vocabularies: vLLM drafts only shared tokens, on its V1 model runner"
    hint = "a draft of the target's family is accepted more often"
    ours, theirs = context.target_config, context.draft_config
    if ours and theirs and not _has_other_tokens(context):
        message = f"draft and target share a tokenizer, but have {theirs.vocab_size} and {ours.vocab_size} rows: vLLM"
        message += " maps the shared tokens, on its V1 model runner"
        hint = "to avoid this, save both with equal vocabularies: resize_token_embeddings in transformers"
    yield Diagnostic(DRAFT, "vocabulary", message, hint, "warning", source=FIELD)
