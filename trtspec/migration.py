# SPDX-License-Identifier: Apache-2.0
"""A recipe for another TensorRT-LLM: what carries over, what changes its name, what is gone and what to use instead.

From 1.3 on there is no trtllm-build (NVIDIA/TensorRT-LLM pulls 15763, 15907 and 15918): engines end at 1.2.1, and the
LLM API's PyTorch backend, which knows neither Medusa, EAGLE-1/2, lookahead nor ReDrafter
(docs/source/legacy/tensorrt-backend-removal.md), takes a Hugging Face checkpoint as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from trtspec.backends.trtllm_versions import Contract, Release, contracts, minors_with
from trtspec.errors import TrtspecError
from trtspec.recipe.schema import Recipe

# EAGLE-3 nets that their authors publish for a target (SafeAILab/EAGLE:README.md).
EAGLE3_NETS = {
    "lmsys/vicuna-13b-v1.3": "yuhuili/EAGLE3-Vicuna1.3-13B",
    "meta-llama/Llama-3.1-8B-Instruct": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "meta-llama/Llama-3.3-70B-Instruct": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
}
# Options of trtllm-build that say something the LLM API says elsewhere (tensorrt_llm/llmapi/llm_args.py).
ELSEWHERE = {
    "tokens_per_block": "kv_cache_config.tokens_per_block",
    "logits_dtype": "nothing: logits are float32",
    "gather_context_logits": "the request's return_context_logits",
    "gather_generation_logits": "the request's return_generation_logits",
    "lora_dir": "lora_config.lora_dir",
    "max_lora_rank": "lora_config.max_lora_rank",
}

Kind = Literal["kept", "changed", "dropped", "open"]


@dataclass(frozen=True)
class Change:
    """What becomes of one key; "open" has to be filled in by hand before the recipe can be built."""

    kind: Kind
    path: str
    why: str


@dataclass
class Migration:
    """The recipe for the other version, as plain values, and what became of each key."""

    version: str
    document: dict[str, Any]
    changes: list[Change] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Return whether the recipe says everything that it needs."""
        return all(change.kind != "open" for change in self.changes)

    def note(self, kind: Kind, path: str, why: str) -> None:
        """Record what became of a key."""
        self.changes.append(Change(kind, path, why))

    def drop(self, path: str, why: str) -> None:
        """Remove a key, where it is written."""
        *sections, key = path.split(".")
        section: Any = self.document
        for name in sections:
            section = section.get(name, {})
        if key in section:
            del section[key]
            self.note("dropped", path, why)


def migrate(recipe: Recipe, to: str) -> Migration:
    """Return a recipe for the version `to`, a release (1.2.1) or a minor (1.3); TrtspecError where nothing leads there.

    Raises TrtspecError for a recipe whose engine is not TensorRT-LLM's, or that is for a later version already.
    """
    contract, release = _find(to)
    backend = recipe.engine.backend
    if backend not in ("auto", "tensorrt_llm", "llmapi"):
        raise TrtspecError(f"the recipe is for {backend}, which has no TensorRT-LLM version to migrate to")
    document = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    migration = Migration(release.version, document)
    document.setdefault("engine", {})["version"] = release.version
    migration.note("changed", "engine.version", f"{recipe.engine.version or 'the default'} becomes {release.version}")
    if contract.options and backend != "llmapi":
        _to_engines(migration, recipe, contract)
    else:
        _to_llmapi(migration, recipe, contract)
    return migration


def _find(to: str) -> tuple[Contract, Release]:
    known = [(contract, release) for contract in contracts().values() for release in contract.releases]
    for contract, release in reversed(known):
        if to in (release.version, contract.minor):
            return contract, release
    names = ", ".join([*contracts(), *(release.version for _, release in known)])
    raise TrtspecError(f"nothing is known of TensorRT-LLM {to}", hint=f"known: {names}")


def _to_engines(migration: Migration, recipe: Recipe, contract: Contract) -> None:
    """Move between versions that have trtllm-build: only options come and go."""
    migration.document["engine"]["backend"] = "tensorrt_llm"
    for option in recipe.engine.extra:
        if option not in contract.options:
            elsewhere = ", ".join(minors_with(option)) or "none that is known"
            migration.drop(f"engine.extra.{option}", f"trtllm-build {contract.minor} lacks it; versions: {elsewhere}")
    before = contracts().get(".".join((recipe.engine.version or "").split(".")[:2]))
    for option in sorted(contract.options.keys() - (before.options.keys() if before else contract.options.keys())):
        migration.note("kept", f"engine.extra.{option}", f"new in {contract.minor}; its default is left as it is")


def _to_llmapi(migration: Migration, recipe: Recipe, contract: Contract) -> None:
    """Move to the LLM API."""
    document, engine = migration.document, migration.document["engine"]
    if recipe.engine.backend != "llmapi":
        engine["backend"] = "llmapi"
        migration.note("changed", "engine.backend", "the LLM API serves what engines did")
    for option in recipe.engine.extra:
        said = f"say it as {ELSEWHERE[option]}" if option in ELSEWHERE else "it is about TensorRT engines"
        migration.drop(f"engine.extra.{option}", f"there is no trtllm-build: {said}")
    if "extra" in engine and not engine["extra"]:
        del engine["extra"]
    migration.drop("engine.build", "nothing is built")
    migration.drop("serving.fast_logits", "draft and target run in one executor")
    if isinstance(document.get("serving", {}).get("placement"), dict):
        migration.drop("serving.placement.draft", "the draft runs where the target runs")
    _method(migration, recipe, contract)
    _quantization(migration, recipe)
    for section in ("gates", "serving"):
        if section in document:
            migration.note("kept", section, "holds as it is")


def _method(migration: Migration, recipe: Recipe, contract: Contract) -> None:
    method = recipe.speculation.method
    if method == "none":
        return
    if found := contract.llmapi.methods.get(method):
        migration.note("kept", "speculation.method", f"{method} is the LLM API's decoding_type {found.name}")
        migration.drop("speculation.draft.parallel", "the draft is divided as the target is")
        migration.drop("speculation.draft.quantization", "the draft's checkpoint runs as it is stored")
        return
    gone = f"{method} has no successor in the LLM API"
    net = EAGLE3_NETS.get(recipe.target.model) if method in ("medusa", "eagle", "redrafter") else None
    if net:
        migration.document["speculation"] = {"method": "eagle3", "draft_len": 4, "draft": {"model": net}}
        migration.note("changed", "speculation.method", f"{gone}; eagle3 drafts with a net published for this target")
        migration.note("open", "speculation.draft.revision", f"the commit of {net} that you mean")
        return
    migration.document["speculation"] = {"method": "ngram", "draft_len": 4}
    why = "ngram needs no training; an EAGLE-3 net trained for the target drafts better"
    migration.note("changed", "speculation.method", f"{gone}; {why}")
    if recipe.gates.min_acceptance or recipe.gates.min_speedup:
        migration.note("kept", "gates", "its limits were set for another method: measure again")


def _quantization(migration: Migration, recipe: Recipe) -> None:
    weights = recipe.target.quantization.weights
    if weights == "none":
        return
    why = f"the LLM API quantizes nothing: name a checkpoint that is stored in {weights}, as ModelOpt exports it"
    migration.drop("target.quantization.weights", why)
    migration.drop("target.quantization.calibration", "nothing is calibrated")
    migration.drop("target.quantization.exclude", "the checkpoint says so itself")
    migration.note("open", "target.model", why)
