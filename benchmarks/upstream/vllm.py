# SPDX-License-Identifier: Apache-2.0
"""Read the features of a vLLM release from its wheel, without installing or importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from benchmarks.upstream.syntax import Field, class_fields, literals, strings
from benchmarks.upstream.wheel import Sources
from trtspec.backends.vllm.versions import QUANTIZATIONS

Facts = dict[str, set[str]]
SPECULATIVE, REGISTRY = "vllm/config/speculative.py", "vllm/model_executor/models/registry.py"
VLLM_CONFIG, RAISES = "vllm/config/vllm.py", "SpeculativeConfig._maybe_override_draft_max_position_embeddings("
V2_LACKS = "_get_v2_model_runner_unsupported_features"
SPECULATORS = "vllm/transformers_utils/configs/speculators/algos.py"
QUANTIZATION = "vllm/model_executor/layers/quantization/__init__.py"
ARGUMENTS, DRAFT_MODEL = "vllm/engine/arg_utils.py", "vllm/v1/spec_decode/draft_model.py"
READ = {SPECULATIVE, REGISTRY, VLLM_CONFIG, SPECULATORS, QUANTIZATION, ARGUMENTS, DRAFT_MODEL}
MODELS, CONFIGS = ("vllm/model_executor/models/", "vllm/models/"), "vllm/config/"
HEADS = r"(P?[Ee]agle|Eagle|DFlash|LiLiCorr|Medusa).*(For|Model)|.*(Eagle3|DSpark\w*Model)$"
ASSISTANTS = r"gemma4_(\w+_)?assistant"
TARGETS = r"(?!Transformers).*(ForCausalLM|ForConditionalGeneration)$"
# also tested there, but not MTP layers of a target: an EAGLE head, target wrappers, draft models, and keys
NO_MTP = {
    *("MistralLarge3ForCausalLM", "NemotronH_Super_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3"),
    *(
        "muse_glimmer_assistant",
        "num_nextn_predict_layers",
        "model_type",
        "quantization_config",
    ),
    "deepseek_v41",  # rejected there: its layers are DSpark's
}


def members(names: Iterable[str]) -> list[str]:
    """Return the members that `read` and `schema` read."""
    found = (name for name in names if name in READ or name.startswith((*MODELS, CONFIGS)))
    return [name for name in found if name.endswith(".py")]


def read(wheel: Sources) -> Facts:
    """Return the features of a release, by the facts of versions.yaml."""
    known = literals([wheel.tree(SPECULATIVE)])
    registered, models = _registered(wheel), Models(wheel)
    mtp, assistants = _mtp(wheel)
    methods = {name for name in known["SpeculativeMethod"] if not name.endswith("_mtp")}
    heads = {name for name in registered if re.match(HEADS, name)}
    targets = {name: own for name, own in registered.items() if re.match(TARGETS, name) and name not in heads}
    quantizations = literals([wheel.tree(QUANTIZATION)])["QuantizationMethods"]
    return {
        "speculative": methods,
        "fields": _fields(wheel),
        "rules": known["RejectionSampleMethod"],
        "formats": quantizations & set(QUANTIZATIONS.values()),
        "mtp_models": {name for name in mtp if name[0].islower()},
        "mtp_architectures": {name for name in mtp if name[0].isupper()},
        "assistants": assistants,
        "eagle3_models": _eagle3_models(wheel),
        "eagle3_targets": {name for name, own in targets.items() if models.gives_eagle3(own)},
        "pipeline_targets": {name for name, own in targets.items() if models.gives_eagle3(own) and models.relays(own)},
        "heads": heads,
        "biased_heads": {name for name in heads if registered[name] in models.biased},
        "speculators": set(re.findall(r'register_speculator\("(\w+)"\)', wheel.text(SPECULATORS))),
        "not_in_v2": _not_in_v2(wheel, methods),
        "does": _does(wheel),
    }


def schema(wheel: Sources) -> dict[str, dict[str, Field]]:
    """Return the fields of AsyncEngineArgs, and those of its speculative_config."""
    configs = [wheel.tree(name) for name in wheel.names() if name.startswith(CONFIGS) and name.endswith(".py")]
    trees = [wheel.tree(ARGUMENTS), *configs]
    names = literals(trees)
    found = {"": "AsyncEngineArgs", "speculative_config": "SpeculativeConfig"}
    return {section: class_fields(trees, name, names) for section, name in found.items()}


def _model_files(wheel: Sources) -> Iterator[str]:
    return (name for name in wheel.names() if name.startswith(MODELS) and name.endswith(".py"))


class Models:
    """The classes of a release's models: their bases, the names in their bodies, and which have a bias in `fc`."""

    def __init__(self, wheel: Sources) -> None:
        self.bases: dict[str, list[str]] = {}
        self.nodes: dict[str, ast.ClassDef] = {}
        self.relaying: set[str] = set()
        self.biased: set[str] = set()
        for path in _model_files(wheel):
            text = wheel.text(path)
            classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
            for node in classes:
                self.bases[node.name] = [ast.unparse(base).split(".")[-1] for base in node.bases]
                self.nodes[node.name] = node
                if any(_says_it_relays(each) for each in node.body):
                    self.relaying.add(node.name)
            if "self.fc = " in text and any(_is_biased_fc(node) for one in classes for node in ast.walk(one)):
                self.biased |= {node.name for node in classes}

    def line(self, own: str) -> list[str]:
        """Return a class and all its bases."""
        return [own] + [each for base in self.bases.get(own, ()) if base != own for each in self.line(base)]

    def gives_eagle3(self, own: str) -> bool:
        """Return whether a target provides the hidden states that EAGLE-3 reads."""
        return "SupportsEagle3" in self.line(own)

    def relays(self, own: str) -> bool:
        """Return whether a target's decoder passes them through the stages of a pipeline."""
        made: set[str] = next(filter(None, map(self._decoders, self.line(own))), set())
        return any(each in self.relaying for decoder in made for each in self.line(decoder))

    def _decoders(self, own: str) -> set[str]:
        nodes = ast.walk(self.nodes[own]) if own in self.nodes else ()
        named = {node.id for node in nodes if isinstance(node, ast.Name)}
        return {name for name in named if name.endswith("Model") and name in self.bases}


def _is_biased_fc(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign) or getattr(node.targets[0], "attr", "") != "fc":
        return False
    return bool(re.search(r"\bbias=True", ast.unparse(node.value)))


def _says_it_relays(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    return bool(re.match(r"supports_aux_hidden_states_over_pp\b.*= True", ast.unparse(node)))


def _does(wheel: Sources) -> set[str]:
    """Return the release's further behaviours."""
    config, speculative = wheel.text(VLLM_CONFIG), wheel.text(SPECULATIVE)
    found = {
        "equal_draft_tensor": "_raise_if_draft_tp_mismatch()" in wheel.text(DRAFT_MODEL),
        "raises_positions": RAISES in speculative,
        "raises_block_positions": re.search(r'if self.method != "draft_model":[^=]*' + re.escape(RAISES), speculative)
        is not None,
        "names_qwen3_dspark": '"DSparkDraftModel" in self.draft_model_config.architectures' in speculative,
        "maps_medusa_names": "_remap_old_checkpoint_key(" in wheel.text("vllm/model_executor/models/medusa.py"),
        "runs_v2": "HAS_TRITON" in config and "_is_default_v2_model_runner_model" not in config,
    }
    return {name for name, does in found.items() if does}


def _not_in_v2(wheel: Sources, known: set[str]) -> set[str]:
    """Return the methods that the V2 model runner does not support."""
    found: set[str] = set()
    if V2_LACKS not in wheel.text(VLLM_CONFIG):
        return set()
    for node in ast.walk(_find(wheel.tree(VLLM_CONFIG), V2_LACKS)):
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "speculative_config.method":
            asked = strings(node.comparators[0])
            if isinstance(node.ops[0], ast.In):
                found |= asked
            elif "eagle" in asked:  # the test for parallel drafting contains only DFlash and DSpark
                found |= known - asked
    return found & known


def _find(tree: ast.Module, name: str) -> ast.AST:
    return next(node for node in ast.walk(tree) if getattr(node, "name", None) == name)


def _fields(wheel: Sources) -> set[str]:
    return set(class_fields([wheel.tree(SPECULATIVE)], "SpeculativeConfig"))


def _mtp(wheel: Sources) -> tuple[set[str], set[str]]:
    """Return the names that `hf_config_override` turns into an MTP model: those of targets, and Gemma 4 assistants."""
    tests = [
        node for node in ast.walk(_find(wheel.tree(SPECULATIVE), "hf_config_override")) if isinstance(node, ast.Compare)
    ]
    tested = {word for node in tests for word in strings(node)}
    assistants = {word for word in tested if re.fullmatch(ASSISTANTS, word)}
    return {word for word in tested if not word.endswith(("_mtp", "MTP"))} - assistants - NO_MTP, assistants


def _eagle3_models(wheel: Sources) -> set[str]:
    """Return the parts of model types, one of which an EAGLE-3 target's must contain; empty if any type is valid."""
    for node in ast.walk(wheel.tree(SPECULATIVE)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "aux_hidden_states_supported":
            return strings(node.value)
    return set()


def _registered(wheel: Sources) -> dict[str, str]:
    """Return the class of every architecture."""
    found: dict[str, str] = {}
    for node in wheel.tree(REGISTRY).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                    found[str(key.value)] = str(ast.literal_eval(value)[1])
    return found
