# SPDX-License-Identifier: Apache-2.0
"""Plans with one layer: the structure of the network, without TensorRT; building a real plan needs a GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trtspec.core.errors import TrtspecError
from trtspec.kernels.bit_exact import ChainBatch, DraftKind, Mode, verify_chain
from trtspec.kernels.tensorrt import ChainLayer, PlanTensor, TreeLayer, build_plan

LIBRARY = Path(__file__).parents[2] / "build" / "plugins" / "libtrtspec_tensorrt.so"
CHAIN = ChainLayer(vocab=4, columns=8, draft_len=2, draft=DraftKind.LOGITS, draft_columns=3, draft_column=(2, -1, 0, 1))


def test_chain_layer_has_one_more_row_than_tokens() -> None:
    assert CHAIN.inputs() == [
        PlanTensor("target", "float16", (3, 8)),
        PlanTensor("tokens", "int32", (2,)),
        PlanTensor("lengths", "int32", ()),
        PlanTensor("draft", "float16", (2, 3)),
        PlanTensor("temperature", "float32", ()),
        PlanTensor("top_p", "float32", ()),
        PlanTensor("top_k", "int32", ()),
        PlanTensor("uniforms", "int32", (3,)),
    ]
    assert CHAIN.outputs() == [
        PlanTensor("accepted", "int32", ()),
        PlanTensor("output", "int32", (3,)),
        PlanTensor("next", "int32", ()),
        PlanTensor("status", "int32", ()),
    ]
    assert CHAIN.fields() == {"vocab": 4, "draft_kind": 1, "draft_vocab": 3, "sampled": 1}


def test_greedy_tree_layer_has_no_sampling_inputs() -> None:
    tree = TreeLayer(vocab=7, columns=8, nodes=5, logits="bfloat16", sampled=False)
    assert tree.inputs() == [
        PlanTensor("target", "bfloat16", (5, 8)),
        PlanTensor("tokens", "int32", (5,)),
        PlanTensor("parents", "int32", (5,)),
        PlanTensor("limits", "int32", ()),
    ]
    assert tree.fields()["mode"] == Mode.DETERMINISTIC == 0


class Recorder(ModuleType):
    """The parts of `tensorrt` that a plan uses; it records its calls, and tensors are represented by their names."""

    __version__ = "11.1"
    ILogger = type("ILogger", (), {"INTERNAL_ERROR": 0, "ERROR": 1})
    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=0)
    DataType = SimpleNamespace(FLOAT="float32", HALF="float16", BF16="bfloat16", INT32="int32")
    PluginFieldType = SimpleNamespace(INT32="int32", FLOAT32="float32")
    PluginFieldCollection = staticmethod(list)
    TensorRTPhase = SimpleNamespace(BUILD="build")
    Weights = staticmethod(np.array)

    def __init__(self, *, loads: bool = True, refusal: str = "") -> None:
        super().__init__("tensorrt")
        self.loads, self.refusal = loads, refusal
        self.libraries: list[str] = []
        self.inputs: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
        self.fields: dict[str, Any] = {}
        self.ordered: list[Any] = []
        self.outputs: list[str] = []

    def get_plugin_registry(self) -> Any:
        def load(path: str) -> str | None:
            self.libraries.append(path)
            return path if self.loads else None

        def get_creator(name: str, version: str, namespace: str) -> Any:
            return SimpleNamespace(create_plugin=self._create) if self.libraries else None

        return SimpleNamespace(load_library=load, get_creator=get_creator)

    def PluginField(self, name: str, data: Any, kind: str) -> tuple[str, Any]:  # noqa: N802
        assert (data.dtype, data.shape) == (kind, (1,))
        return name, data[0]

    def _create(self, name: str, fields: list[tuple[str, Any]], phase: str) -> Any:
        self.fields = dict(fields)
        if self.refusal:
            self.log(self.ILogger.ERROR, self.refusal)
        return None if self.refusal else name

    def Builder(self, logger: Any) -> Any:  # noqa: N802
        self.log: Callable[[int, str], None] = logger.log
        profile = SimpleNamespace(set_shape=lambda name, *shapes: self.shapes.update({name: shapes}))
        config = SimpleNamespace(add_optimization_profile=lambda profile: None)
        return SimpleNamespace(
            create_network=lambda flags: self._network(),
            create_builder_config=lambda: config,
            create_optimization_profile=lambda: profile,
            build_serialized_network=lambda network, config: b"a plan",
        )

    def _network(self) -> Any:
        def add_input(name: str, dtype: str, shape: tuple[int, ...]) -> str:
            self.inputs[name] = dtype, shape
            return name

        def add_plugin(ordered: list[Any], shapes: list[Any], plugin: str) -> Any:
            self.ordered = ordered
            outputs = [SimpleNamespace(name="") for _ in range(4)]
            return SimpleNamespace(get_output=outputs.__getitem__)

        return SimpleNamespace(
            add_input=add_input,
            add_constant=lambda shape, values: SimpleNamespace(get_output=lambda index: values.tolist()),
            add_plugin_v3=add_plugin,
            mark_output=lambda tensor: self.outputs.append(tensor.name),
        )


@pytest.fixture
def tensorrt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Recorder]]:
    def install(**options: Any) -> Recorder:
        recorder = Recorder(**options)
        monkeypatch.setitem(sys.modules, "tensorrt", recorder)
        return recorder

    return install


def test_plan_layer_gets_its_tensors_in_the_plugins_order(tensorrt: Callable[..., Recorder]) -> None:
    recorder = tensorrt()
    assert build_plan(CHAIN, Path("lib.so"), max_batch_size=16) == b"a plan"
    assert recorder.libraries == ["lib.so"]
    assert recorder.fields == CHAIN.fields()
    assert recorder.inputs["target"] == ("float16", (-1, 3, 8))
    assert recorder.shapes["target"] == ((1, 3, 8), (16, 3, 8), (16, 3, 8))
    assert recorder.shapes["top_k"] == ((1,), (16,), (16,))
    assert "draft_column" not in recorder.inputs
    sampling = ["temperature", "top_p", "top_k", "uniforms"]
    assert recorder.ordered == ["target", "tokens", "lengths", "draft", [2, -1, 0, 1], *sampling]
    assert recorder.outputs == ["accepted", "output", "next", "status"]


def test_library_of_another_major_version_is_an_error_with_a_hint(tensorrt: Callable[..., Recorder]) -> None:
    tensorrt(loads=False)
    with pytest.raises(TrtspecError, match=r"lib\.so: TensorRT 11\.1 cannot load the library\nhint: build it for this"):
        build_plan(CHAIN, Path("lib.so"), max_batch_size=1)


def test_plugin_rejection_is_an_error_with_its_reason(tensorrt: Callable[..., Recorder]) -> None:
    tensorrt(refusal="field vocab is 0")
    with pytest.raises(TrtspecError, match="TrtspecVerifyChain: TensorRT cannot build the plan: field vocab is 0"):
        build_plan(CHAIN, Path("lib.so"), max_batch_size=1)


def test_missing_tensorrt_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(TrtspecError, match="TensorRT's Python package is not installed"):
        build_plan(CHAIN, Path("lib.so"), max_batch_size=1)


def chains(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
    """Random inputs of CHAIN; tokens are ids of its draft."""
    return {
        "target": rng.normal(0, 1, (batch, 3, 8)).astype(np.float16),
        "tokens": rng.choice([0, 2, 3], (batch, 2)).astype(np.int32),
        "lengths": rng.integers(0, 3, batch).astype(np.int32),
        "draft": rng.normal(0, 1, (batch, 2, 3)).astype(np.float16),
        "temperature": rng.uniform(0, 1, batch).astype(np.float32),
        "top_p": rng.uniform(0.5, 1, batch).astype(np.float32),
        "top_k": rng.integers(0, 4, batch).astype(np.int32),
        "uniforms": rng.integers(0, 1 << 32, (batch, 3), np.uint32),
    }


def execute(context: Any, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a plan of CHAIN on the GPU."""
    import torch

    batch = len(given["tokens"])
    signed = {name: array.view(np.int32) if array.dtype == np.uint32 else array for name, array in given.items()}
    inputs = {name: torch.from_numpy(array).cuda() for name, array in signed.items()}
    shapes = {tensor.name: (batch, *tensor.dims) for tensor in CHAIN.outputs()}
    outputs = {name: torch.empty(shape, dtype=torch.int32, device="cuda") for name, shape in shapes.items()}
    for name, tensor in inputs.items():
        context.set_input_shape(name, tuple(tensor.shape))
    for name, tensor in (inputs | outputs).items():
        context.set_tensor_address(name, tensor.data_ptr())
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    assert context.execute_async_v3(stream.cuda_stream)
    stream.synchronize()
    return {name: tensor.cpu().numpy() for name, tensor in outputs.items()}


@pytest.mark.gpu
def test_plan_results_equal_the_oracle() -> None:
    """The plan is built, serialized, loaded and run with batches other than the largest."""
    if importlib.util.find_spec("tensorrt") is None:
        pytest.skip("tensorrt is not installed")
    if not LIBRARY.is_file():
        pytest.skip(f"{LIBRARY} is not there: make plugins-trt")
    import tensorrt as trt

    plan = build_plan(CHAIN, LIBRARY, max_batch_size=16)
    engine = trt.Runtime(trt.Logger()).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    rng = np.random.default_rng(1)
    for batch in (1, 5, 16):
        given = chains(rng, batch)
        outputs = execute(context, given)
        logits = given.pop("target")[:, :, : CHAIN.vocab]
        column = np.array(CHAIN.draft_column, np.int32)
        expected = verify_chain(ChainBatch(target=logits, draft_column=column, **given))
        for name, got in outputs.items():
            np.testing.assert_array_equal(got, getattr(expected, name), err_msg=f"{name} of {batch}")
