# SPDX-License-Identifier: Apache-2.0
"""The Python stub returns tensors of each type and shape unchanged, on a real tritonserver."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Queue
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import np_to_triton_dtype

from tests.serving.triton.serving import Served, serving

pytestmark = [pytest.mark.triton, pytest.mark.every_python]

MODEL = """\
import triton_python_backend_utils as pb_utils
from trtspec.serving.triton.python_models.responses import respond


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            [given] = request.inputs()
            kind, array = given.name(), given.as_numpy()
            made = [(f"same_{kind}", array), (f"turned_{kind}", array.T)]  # the second is not contiguous
            response = respond(pb_utils, lambda: made, request.requested_output_names())
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = 'name: "echo" backend: "python" model_transaction_policy { decoupled: true }\n'
TENSORS = """\
input {{ name: "{name}" data_type: TYPE_{type} dims: [ -1, -1 ] optional: true }}
output {{ name: "same_{name}" data_type: TYPE_{type} dims: [ -1, -1 ] }}
output {{ name: "turned_{name}" data_type: TYPE_{type} dims: [ -1, -1 ] }}
"""
TYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint64": "UINT64", "float16": "FP16", "float32": "FP32", "float64": "FP64", "object": "STRING",
}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("stub")
    model = root / "models" / "echo" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(MODEL)
    tensors = "".join(TENSORS.format(name=name, type=kind) for name, kind in TYPES.items())
    (model.parents[1] / "config.pbtxt").write_text(CONFIG + tensors)
    with serving(root, root / "models") as running:
        yield running


class Echo:
    """A model called over one gRPC stream, which decoupled models require."""

    def __init__(self, client: InferenceServerClient) -> None:
        self.client = client
        self.answers: Queue[Any] = Queue()
        client.start_stream(lambda result, error: self.answers.put(error or result), stream_timeout=300)

    def ask(self, kind: str, array: np.ndarray, *outputs: str) -> dict[str, np.ndarray]:
        """Return the outputs for a tensor of a type, "same" and "turned", of which `outputs` are requested."""
        given = InferInput(kind, array.shape, np_to_triton_dtype(array.dtype))
        given.set_data_from_numpy(array)
        wanted = [InferRequestedOutput(f"{name}_{kind}") for name in outputs]
        self.client.async_stream_infer("echo", [given], outputs=wanted)
        answer = self.answers.get(timeout=30)
        assert not isinstance(answer, Exception), answer
        names = [output.name for output in answer.get_response().outputs]
        return {name.removesuffix(f"_{kind}"): answer.as_numpy(name) for name in names}


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
def test_tensor_round_trips_through_the_stub(echo: Echo, name: str, shape: tuple[int, int]) -> None:
    sent = values(name, shape)
    answer = echo.ask(name, sent, "same", "turned")
    np.testing.assert_array_equal(answer["same"], sent)
    np.testing.assert_array_equal(answer["turned"], sent.T)
    assert answer["same"].dtype == sent.dtype


def test_stub_survives_many_responses_with_omitted_outputs(echo: Echo) -> None:
    sent = values("float32", (3, 5))
    for _ in range(200):
        assert set(echo.ask("float32", sent, "turned")) == {"turned"}
