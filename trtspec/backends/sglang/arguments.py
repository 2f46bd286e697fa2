# SPDX-License-Identifier: Apache-2.0
"""Facts about each SGLang release, and the arguments of SGLang's Engine for a recipe, which are fields of ServerArgs.

Names are from sgl-project/sglang:python/sglang/srt/arg_groups/fields/*.py@v0.5.23. The thresholds that would make
acceptance lossy (speculative_accept_threshold_single and _acc) keep their default, 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.backends.context import PlanContext, hub_revision, online_format
from trtspec.core.paths import load_package_yaml
from trtspec.core.versions import KnownReleases, facts_by_release
from trtspec.methods.eagle import EagleOptions
from trtspec.methods.eagle3 import Eagle3Options
from trtspec.methods.ngram import NgramOptions
from trtspec.recipe.resolve import resolve_max_num_tokens

ADAPTIVE = "./1/adaptive.json"  # relative to the served model's directory, like every path of the document
KV_CACHE = {"fp8": "fp8_e4m3"}
# SGLang's algorithm names by trtspec's method names. UNO is omitted: it drafts with a LoRA adapter, which no method
# has. Suffix decoding is omitted: NGRAM drafts a fixed number of tokens, independent of a match's length and counts.
ALGORITHMS = {
    "draft_target": "STANDALONE",
    "ngram": "NGRAM",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
BLOCK_VERIFICATION = "speculative_use_block_verification"
# methods that a release supports only for some classes of drafters
CHECKPOINT_METHODS = ("eagle", "eagle3", "dflash", "dspark")
BLOCK_METHODS = ("dflash", "dspark")  # they draft all tokens in one step


FACTS = ("algorithms", "fields", *(f"nets_{method}" for method in CHECKPOINT_METHODS), "mtp_targets", "does")


@dataclass(frozen=True)
class SglangRelease:
    """An SGLang release; `facts` are names by fact, as versions.yaml describes them."""

    version: str
    facts: dict[str, frozenset[str]]

    @property
    def nets(self) -> dict[str, list[str]]:
        """Return the release's drafter classes by trtspec's method, for methods that have one."""
        found = {method: sorted(self.facts[f"nets_{method}"]) for method in CHECKPOINT_METHODS}
        return {method: nets for method, nets in found.items() if nets}

    @property
    def mtp_targets(self) -> frozenset[str]:
        """Return the target classes with MTP layers that can draft."""
        return self.facts["mtp_targets"]

    @property
    def schedule(self) -> bool:
        """Return whether the draft length can depend on the number of requests."""
        return "schedule" in self.facts["does"]

    @property
    def block(self) -> bool:
        """Return whether block verification is supported."""
        return BLOCK_VERIFICATION in self.facts["fields"]

    @property
    def methods(self) -> dict[str, str]:
        """Return the release's algorithm names, by trtspec's method names."""
        missing = {*CHECKPOINT_METHODS} - {*self.nets}
        names = {name: theirs for name, theirs in ALGORITHMS.items() if name not in missing}
        return {name: theirs for name, theirs in names.items() if theirs in self.facts["algorithms"]}


@cache
def releases() -> dict[str, SglangRelease]:
    """Return the known releases by version, oldest first; looking up another version returns the nearest release."""
    document = load_package_yaml(Path(__file__).with_name("versions.yaml"))
    found = facts_by_release(document, FACTS)
    return KnownReleases({version: SglangRelease(version, facts) for version, facts in found.items()})


def engine_arguments(context: PlanContext, target_path: str, draft_path: str | None) -> dict[str, Any]:
    """Return the arguments of Engine; paths are hub ids, or directories relative to the served model's directory."""
    recipe, engine, target = context.recipe, context.recipe.engine, context.recipe.target
    found: dict[str, Any] = {
        "model_path": target_path,
        "skip_tokenizer_init": True,  # requests and responses contain ids
        "enable_metrics": True,  # otherwise requests do not report their queue time
        "dtype": target.dtype,
        "tp_size": target.parallel.tensor,
        "pp_size": target.parallel.pipeline,
        "max_running_requests": engine.max_batch_size,
        "context_length": engine.max_seq_len,
        "chunked_prefill_size": resolve_max_num_tokens(engine, context.draft_shape.max_tokens),
        # the fraction of all memory, including weights
        "mem_fraction_static": recipe.serving.kv_cache_fraction,
    }
    if revision := hub_revision(target, target_path):
        found["revision"] = revision
    if online := online_format(context, "target", target):
        found["quantization"] = online
    if target.quantization.kv_cache != "none":
        found["kv_cache_dtype"] = KV_CACHE[target.quantization.kv_cache]
    if recipe.speculation.method != "none":
        found |= speculation(context, draft_path)
    return found


def speculation(context: PlanContext, draft_path: str | None) -> dict[str, Any]:
    """Return the speculation arguments of Engine for a recipe with a drafter."""
    recipe, shape = context.recipe.speculation, context.draft_shape
    found: dict[str, Any] = {
        "speculative_algorithm": ALGORITHMS[recipe.method],
        "speculative_num_steps": 1 if recipe.method in BLOCK_METHODS else shape.max_depth,
        "speculative_eagle_topk": tree_width(context),
        "speculative_num_draft_tokens": shape.max_tokens + 1,  # with the token that follows the accepted ones
        **_option_fields(context),
    }
    if recipe.draft and draft_path:
        found["speculative_draft_model_path"] = draft_path
        if revision := hub_revision(recipe.draft, draft_path):
            found["speculative_draft_model_revision"] = revision
        online = online_format(context, "draft", recipe.draft)
        if online != online_format(context, "target", context.recipe.target):  # the default is the target's
            found["speculative_draft_model_quantization"] = online or "unquant"
    if recipe.verify == "block":
        found[BLOCK_VERIFICATION] = True
    if recipe.schedule:
        found |= {"speculative_adaptive": True, "speculative_adaptive_config": ADAPTIVE}
    return found


def adaptive_config(context: PlanContext) -> dict[str, Any]:
    """Return SGLang's adaptive configuration for the recipe's schedule; empty without a schedule.

    It maps a minimum number of requests to a single candidate draft length, so that SGLang adapts nothing else.
    """
    schedule, found, first = context.recipe.speculation.schedule, {}, 1
    for entry in schedule:
        found[str(first)] = {"candidate_steps": [entry.draft_len]}
        first = entry.max_batch + 1
    if schedule and first <= context.recipe.engine.max_batch_size:
        found[str(first)] = {"candidate_steps": [0]}
    return found


def tree_width(context: PlanContext) -> int:
    """Return the number of children of each draft token; 1 for a chain."""
    options = context.options
    return options.top_k or 1 if isinstance(options, EagleOptions | Eagle3Options) else 1


def _option_fields(context: PlanContext) -> dict[str, Any]:
    options, depth = context.options, context.draft_shape.max_depth
    if isinstance(options, NgramOptions):
        # with a breadth of 1 its tree is a chain; its paths contain the match and the draft tokens
        breadth = {f"speculative_ngram_{end}_bfs_breadth": 1 for end in ("min", "max")}
        return {**breadth, "speculative_ngram_max_trie_depth": options.max_match + depth}
    if context.method_name == "dspark":
        return {"speculative_dspark_block_size": depth}  # DFLASH also counts the token before the draft tokens
    return {}
