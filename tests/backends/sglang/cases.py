# SPDX-License-Identifier: Apache-2.0
"""A recipe on SGLang for each method and feature, and small config.json files of the checkpoints that they name."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests._support import gemma4
from tests._support.adapters import write_adapter
from tests.backends.source_contexts import facts, source_context
from trtspec.backends.context import PlanContext

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5, "eos_token_id": 0,
}  # fmt: skip
NET = LLAMA | {"num_hidden_layers": 1}
BLOCKS = NET | {
    "model_type": "qwen3", "block_size": 8, "num_target_layers": 4,
    "dflash_config": {"mask_token_id": 511, "target_layer_ids": [0, 1, 2]},
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "draft": LLAMA | {"num_hidden_layers": 2},
    "eagle": NET | {"architectures": ["LlamaForCausalLMEagle"]},
    "eagle3": NET | {"architectures": ["LlamaForCausalLMEagle3"]},
    "dflash": BLOCKS | {"architectures": ["DFlashDraftModel"]},
    "dspark": BLOCKS | {"architectures": ["Qwen3DSparkModel"], "markov_rank": 8, "markov_head_type": "vanilla"},
    "glm": LLAMA | {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_nextn_predict_layers": 1,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    },
    "gemma4": gemma4.TARGET,
    "assistant": gemma4.ASSISTANT,
}  # fmt: skip
SCHEDULE = [{"max_batch": 1, "draft_len": 4}, {"max_batch": 2, "draft_len": 2}]
CHOSEN = {"top_k": 4, "nodes": 12}
TREE = {"dynamic": True, "top_k": 4, "depth": 3, "nodes": 12}
CHAIN = TREE | {"top_k": 1, "nodes": 3}
FOLDER = TemporaryDirectory(prefix="trtspec-adapter-")  # deleted when the process ends
ADAPTER = {"adapter": str(write_adapter(Path(FOLDER.name), base_model_name_or_path="org/target"))}

# name: method, target, drafter, changes of the recipe
CASES: dict[str, tuple[str, str, str | None, dict[str, Any]]] = {
    "draft_target": ("draft_target", "llama", "draft", {"speculation__draft_len": 5}),
    "draft_fp8": ("draft_target", "llama", "draft", {"target__quantization": {"weights": "fp8", "kv_cache": "fp8"}}),
    "tensor": ("draft_target", "llama", "draft", {"target__parallel": {"tensor": 2}}),
    "ngram": ("ngram", "llama", None, {"speculation__draft_len": 8, "speculation__options": {"max_match": 4}}),
    "eagle": ("eagle", "llama", "eagle", {"speculation__options": TREE}),
    "eagle_block": ("eagle", "llama", "eagle", {"speculation__options": CHAIN, "speculation__verify": "block"}),
    "eagle3": ("eagle3", "llama", "eagle3", {"speculation__draft_len": 3}),
    "eagle3_tree": ("eagle3", "llama", "eagle3", {"speculation__options": CHOSEN}),
    "eagle3_schedule": ("eagle3", "llama", "eagle3", {"speculation__draft_len": 4, "speculation__schedule": SCHEDULE}),
    "eagle3_block": ("eagle3", "llama", "eagle3", {"speculation__verify": "block"}),
    "mtp": ("mtp", "glm", None, {"speculation__draft_len": 3}),
    "mtp_schedule": ("mtp", "glm", None, {"speculation__draft_len": 4, "speculation__schedule": SCHEDULE}),
    "gemma4_mtp": ("gemma4_mtp", "gemma4", "assistant", {"speculation__draft_len": 3}),
    "dflash": ("dflash", "llama", "dflash", {"speculation__draft_len": 7}),
    "dflash_block": ("dflash", "llama", "dflash", {"speculation__draft_len": 5, "speculation__verify": "block"}),
    "dspark": ("dspark", "llama", "dspark", {"speculation__draft_len": 7}),
    "dspark_shorter": ("dspark", "llama", "dspark", {"speculation__draft_len": 4, "speculation__verify": "block"}),
    "uno": ("uno", "llama", None, {"speculation__draft_len": 7, "speculation__options": ADAPTER}),
    "uno_tree": ("uno", "llama", None, {"speculation__options": ADAPTER | CHOSEN}),
}  # fmt: skip


def case(name: str, version: str = "0.5.23", **further: Any) -> tuple[PlanContext, str, str | None]:
    """Return a case's context, and the names of its target and drafter in MODELS; `further` changes the recipe."""
    method, target, draft, changes = CASES[name]
    known = {"target_facts": facts(MODELS[target])} | ({"draft_facts": facts(MODELS[draft])} if draft else {})
    return source_context("sglang", version, method, **{**known, **changes, **further}), target, draft


def write_models(root: Path) -> dict[str, Path]:
    """Write each of MODELS as a directory, and return the directories by name."""
    for name, config in MODELS.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return {name: root / name for name in MODELS}
