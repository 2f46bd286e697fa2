# SPDX-License-Identifier: Apache-2.0
"""A backend from another package, from `check` to `bench`, without changes of trtspec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests._support import forked
from tests._support.tiny import make_pair
from trtspec.core.errors import DeployError
from trtspec.serving.triton.server import find_server

pytestmark = [pytest.mark.triton, pytest.mark.integration]

TIMEOUT_S = 180
CODE = '''
"""Toy: the torch engine behind another model."""

from dataclasses import dataclass
from pathlib import Path

from trtspec.store.artifact_paths import REPOSITORY, TOKENIZER, checkpoint, from_model
from trtspec.backends.base import ArtifactPlan
from trtspec.backends.base import Backend
from trtspec.backends.common.steps import companion_steps, conversion_steps, serving_settings
from trtspec.backends.serving import ServingHooks
from trtspec.backends.common.memory import MemoryPlan
from trtspec.core.diagnostics import Diagnostic
from trtspec.backends.common.steps import EmitRepository, read_models
from trtspec.engine.settings import EngineSettings
from trtspec.serving.triton.repository_writer import ServingSettings, emit_model
from trtspec.serving.triton.names import ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET

MODELS = Path(__file__).with_name("toy_models")


@dataclass(frozen=True)
class EmitToyRepository(EmitRepository):
    serving: ServingSettings
    engine_settings: str

    def emit(self, out):
        parameters = {
            "tokenizer_dir": from_model(TOKENIZER),
            "gpt_model_path": from_model(checkpoint("target")),
            "draft_model_path": from_model(checkpoint("draft")),
            "engine_settings": self.engine_settings,
        }
        for model in (ENSEMBLE, PREPROCESSING, POSTPROCESSING):
            emit_model(out, model, self.serving, parameters)
        emit_model(out, TARGET, self.serving, parameters, source=MODELS / TARGET)


def plan(context, reader):
    steps = {checkpoint(role): step for role, step in conversion_steps(context, reader).items()}
    steps |= companion_steps(context, reader)
    settings = EngineSettings.from_recipe(context.resolved)
    steps[REPOSITORY] = EmitToyRepository(read_models(MODELS), serving_settings(context), settings.as_json())
    return ArtifactPlan(steps, tools={"toy": "1.0"}, notes=("toys are for children",), facts={"toy": True})


def memory(context):
    return [MemoryPlan("toy", context.target_config.num_parameters, 0, 0, 0, 0)]


def check(context):
    if context.recipe.engine.max_batch_size > 4:
        yield Diagnostic("engine.max_batch_size", "out-of-range", "toys take 4 requests", "at most 4", source="toy:1")


BACKEND = Backend(
    summary="a toy",
    methods=lambda: {"none": "alone", "draft_target": "together"},
    memory=memory,
    plan=plan,
    versions=lambda: ["0.9", "1.0"],
    check=check,
    in_process=True,
    serving=lambda: ServingHooks(models=MODELS),
)
'''
MODEL = """
from trtspec.backends.embedded.served_model import TritonPythonModel as TorchModel


class TritonPythonModel(TorchModel):
    def initialize(self, args):
        print("a toy is loaded", flush=True)
        super().initialize(args)
"""

Trtspec = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An import path with the toy package: its module, its model and its entry point."""
    from trtspec.core.paths import model_repository_dir

    root = tmp_path_factory.mktemp("site")
    (root / "toy.py").write_text(CODE)
    model = root / "toy_models" / "tensorrt_llm"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(MODEL)
    (model / "config.pbtxt").write_bytes((model_repository_dir() / "tensorrt_llm" / "config.pbtxt").read_bytes())
    metadata = root / "toy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[trtspec.backends]\ntoy = toy:BACKEND\n")
    return root


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_pair(tmp_path_factory.mktemp("pair"))
    path.write_text(path.read_text().replace("engine:\n", "engine:\n  backend: toy\n"))
    return path


@pytest.fixture(scope="module")
def trtspec(site: Path, recipe: Path) -> Iterator[Trtspec]:
    """Return a function that runs a command with toy on the import path; remaining deployments are stopped."""
    places = {"TRTSPEC_CACHE": str(recipe.parent / "cache"), "TRTSPEC_STATE": str(recipe.parent / "state")}
    environment = {**os.environ, **places, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}

    def run(*argv: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trtspec", *map(str, argv)]
        done = forked.run(command, TIMEOUT_S, cwd=recipe.parent, env=environment, kind=forked.Computing)
        assert done.returncode == code, done.stderr
        return done

    yield run
    forked.run([sys.executable, "-m", "trtspec", "stop", "tiny"], TIMEOUT_S, env=environment)


def read(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_check_uses_the_external_backend_and_lists_it(trtspec: Trtspec, recipe: Path) -> None:
    assert read(trtspec("check", recipe, "--json"))["ok"]
    (wrong,) = read(trtspec("check", recipe, "--set", "engine.max_batch_size=5", "--json", code=1))["problems"]
    assert (wrong["path"], wrong["message"]) == ("engine.max_batch_size", "toys take 4 requests")
    (wrong,) = read(trtspec("check", recipe, "--set", "engine.backend=toi", "--json", code=1))["problems"]
    assert wrong["message"].endswith("known: edge_llm, embedded, llmapi, sglang, tensorrt_llm, vllm, toy")
    assert wrong["hint"] == "did you mean 'toy'?"


def test_unsupported_method_is_rejected_with_the_supporting_backends(trtspec: Trtspec, recipe: Path) -> None:
    lookahead = ("--set", "speculation={method: lookahead}")
    (wrong,) = read(trtspec("check", recipe, *lookahead, "--json", code=1))["problems"]
    assert wrong["message"] == "lookahead runs on embedded, tensorrt_llm, not on toy"


def test_external_backend_has_its_own_versions(trtspec: Trtspec, recipe: Path) -> None:
    assert trtspec("check", recipe, "--set", "engine.version='0.9'").returncode == 0
    (wrong,) = read(trtspec("check", recipe, "--set", "engine.version='2.0'", "--json", code=1))["problems"]
    assert (wrong["message"], wrong["hint"]) == ("unsupported version 2.0", "supported: 0.9, 1.0")


def test_external_backend_works_from_plan_to_bench(trtspec: Trtspec, recipe: Path) -> None:
    try:
        find_server()
    except DeployError as error:
        pytest.skip(str(error))
    plan = read(trtspec("plan", recipe, "--json"))
    assert plan["backend"] == {"name": "toy", "why": "the recipe sets it"}
    assert (plan["toy"], plan["notes"]) == (True, ["toys are for children"])
    assert [gpu["id"] for gpu in plan["memory"]["gpus"]] == ["toy"]
    artifact = Path(read(trtspec("build", recipe, "--json"))["artifact"])
    manifest = json.loads((recipe.parent / artifact / "manifest.json").read_text())
    assert (manifest["backend"]["name"], manifest["tools"]["toy"]) == ("toy", "1.0")
    verified = read(trtspec("verify", artifact, "--max-tokens", 8, "--json"))
    assert verified["ok"]
    alone = read(trtspec("generate", artifact, "-p", "abc", "--max-tokens", 8, "--json"))["text"]
    served = read(trtspec("deploy", artifact, "--detach", "--json"))
    assert served["state"] == "live"
    assert ask(served["endpoints"]["http"], "abc") == alone
    assert "a toy is loaded" in (recipe.parent / "state" / "deployments" / "tiny" / "server.log").read_text()
    measured = read(trtspec("bench", "tiny", "--runs", 1, "--max-tokens", 8, "--json"))
    assert measured["identical_texts"] == measured["prompts"]
    assert read(trtspec("status", "tiny", "--json"))["state"] == "live"
    assert read(trtspec("stop", "tiny", "--json"))["was_running"]


def ask(url: str, text: str) -> str:
    body = json.dumps({"text_input": text, "max_tokens": 8}).encode()
    with urlopen(Request(f"{url}/v2/models/ensemble/generate", body), timeout=60) as answer:
        return str(json.loads(answer.read())["text_output"])
