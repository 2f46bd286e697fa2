# SPDX-License-Identifier: Apache-2.0
"""vLLM's AsyncEngineArgs accept the emitted documents and create the engine's configuration from them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests._support import gemma4
from tests._support.catalogue import catalogue_contexts, copy_catalogue
from tests.backends.source_contexts import facts, source_context
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.arguments import model_json
from trtspec.core.paths import recipes_dir

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

VERSION = "0.32.0"
MODELS = recipes_dir() / "models"
QWEN3 = {"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
BLOCK_NET = QWEN3 | {"num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 512, "block_size": 8}
MASK = {"mask_token_id": 3, "target_layer_ids": [0, 2]}
MTP = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512, "num_nextn_predict_layers": 1,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip
RECIPES = 47  # of the catalogue; the others have methods, placements or drafter classes that vLLM does not support
SCHEDULE = [{"max_batch": 2, "draft_len": 5}, {"max_batch": 3, "draft_len": 0}]
# name: method, changes of the recipe, the drafter's config (none: the quickstart's checkpoint of the method)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "pard": ("pard", {"speculation__draft_len": 6}, None),
    "p_eagle": ("p_eagle", {"speculation__draft_len": 6}, None),
    "suffix": ("suffix", {}, None),
    "dflash": ("dflash", {}, BLOCK_NET | {"architectures": ["DFlashDraftModel"], "dflash_config": MASK}),
    "dspark": ("dspark", {}, BLOCK_NET | {"architectures": ["Qwen3DSparkModel"], "markov_rank": 8, **MASK}),
    "mtp": ("mtp", {"target_facts": facts(MTP)}, None),
    "gemma4_mtp": ("gemma4_mtp", {"target_facts": facts(gemma4.text_target())}, gemma4.ASSISTANT),
    "schedule": ("draft_target", {"speculation__schedule": SCHEDULE, "speculation__draft_len": 5}, None),
    "block": ("draft_target", {"speculation__verify": "block"}, None),
    "tensor": ("draft_target", {"target__parallel": {"tensor": 2}}, None),
    "fp8": ("eagle3", {"target__quantization": {"weights": "fp8", "kv_cache": "fp8"}}, None),
}


def documents(root: Path) -> dict[str, dict[str, Any]]:
    """Return model.json of every case, and of every recipe of the catalogue that vLLM can run, by name."""
    made = {name: of_quickstart(root, name, *case) for name, case in CASES.items()}
    copy_catalogue(root / "catalogue")
    contexts = catalogue_contexts(root / "catalogue", "vllm", VERSION, "h200")
    assert len(contexts) == RECIPES
    return made | {name: of_context(context) for name, context in contexts.items()}


def of_context(context: PlanContext) -> dict[str, Any]:
    """Return the document of a recipe with local models, or with their published configs."""
    roots = {role: str(source.root) for role, source in context.sources.items()}
    return told(model_json(context, roots["target"], roots.get("draft")))


def of_quickstart(
    root: Path, name: str, method: str, changes: dict[str, Any], net: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the document of a case with the quickstart's target, or with a target of the case's config."""
    target, draft = MODELS / "quickstart-target", MODELS / "quickstart-draft"
    own = changes.get("target_facts")
    if own:
        target = written(root / f"{name}-target", own.config)
    if method == "pard":
        draft = written(root / name, json.loads((draft / "config.json").read_text()) | {"pard_token": 3})
    if method in ("eagle3", "p_eagle"):
        draft = MODELS / "quickstart-eagle3"
    if net:
        draft = written(root / name, net)
    changes = {"engine__max_seq_len": 512, "engine__max_batch_size": 4, **changes}
    context = source_context("vllm", VERSION, method, **changes)
    return told(model_json(context, str(target), str(draft) if context.recipe.speculation.draft else None))


def written(out: Path, config: dict[str, Any]) -> Path:
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config))
    return out


def told(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document as the server reads it: JSON, with revisions only for hub models."""
    told = json.loads(json.dumps(document))
    for section in (told, told.get("speculative_config", {})):
        section.pop("revision", None)
    return told


@pytest.fixture(scope="module")
def accepted(vllm_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """vLLM's results for every document, in one process."""
    emitted = documents(tmp_path_factory.mktemp("vllm"))
    own = {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [vllm_environment / "bin" / "python", Path(__file__).with_name("accept.py")], input=json.dumps(emitted),
        env={**os.environ, **own}, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


QUICKSTARTS = {
    "quickstart": {"method": "draft_model", "architecture": "LlamaForCausalLM"},
    "quickstart-ngram": {"method": "ngram"},
    "quickstart-eagle": {"method": "eagle", "architecture": "EagleLlamaForCausalLM"},
    "quickstart-eagle3": {"method": "eagle3"},
    "quickstart-medusa": {"method": "medusa", "architecture": "MedusaModel"},
}


def test_engine_args_accept_every_case_and_every_recipe_of_the_catalogue(accepted: dict[str, dict[str, Any]]) -> None:
    assert {name: each["error"] for name, each in accepted.items() if "error" in each} == {}
    assert len(accepted) == RECIPES + len(CASES)
    assert {*accepted} >= {"gemma-4-31b-suffix-vllm", "qwen3.5-27b-mtp-vllm", "qwen3-8b-eagle3-vllm", *QUICKSTARTS}


@pytest.mark.parametrize(
    ("name", "understood"),
    [
        *QUICKSTARTS.items(),
        ("pard", {"method": "draft_model", "parallel": True, "tokens": 6}),
        ("p_eagle", {"method": "eagle3", "parallel": True, "tokens": 6}),
        ("suffix", {"method": "suffix", "tokens": 24}),
        ("dflash", {"method": "dflash", "parallel": True, "architecture": "DFlashDraftModel"}),
        ("dspark", {"method": "dspark", "parallel": True, "architecture": "Qwen3DSparkModel"}),
        ("mtp", {"method": "mtp", "tokens": 1}),
        ("gemma4_mtp", {"method": "mtp", "tokens": 4, "architecture": "Gemma4MTPModel"}),
        ("block", {"method": "draft_model", "rule": "block"}),
        ("fp8", {"method": "eagle3", "rule": "standard"}),
    ],
)
def test_engine_config_has_the_intended_speculation(
    name: str, understood: dict[str, Any], accepted: dict[str, Any]
) -> None:
    assert accepted[name] == accepted[name] | understood
