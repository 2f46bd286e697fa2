# SPDX-License-Identifier: Apache-2.0
"""The real TensorRT Edge-LLM on a CPU: its parsers, its Python API up to the GPU, and complete conversions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests._support.catalogue import catalogue_contexts, copy_catalogue
from tests.backends.contexts import SHAPES
from tests.backends.edge_llm.cases import LATE, METHODS, case
from tests.backends.edge_llm.real import MODULES
from tests.conftest import Run
from tests.engines import make_forking
from trtspec.backends.context import PlanContext
from trtspec.backends.edge_llm.arguments import build_command, export_arguments, model_json, quantize_arguments
from trtspec.backends.edge_llm.toolchain import releases
from trtspec.core.processes import wait_until
from trtspec.recipe.schema import Quantization

pytestmark = [pytest.mark.edge_llm, pytest.mark.slow]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DOUBLE = HERE.parents[1] / "doubles" / "edge_llm"
QUICKSTART = (
    *("quickstart-eagle3", "--set", "engine.backend=edge_llm", "--set", "engine.gpu=rtx5090"),
    *("--set", "target.quantization.weights=fp8", "--set", "target.quantization.kv_cache=fp8"),
    *("--set", "target.quantization.calibration.samples=4", "--out", "made"),
)
IMPORTED = (*MODULES.values(), "experimental.server")
BUILD_S = 1200
RECIPES = 11  # of the catalogue; the others have methods or models that Edge-LLM does not support
Ask = Callable[[str, Any], Any]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment of Edge-LLM; modules with a slow import are imported once for its interpreter and tools."""
    return make_forking(tmp_path_factory.mktemp("forking") / "edge_llm", "edge_llm", *IMPORTED, programs=MODULES)


@pytest.fixture(scope="module")
def ask(environment: Path) -> Ask:
    """Return a function that queries the environment's own classes."""

    def answer(what: str, question: Any) -> Any:
        command = [environment / "bin" / "python", HERE / "real.py", what]
        asked = subprocess.run(
            command, input=json.dumps(question), capture_output=True, text=True, timeout=300, check=False
        )
        assert asked.returncode == 0, asked.stderr
        return json.loads(asked.stdout.splitlines()[-1])

    return answer


def command_lines() -> list[list[str]]:
    """Return every command line for every method, model size, GPU and format."""
    cases = [case(method, target=shape) for method in METHODS for shape in SHAPES]
    cases.append(case("eagle3", speculation__options={"top_k": 8, "nodes": 59}, engine__max_batch_size=8))
    cases.append(case("dspark", draft_facts=LATE))
    sms = releases()["0.11.0"].sms
    lines = [build_command(each) for each in cases]
    lines += [export_arguments(role, method, sm) for role in ("target", "draft") for method in METHODS for sm in sms]
    formats = [Quantization(weights="fp8"), Quantization(kv_cache="fp8"), Quantization(weights="fp8", kv_cache="fp8")]
    devices = ("cpu", "cuda")
    return [
        *map(list, lines),
        *(
            list(quantize_arguments(role, each, on))
            for role in ("target", "draft")
            for each in formats
            for on in devices
        ),
    ]


def test_real_parsers_accept_every_command_line(ask: Ask) -> None:
    lines = command_lines()
    assert len(lines) > 100
    assert [said for said in ask("parse", lines) if said] == []
    assert "unrecognized" in ask("parse", [[*lines[0], "--no-such-option"]])[0]


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PlanContext]:
    """Return the contexts, by name, of the catalogue's recipes that Edge-LLM can run."""
    root = tmp_path_factory.mktemp("catalogue")
    copy_catalogue(root)
    return catalogue_contexts(root, "edge_llm", "0.11.0", "rtx5090")


def commands_of(context: PlanContext) -> list[tuple[str, ...]]:
    """Return the command lines of a recipe on a CPU and on a GPU."""
    roles = [role for role in ("target", "draft") if role in context.sources]
    formats = {"target": context.recipe.target.quantization}
    if context.recipe.speculation.draft:
        formats["draft"] = context.recipe.speculation.draft.quantization
    lines = [build_command(context)]
    lines += [export_arguments(role, context.method_name, 120) for role in roles]
    return lines + [quantize_arguments(role, formats[role], on) for role in roles for on in ("cpu", "cuda")]


def test_real_parsers_accept_every_recipe_of_the_catalogue(catalogue: dict[str, PlanContext], ask: Ask) -> None:
    assert len(catalogue) == RECIPES
    lines = [list(line) for context in catalogue.values() for line in commands_of(context)]
    assert len(lines) > 5 * RECIPES
    assert [said for said in ask("parse", lines) if said] == []
    documents = [model_json(context)["llm"] for context in catalogue.values()]
    assert [said for said in ask("arguments", documents) if said] == []
    wrong = [documents[0] | {"max_length": 3}, documents[0] | {"speculative_config": {"method": "medusa"}}]
    unknown, method = ask("arguments", wrong)
    assert "max_length" in unknown
    assert "method must be one of" in method


def test_double_has_the_real_signatures(ask: Ask) -> None:
    names = [
        ["experimental.server", "LLM.__init__"],
        ["experimental.server", "LLM._make_generation_request"],
        ["experimental.server", "LLM.generate_stream"],
        ["experimental.server", "SamplingParams"],
        ["experimental.server.runtime.engine_build", "BuildOptions"],
        ["experimental.server.runtime.engine_build", "bundle_cache_path"],
    ]
    theirs = ask("signatures", names)
    environment = {**os.environ, "PYTHONPATH": str(DOUBLE)}
    command = [sys.executable, HERE / "real.py", "signatures"]
    ours = subprocess.run(
        command, input=json.dumps(names), capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    assert json.loads(ours.stdout) == theirs


@pytest.mark.parametrize(
    ("method", "changes", "runtime"),
    [
        ("none", {}, {}),
        ("eagle3", {}, {"top_k": 1, "steps": 5, "verify": 6}),
        ("eagle3", {"speculation__options": {"top_k": 4, "nodes": 12}}, {"top_k": 4, "steps": 5, "verify": 13}),
        ("mtp", {}, {"top_k": 1, "steps": 3, "verify": 4}),
        ("gemma4_mtp", {}, {"top_k": 1, "steps": 3, "verify": 4}),
        ("dflash", {}, {"top_k": 1, "steps": 1, "verify": 8, "block": 8}),
        ("dspark", {}, {"top_k": 1, "steps": 1, "verify": 8}),
    ],
)
def test_real_python_api_accepts_the_built_engines(
    method: str, changes: dict[str, Any], runtime: dict[str, int], tmp_path: Path, environment: Path
) -> None:
    """With files that look like its engines: it accepts them, and would draft as configured."""
    context = case(method, **changes)
    lay_out(tmp_path, context, method)
    words = (HERE / "load.py", tmp_path / "model_repository" / "edge_llm", tmp_path / "cache")
    loaded = subprocess.run(
        [environment / "bin" / "python", *words], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr[-2000:]
    document = json.loads(loaded.stdout.splitlines()[-1])
    assert document["bundle"] == str(tmp_path / "engines" / "target")
    assert {key: document[key] for key in runtime} == runtime


def lay_out(root: Path, context: Any, method: str) -> None:
    """Write the layout of an artifact, with empty weights and engines."""
    version = root / "model_repository" / "edge_llm" / "1"
    for directory in (version, root / "checkpoints/target", root / "checkpoints/draft", root / "engines/target"):
        directory.mkdir(parents=True)
    (version / "model.json").write_text(json.dumps(model_json(context)))
    for role in ("target", "draft"):
        (root / "checkpoints" / role / "config.json").write_text(json.dumps({"model_type": "llama", "block_size": 16}))
    sizes = model_json(context)["llm"]
    names = ("max_input_len", "max_batch_size", "max_kv_cache_capacity", "max_verify_tree_size", "max_draft_tree_size")
    builder = {name: sizes[name] for name in names if name in sizes}
    config = {"builder_config": builder, "checkpoint_identity": {}, "spec_decode_type": method, "block_size": 16}
    engines = root / "engines" / "target"
    if method == "none":
        (engines / "llm.engine").touch()
        (engines / "config.json").write_text(json.dumps({**config, "engine_role": "llm"}))
        return
    for role in ("base", "draft"):
        (engines / f"spec_{role}.engine").touch()
        (engines / f"{role}_config.json").write_text(json.dumps({**config, "engine_role": role}))


def test_quickstart_build_resumes_after_sigkill(
    workplace: Path, trtspec: Run, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_EDGE_LLM", str(environment))
    killed = subprocess.Popen(
        [sys.executable, "-m", "trtspec", "build", *QUICKSTART], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    logs = workplace / "cache" / "logs"
    wait_until(lambda: any(logs.glob("export-target-*.log")) or killed.poll() is not None, BUILD_S)
    assert killed.poll() is None, killed.stderr.read().decode()
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    assert not Path("made").exists()
    tool = [path for path in Path("/proc").glob("[0-9]*") if str(workplace).encode() in command_of(path)]
    assert wait_until(lambda: not any(map(command_of, tool)), 30), "no process of the tool survives"

    built = trtspec("build", *QUICKSTART, "--json")
    assert built.code == 0, built.err
    status = {step["name"]: step["status"] for step in built.document["steps"]}
    assert status["quantize-target"] == "hit", "finished steps are not repeated"
    assert status["export-target"] == status["export-draft"] == "built"
    look_at(Path("made"))

    monkeypatch.setenv("TRTSPEC_EDGE_LLM", "/nowhere")
    again = trtspec("build", *QUICKSTART[:-1], "again", "--json")
    assert again.code == 0, "from the store, without its tools"
    assert {step["status"] for step in again.document["steps"]} == {"hit"}


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def look_at(made: Path) -> None:
    """Check Edge-LLM's output for the quickstart."""
    quantized = json.loads((made / "checkpoints/target/hf_quant_config.json").read_text())["quantization"]
    assert (quantized["quant_algo"], quantized["kv_cache_quant_algo"]) == ("FP8", "FP8")
    assert json.loads((made / "checkpoints/draft/config.json").read_text())["target_layer_ids"] == [2, 4, 5]
    base, draft = (json.loads((made / "onnx" / role / "llm/config.json").read_text()) for role in ("target", "draft"))
    assert (base["spec_decode_type"], base["kv_cache_dtype"]) == ("eagle3", "fp8")
    assert (draft["engine_role"], draft["draft_vocab_size"]) == ("draft", 256)
    assert (made / "onnx/target/llm/model.onnx.data").stat().st_size > 1 << 20
