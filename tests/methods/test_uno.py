# SPDX-License-Identifier: Apache-2.0
"""UNO: the checks of its adapter and its tree, and the artifact with a copy of the adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests._support.adapters import write_adapter
from tests.backends.sglang.cases import ADAPTER, case
from tests.backends.source_contexts import said
from tests.conftest import Run
from tests.serving.triton.fakes import load_file, make_pb_utils
from trtspec.backends import sglang
from trtspec.backends.base import backends_for_method
from trtspec.backends.serving import StandaloneServer
from trtspec.backends.sglang import artifact
from trtspec.backends.sglang.arguments import engine_arguments
from trtspec.backends.sglang.check import check
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.methods.base import find_method
from trtspec.methods.uno.sglang import max_nodes

OPTION = "speculation.options.adapter"


def found(version: str = "0.5.23", **changes: Any) -> dict[str, Any]:
    return said(check(case("uno", version, **changes)[0]))


def with_adapter(root: Path, **changes: Any) -> dict[str, Any]:
    return found(speculation__options={"adapter": str(write_adapter(root, **changes))})


def test_only_sglang_runs_uno() -> None:
    assert backends_for_method("uno") == ["sglang"]


def test_arguments_name_the_copied_adapter_and_no_draft_model() -> None:
    document = engine_arguments(case("uno")[0], "../../checkpoints/target", None)
    assert document["uno_lora_path"] == "../../checkpoints/adapter"
    assert document["attention_backend"] == "fa3"
    assert "speculative_draft_model_path" not in document


def test_served_model_finds_the_adapter_in_the_artifact(tmp_path: Path) -> None:
    model = tmp_path / "model_repository" / "tensorrt_llm"
    (model / "1").mkdir(parents=True)
    document = {"model_path": "org/m", "uno_lora_path": "../../checkpoints/a"}
    (model / "1" / "engine.json").write_text(json.dumps(document))
    arguments = load_file(Path(sglang.__file__).with_name("served_model.py"), make_pb_utils()).read_arguments(model, 1)
    assert arguments == {"model_path": "org/m", "uno_lora_path": str(tmp_path / "checkpoints" / "a")}


def test_older_version_is_refused_with_those_that_have_it() -> None:
    diagnostic = found("0.5.19")["speculation.method method"]
    assert diagnostic.message == "SGLang 0.5.19 does not support UNO"
    assert diagnostic.hint.startswith("supported by: 0.5.20, ")


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"speculation__options": {}}, f"{OPTION} missing", "drafts with a LoRA adapter"),
        ({"speculation__options": {"adapter": "/nowhere"}}, f"{OPTION} unreadable", "no such directory"),
        ({"serving__structured_output": True}, "serving.structured_output not-supported", "structured output with uno"),
        ({"target__parallel": {"tensor": 2}}, "target.parallel.tensor parallel", "on one GPU"),
        ({"target__parallel": {"pipeline": 2}}, "target.parallel.pipeline parallel", "pipeline parallelism"),
        ({"engine__gpu": "b200"}, "engine.gpu gpu", "FlashAttention 3"),
        ({"speculation__verify": "block"}, "speculation.verify not-supported", "block verification with uno"),
        (
            {"speculation__schedule": [{"max_batch": 1, "draft_len": 7}]},
            "speculation.schedule not-supported",
            "not for uno",
        ),
        (
            {"speculation__options": ADAPTER | {"top_k": 2, "nodes": 14}},
            "speculation.options.nodes out-of-range",
            "has 7 to 13 nodes",
        ),
        (
            {"speculation__options": ADAPTER | {"top_k": 2, "nodes": 6}},
            "speculation.options.nodes out-of-range",
            "has 7 to 13 nodes",
        ),
    ],
)
def test_unsupported_recipe_is_an_error_with_a_hint(changes: dict[str, Any], place: str, message: str) -> None:
    diagnostic = found(**changes)[place]
    assert message in diagnostic.message
    assert (diagnostic.severity, bool(diagnostic.hint)) == ("error", True)


@pytest.mark.parametrize(
    ("changes", "code", "severity"),
    [
        ({"peft_type": "IA3"}, "kind", "error"),
        ({"r": 0}, "rank", "error"),
        ({"lora_alpha": None}, "rank", "error"),
        ({"target_modules": ".*_proj"}, "modules", "error"),
        ({"target_modules": [1]}, "modules", "error"),
        ({"use_dora": True}, "dora", "error"),
        ({"target_modules": ["q_proj", "in_proj"]}, "unknown-modules", "warning"),
        ({"base_model_name_or_path": "org/other"}, "base-model", "warning"),
    ],
)
def test_adapter_that_does_not_fit_is_reported(tmp_path: Path, changes: dict[str, Any], code: str, severity) -> None:
    diagnostic = with_adapter(tmp_path, **changes)[f"{OPTION} {code}"]
    assert (diagnostic.severity, bool(diagnostic.hint)) == (severity, True)


@pytest.mark.parametrize("modules", ["all-linear", ["q_proj", "mlp.down_proj"]])
def test_adapter_that_fits_has_no_diagnostics(tmp_path: Path, modules: object) -> None:
    assert not [place for place in with_adapter(tmp_path, target_modules=modules) if place.startswith(OPTION)]


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("content", [None, b"\x00 damaged"])
def test_incomplete_adapter_is_an_error(tmp_path: Path, name: str, content: bytes | None) -> None:
    options = {"adapter": str(write_adapter(tmp_path))}
    (tmp_path / name).unlink()
    if content:
        (tmp_path / name).write_bytes(content)
    diagnostic = found(speculation__options=options)[f"{OPTION} unreadable"]
    assert (diagnostic.severity, bool(diagnostic.hint)) == ("error", True)


def test_large_adapter_config_is_not_read(tmp_path: Path) -> None:
    diagnostics = with_adapter(tmp_path, padding="x" * (1 << 20))
    assert f"{OPTION} unreadable" in diagnostics


def test_tree_requires_both_of_its_options() -> None:
    for options in ({"top_k": 4}, {"nodes": 4}):
        with pytest.raises(TrtspecError, match="requires both top_k and nodes"):
            find_method("uno").parse(options)


def test_largest_tree_follows_from_the_limits_of_sglang() -> None:
    """Q - 1 is at most K (F - 2) + 1, the tree's capacity, 127 and 2048 / K - 1."""
    largest = {(2, 1): 1, (2, 2): 3, (4, 4): 13, (64, 8): 31, (4, 32): 125}
    assert {(top_k, depth): max_nodes(top_k, depth) for top_k, depth in largest} == largest


def test_acceptance_is_not_simulated() -> None:
    server = StandaloneServer(framework="sglang", serve=("x", "--speculative-algorithm=UNO"), arguments=())
    with pytest.raises(DeployError, match="does not force the acceptance of UNO"):
        artifact.simulate(server, [0.5], "0.5.23")


@pytest.mark.slow
def test_artifact_contains_the_adapter(recipe: Path, trtspec: Run) -> None:
    adapter = write_adapter(recipe.parent / "adapter")
    (adapter / "notes.txt").write_text("not copied")
    text = recipe.read_text()
    assert "speculation:" in text
    changes = ["engine.backend=sglang", "engine.gpu=h100", "speculation.method=uno"]
    changes += [f"speculation.options={{adapter: {adapter}}}", "speculation.draft=null"]
    ended = trtspec("build", recipe, *(word for each in changes for word in ("--set", each)))
    assert ended.code == 0, ended.err
    copies = recipe.parent / "build" / "tiny" / "checkpoints" / "adapter"
    assert sorted(path.name for path in copies.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert (copies / "adapter_config.json").read_bytes() == (adapter / "adapter_config.json").read_bytes()
