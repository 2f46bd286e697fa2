# SPDX-License-Identifier: Apache-2.0
"""What this Python's stub does with tensors, on a real tritonserver: each type and shape comes back as it was sent."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Queue
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import np_to_triton_dtype

from tests.triton.serving import Served, serving

pytestmark = [pytest.mark.triton, pytest.mark.every_python]

MODEL = """\
import triton_python_backend_utils as pb_utils
from trtspec.triton.python_models.tensors import respond


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            [given] = [tensor.as_numpy() for tensor in request.inputs()]
            made = [("same", given), ("turned", given.T)]  # the second is not contiguous
            response = respond(pb_utils, lambda: made, request.requested_output_names())
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """\
name: "{name}"
backend: "python"
input {{ name: "given" data_type: TYPE_{type} dims: [ -1, -1 ] }}
output {{ name: "same" data_type: TYPE_{type} dims: [ -1, -1 ] }}
output {{ name: "turned" data_type: TYPE_{type} dims: [ -1, -1 ] }}
model_transaction_policy {{ decoupled: true }}
"""
TYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint64": "UINT64", "float16": "FP16", "float32": "FP32", "float64": "FP64", "object": "STRING",
}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("stub")
    for name, kind in TYPES.items():
        model = root / "models" / name / "1" / "model.py"
        model.parent.mkdir(parents=True)
        model.write_text(MODEL)
        (model.parents[1] / "config.pbtxt").write_text(CONFIG.format(name=name, type=kind))
    with serving(root, root / "models") as running:
        yield running


class Echo:
    """The models over one gRPC stream, which is how a model is asked that may answer more than once."""

    def __init__(self, client: InferenceServerClient) -> None:
        self.client = client
        self.answers: Queue[Any] = Queue()
        client.start_stream(lambda result, error: self.answers.put(error or result), stream_timeout=300)

    def ask(self, model: str, array: np.ndarray, *outputs: str) -> dict[str, np.ndarray]:
        given = InferInput("given", array.shape, np_to_triton_dtype(array.dtype))
        given.set_data_from_numpy(array)
        self.client.async_stream_infer(model, [given], outputs=[InferRequestedOutput(name) for name in outputs])
        answer = self.answers.get(timeout=30)
        assert not isinstance(answer, Exception), answer
        return {output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs}


@pytest.fixture(scope="module")
def echo(served: Served) -> Iterator[Echo]:
    with InferenceServerClient(f"127.0.0.1:{served.grpc}") as client:
        yield Echo(client)


def values(name: str, shape: tuple[int, int]) -> np.ndarray:
    numbers = np.arange(np.prod(shape)).reshape(shape)
    if name == "object":
        return np.vectorize(lambda number: ("é✓" * number).encode(), otypes=[object])(numbers)
    return (numbers % 2 if name == "bool" else numbers - (3 if name[0] in "if" else 0)).astype(name)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 0)])
@pytest.mark.parametrize("name", TYPES)
def test_a_tensor_comes_back_as_it_was_sent(echo: Echo, name: str, shape: tuple[int, int]) -> None:
    sent = values(name, shape)
    answer = echo.ask(name, sent, "same", "turned")
    np.testing.assert_array_equal(answer["same"], sent)
    np.testing.assert_array_equal(answer["turned"], sent.T)
    assert answer["same"].dtype == sent.dtype


def test_many_responses_without_an_output_leave_the_stub_alive(echo: Echo) -> None:
    sent = values("float32", (3, 5))
    for _ in range(200):
        assert set(echo.ask("float32", sent, "turned")) == {"turned"}
