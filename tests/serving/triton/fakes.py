# SPDX-License-Identifier: Apache-2.0
"""A fake of Triton's Python stub, sufficient to run a model without a server."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from google.protobuf import json_format

import trtspec
from trtspec.serving.triton.config import load_config

# The path of each model's code below trtspec.
CODE = {
    "preprocessing": "serving.triton.python_models.preprocessing",
    "postprocessing": "serving.triton.python_models.postprocessing",
    "ensemble": "serving.triton.python_models.ensemble_model",
    "tensorrt_llm_bls": "serving.triton.python_models.bls_model",
    "tensorrt_llm": "backends.embedded.served_model",
    "tensorrt_llm_llmapi": "backends.llmapi.served_model",
    "sampling_parameters": "backends.vllm.sampling_parameters",
    "edge_llm": "backends.edge_llm.served_model",
}
FINAL = 1


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self.name, self.array = name, array

    def as_numpy(self) -> np.ndarray:
        return self.array


class TritonError:
    INVALID_ARG, INTERNAL, CANCELLED = "invalid", "internal", "cancelled"
    UNAVAILABLE, NOT_FOUND, UNSUPPORTED = "unavailable", "not found", "unsupported"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self.message, self.code = message, code


class Response:
    def __init__(self, tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.error = error
        self.outputs = {tensor.name: tensor.array for tensor in tensors or []}


class Sender:
    def __init__(self) -> None:
        self.sent: list[tuple[Response, int]] = []
        self.cancelled = False

    def send(self, response: Response, flags: int) -> None:
        assert not (self.sent and self.sent[-1][1] == FINAL), "sent after the final flag"
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        return self.cancelled


class AllOutputs(set[str]):
    """The requested outputs of a request that names none."""

    def __contains__(self, name: object) -> bool:
        return True


class Request:
    def __init__(self, wanted: Collection[str] = (), *, sent: dict[str, Any] | None = None, **inputs: Any) -> None:
        self.inputs = inputs
        self.sent = sent or {}  # fields that are not inputs become parameters
        self.wanted = wanted
        self.sender = Sender()
        self.cancelled = False

    def request_id(self) -> str:
        return ""

    def parameters(self) -> str:
        return json.dumps(self.sent)

    def requested_output_names(self) -> set[str]:
        return set(self.wanted) or AllOutputs()

    def get_response_sender(self) -> Sender:
        return self.sender

    def is_cancelled(self) -> bool:
        return self.cancelled


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    if name not in request.inputs:
        return None
    value = request.inputs[name]
    return Tensor(name, value if isinstance(value, np.ndarray) else np.array([[value]]))


def make_metric_family(exported: dict[tuple[str, ...], list[float]]) -> type:
    """Return a fake pb_utils.MetricFamily whose metrics record their values by name and last label."""

    class Metric:
        def __init__(self, name: str, labels: dict[str, str]) -> None:
            own = [value for key, value in labels.items() if key not in ("model", "method")]
            self.given = exported.setdefault((name, *own), [])

        def increment(self, value: float) -> None:
            self.given.append(value)

        observe = set = increment

    class MetricFamily:
        COUNTER, GAUGE, HISTOGRAM = range(3)

        def __init__(self, name: str, description: str, kind: int) -> None:
            self.name = name

        def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Metric:  # noqa: N802  its name
            return Metric(self.name, labels)

    return MetricFamily


def make_pb_utils() -> Any:
    logged: list[str] = []
    exported: dict[tuple[str, ...], list[float]] = {}
    return SimpleNamespace(
        MetricFamily=make_metric_family(exported),
        exported=exported,
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=Response,
        get_input_tensor_by_name=get_input_tensor_by_name,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Logger=SimpleNamespace(log_error=logged.append, log_warn=logged.append),
        logged=logged,
    )


def load_model(name: str, pb_utils: Any) -> ModuleType:
    """Import the code of a model afresh through its model.py, as the server does."""
    return load_file(Path(trtspec.__file__).parent.joinpath(*CODE[name].split(".")).with_suffix(".py"), pb_utils)


def load_file(path: Path, pb_utils: Any) -> ModuleType:
    """Import a model.py."""
    sys.modules["triton_python_backend_utils"] = pb_utils
    spec = importlib.util.spec_from_file_location(f"model_of_{path.parts[-3]}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_args(folder: Path, **changes: str) -> dict[str, str]:
    """Return the argument of `initialize` for the model configured in `folder`."""
    config = json_format.MessageToDict(load_config(folder / "config.pbtxt"), preserving_proto_field_name=True)
    for key, value in changes.items():
        config["parameters"][key] = {"string_value": value}
    for parameter in config["parameters"].values():
        parameter.setdefault("string_value", "")
    places = {"model_name": folder.name, "model_repository": str(folder), "model_version": "1"}
    return {"model_config": json.dumps(config), **places}
