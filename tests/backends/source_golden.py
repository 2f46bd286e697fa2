# SPDX-License-Identifier: Apache-2.0
"""Golden files: one reviewed repository of the LLM API and one of vLLM for each method.

The files are in llmapi/golden/METHOD and vllm/golden/METHOD; `python -m tests.backends.source_golden` regenerates
them. Review the changes before you commit them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.backends.source_contexts import facts, source_context
from trtspec.backends.common.steps import token_models
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.arguments import is_greedy_only, model_yaml
from trtspec.backends.llmapi.artifact import MODEL_YAML, MODELS
from trtspec.backends.vllm.arguments import model_json
from trtspec.backends.vllm.artifact import repository_step
from trtspec.recipe.resolve import resolve_max_input_len
from trtspec.serving.triton.repository_writer import ServingSettings

LLMAPI, VLLM = (Path(__file__).with_name(name) / "golden" for name in ("llmapi", "vllm"))
TARGET, DRAFT = "../../checkpoints/target", "../../checkpoints/draft"
REVISION = "0123456789abcdef0123456789abcdef01234567"

MTP = facts({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})
DRAFT_TARGET = {"target__parallel": {"tensor": 2}, "speculation__draft_len": 5}
EAGLE3 = {"speculation__draft_len": 3}
TREE = {"speculation__options": {"top_k": 4, "nodes": 12}}
NGRAM = {"speculation__draft_len": 8, "speculation__options": {"max_match": 4}}

# method: version and recipe
LLMAPI_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "draft_target": ("1.2.1", DRAFT_TARGET | {"serving__placement": {"target": [2, 3]}}),
    "ngram": ("1.0.0", NGRAM | {"serving__streaming": False}),
    "eagle3": ("1.3.0rc27", EAGLE3 | TREE | {"target__quantization": {"kv_cache": "fp8"}}),
    "mtp": ("1.2.1", {"target_facts": MTP, "engine__max_batch_size": 16}),
}
VLLM_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "draft_target": ("0.19.0", DRAFT_TARGET | {"target__quantization": {"weights": "fp8", "kv_cache": "fp8"}}),
    "ngram": ("0.24.0", NGRAM),
    "eagle": ("0.24.0", {"target__model": "org/model", "target__revision": REVISION}),
    "eagle3": ("0.24.0", EAGLE3),
}


def llmapi_case(method: str) -> PlanContext:
    version, changes = LLMAPI_CASES[method]
    return source_context("llmapi", version, method, **changes)


def vllm_case(method: str) -> PlanContext:
    version, changes = VLLM_CASES[method]
    return source_context("vllm", version, method, **changes)


def emit_llmapi(method: str, out: Path) -> None:
    """Write the repository of a method's case."""
    case = llmapi_case(method)
    engine, serving = case.recipe.engine, case.recipe.serving
    settings = ServingSettings(
        max_batch_size=engine.max_batch_size,
        max_queue_size=serving.max_queue_size,
        max_queue_delay_us=serving.max_queue_delay_us,
        streaming=serving.streaming,
    )
    token_models(
        MODELS,
        settings,
        {MODEL_YAML.name: yaml.safe_dump(model_yaml(case, TARGET, DRAFT), sort_keys=False)},
        max_input_len=resolve_max_input_len(engine),
        max_seq_len=engine.max_seq_len,
        gpu_ids=serving.placement.target if serving.placement else (),
        greedy_only=is_greedy_only(case),
        draft_len=case.draft_shape.max_depth,
    ).emit(out)


def emit_vllm(method: str, out: Path) -> None:
    """Write the repository of a method's case; one of them names its target on the hub."""
    case = vllm_case(method)
    model = case.recipe.target.model
    target = TARGET if model.startswith(".") else model
    repository_step(model_json(case, target, DRAFT)).emit(out)


if __name__ == "__main__":
    for root, methods, emit in ((LLMAPI, LLMAPI_CASES, emit_llmapi), (VLLM, VLLM_CASES, emit_vllm)):
        shutil.rmtree(root, ignore_errors=True)
        for name in methods:
            emit(name, root / name)
        for code in [*root.rglob("*.py"), *root.rglob(".gitkeep")]:
            code.unlink()
