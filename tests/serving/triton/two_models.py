# SPDX-License-Identifier: Apache-2.0
"""The two-model repository of TensorRT-LLM's engines, on the torch engine with the quickstart pair.

It is used to test failures of a draft model's process on a real tritonserver.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests._support.tiny import convert
from tests.serving.triton.serving import Served
from trtspec.core.paths import model_repository_dir, recipes_dir
from trtspec.core.ports import LOOPBACK
from trtspec.engine.settings import EngineSettings
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model

MODELS = recipes_dir() / "models"
TARGET, DRAFT = MODELS / "quickstart-target", MODELS / "quickstart-draft"
PLACES, DRAFT_LEN = 8, 5
DRAFT_TIMEOUT_S = 1
LOADING_S = 240.0  # on a busy machine; some seconds on an idle one
SERVING = ServingSettings(max_batch_size=PLACES)
ENGINE = EngineSettings(
    max_batch_size=PLACES, max_input_len=512, max_seq_len=512, max_num_tokens=2048, device="cpu", dtype="float32"
)


def lines(count: int) -> list[str]:
    """Return the quickstart's first prompts."""
    text = (recipes_dir() / "prompts" / "quickstart.jsonl").read_text()
    return [json.loads(line)["prompt"] for line in text.splitlines()[:count]]


def engine(path: str, tokenizer: str = "../../tokenizer", **changes: int) -> Parameters:
    """Return the parameters of an engine that does not speculate."""
    return {
        "gpt_model_path": path,
        "draft_model_path": "",
        "tokenizer_dir": tokenizer,
        "engine_settings": replace(ENGINE, **changes).as_json(),
    }


def make_pair(root: Path) -> Path:
    """Write the checkpoints and, below `models`, the repository."""
    for role, source in (("target", TARGET), ("draft", DRAFT)):
        convert(source, root / "checkpoints" / role)
    (root / "tokenizer").symlink_to(TARGET)
    models, hand_written = root / "models", model_repository_dir()
    for name, role in (("tensorrt_llm", "target"), ("tensorrt_llm_draft", "draft")):
        emit_model(models, name, SERVING, engine(f"../../checkpoints/{role}"), source=hand_written / "tensorrt_llm")
    text: Parameters = {
        "draft_len": DRAFT_LEN,
        "max_seq_len": ENGINE.max_seq_len,
        "draft_timeout_s": DRAFT_TIMEOUT_S,
    }
    emit_model(models, "ensemble", SERVING, text, source=hand_written / "tensorrt_llm_bls")
    return root


def draft_process(pair: Path) -> int:
    """Return the stub process of the draft model."""
    wanted = str(pair / "models" / "tensorrt_llm_draft").encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"triton_python_backend_stub" in (said := (process / "cmdline").read_bytes()) and wanted in said:
                return int(process.name)
    raise AssertionError("the draft model's process is missing")


def metric(served: Served, name: str) -> float:
    """Return the sum of a trtspec metric over its labels."""
    with urlopen(f"http://{LOOPBACK}:{served.metrics}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def reload(served: Served) -> None:
    """Load the draft model again, as a supervisor does.

    It uses gRPC, because over HTTP the request blocks a thread that sends streams, whose queues then overflow.
    """
    with grpc.insecure_channel(f"{LOOPBACK}:{served.grpc}") as channel:
        server = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        draft = {"model_name": "tensorrt_llm_draft"}
        server.RepositoryModelUnload(service_pb2.RepositoryModelUnloadRequest(**draft), timeout=LOADING_S)
        server.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(**draft), timeout=LOADING_S)
