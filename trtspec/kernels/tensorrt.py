# SPDX-License-Identifier: Apache-2.0
"""Verification as a TensorRT plan with one layer, for use in a Triton ensemble or in other programs.

Only `build_plan` needs TensorRT and a GPU. The tensors of a layer are known without them. The plugin and a list of its
tensors are in plugins/tensorrt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

from trtspec.core.errors import TrtspecError
from trtspec.kernels.bit_exact import DraftKind, Mode

PLUGIN_VERSION = "1"
DATA_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int32": "INT32"}


@dataclass(frozen=True)
class PlanTensor:
    """An input or output of a plan: its name, its numpy dtype, and its dimensions without the batch.

    If there are no dimensions, Triton's config needs `dims: [1]` with `reshape: {shape: []}`.
    """

    name: str
    dtype: str
    dims: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VerifyLayer(ABC):
    """A verification layer with the sizes of its plan.

    Rows of logits have `columns` entries, of which the first `vocab` are ids. Rows of a draft have `draft_columns`
    entries, or `columns` if that is 0. For a draft with another vocabulary, `draft_column` is the draft's column of
    each target id, or -1. Uniforms are int32 with the bits of the unsigned number. Unless `sampled` is true, every
    request is greedy.
    """

    plugin: ClassVar[str]

    vocab: int
    columns: int
    logits: Literal["float32", "float16", "bfloat16"] = "float16"
    draft: DraftKind | None = None
    draft_columns: int = 0
    draft_column: tuple[int, ...] = ()
    sampled: bool = True

    @abstractmethod
    def inputs(self) -> list[PlanTensor]:
        """Return the layer's inputs, without the batch dimension and without `draft_column`, which is a constant."""

    @abstractmethod
    def outputs(self) -> list[PlanTensor]:
        """Return the layer's outputs, without the batch dimension."""

    def fields(self) -> dict[str, int | float]:
        """Return the plugin's creation fields by name."""
        return {
            "vocab": self.vocab,
            "draft_kind": int(self.draft or 0),
            "draft_vocab": max(self.draft_column, default=-1) + 1,
            "sampled": int(self.sampled),
        }

    def _inputs(self, rows: int, drafted: int, **shape: tuple[int, ...]) -> list[PlanTensor]:
        """Return the inputs for `rows` rows of logits and `drafted` tokens; `shape` are further int32 inputs."""
        found = [PlanTensor("target", self.logits, (rows, self.columns)), *_ints(tokens=(drafted,), **shape)]
        if self.draft is not None:
            dtype = self.logits if self.draft == DraftKind.LOGITS else "float32"
            found.append(PlanTensor("draft", dtype, (drafted, self.draft_columns or self.columns)))
        if self.sampled:
            found += [PlanTensor("temperature", "float32"), PlanTensor("top_p", "float32")]
            found += _ints(top_k=(), uniforms=(rows,))
        return found


@dataclass(frozen=True, kw_only=True)
class ChainLayer(VerifyLayer):
    """A verify_chain layer for chains of up to `draft_len` tokens."""

    plugin: ClassVar[str] = "TrtspecVerifyChain"

    draft_len: int

    def inputs(self) -> list[PlanTensor]:
        return self._inputs(self.draft_len + 1, self.draft_len, lengths=())

    def outputs(self) -> list[PlanTensor]:
        return _ints(accepted=(), output=(self.draft_len + 1,), next=(), status=())


@dataclass(frozen=True, kw_only=True)
class TreeLayer(VerifyLayer):
    """A verify_tree layer for trees of up to `nodes` nodes, including the root."""

    plugin: ClassVar[str] = "TrtspecVerifyTree"

    nodes: int
    mode: Mode = Mode.DETERMINISTIC
    threshold: float = 0.09
    alpha: float = 0.3

    def fields(self) -> dict[str, int | float]:
        return super().fields() | {"mode": int(self.mode), "threshold": self.threshold, "alpha": self.alpha}

    def inputs(self) -> list[PlanTensor]:
        return self._inputs(self.nodes, self.nodes, parents=(self.nodes,), limits=())

    def outputs(self) -> list[PlanTensor]:
        return _ints(path=(self.nodes,), path_len=(), next=(), status=())


def _ints(**dims: tuple[int, ...]) -> list[PlanTensor]:
    return [PlanTensor(name, "int32", shape) for name, shape in dims.items()]


def build_plan(layer: VerifyLayer, library: Path, max_batch_size: int) -> bytes:
    """Return a serialized plan for batches of 1 to `max_batch_size` requests.

    `library` is the plugin library for the installed TensorRT's major version. Only the same version of TensorRT can
    load the plan. Raise TrtspecError if TensorRT is not installed, cannot load the library, or rejects the network.
    """
    import numpy as np

    trt = _import_tensorrt()
    logger = _make_logger(trt)
    registry = trt.get_plugin_registry()
    known = registry.get_creator(layer.plugin, PLUGIN_VERSION, "") is not None
    if not known and registry.load_library(str(library)) is None:
        raise TrtspecError(
            f"TensorRT {trt.__version__} cannot load the library",
            where=str(library),
            hint="build it for this major version: make plugins-trt TENSORRT_ROOT=..., with that version's headers",
        )
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    column = np.array(layer.draft_column, np.int32)  # kept alive: the builder reads it during the build
    plan = None
    if _add_layer(trt, network, layer, column):
        config = builder.create_builder_config()
        config.add_optimization_profile(_profile(builder, layer, max_batch_size))
        plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise TrtspecError(f"TensorRT cannot build the plan: {'; '.join(logger.messages)}", where=layer.plugin)
    return bytes(plan)


def _import_tensorrt() -> Any:
    try:
        import tensorrt
    except ImportError:
        raise TrtspecError(
            "plans cannot be built: TensorRT's Python package is not installed",
            hint="install the package tensorrt, in the server's version",
        ) from None
    return tensorrt


def _make_logger(trt: ModuleType) -> Any:
    """Return a TensorRT logger that collects error messages."""

    class ErrorLogger(trt.ILogger):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.messages: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.messages.append(message)

    return ErrorLogger()


def _add_layer(trt: Any, network: Any, layer: VerifyLayer, column: Any) -> bool:
    """Add the plugin and its tensors to the network; return False if TensorRT rejects them."""
    plugin = create_plugin(trt, layer)
    tensors = {
        tensor.name: network.add_input(tensor.name, getattr(trt.DataType, DATA_TYPES[tensor.dtype]), (-1, *tensor.dims))
        for tensor in layer.inputs()
    }
    ordered = list(tensors.values())
    if layer.draft_column:
        # after the draft's rows, as in the plugin's list of inputs
        constant = network.add_constant(column.shape, trt.Weights(column))
        ordered.insert(list(tensors).index("draft") + 1, constant.get_output(0))
    added = None if plugin is None else network.add_plugin_v3(ordered, [], plugin)
    if added is None:
        return False
    for index, tensor in enumerate(layer.outputs()):
        added.get_output(index).name = tensor.name
        network.mark_output(added.get_output(index))
    return True


def create_plugin(trt: Any, layer: VerifyLayer) -> Any:
    """Return the plugin from the registry of `trt` (tensorrt or tensorrt_lean), or None if it rejects the fields."""
    import numpy as np

    def field(name: str, value: float) -> Any:
        kind = trt.PluginFieldType.INT32 if isinstance(value, int) else trt.PluginFieldType.FLOAT32
        return trt.PluginField(name, np.array([value], np.int32 if isinstance(value, int) else np.float32), kind)

    # The collection stores only pointers, so the list keeps the values alive until the plugin has read them.
    fields = [field(name, value) for name, value in layer.fields().items()]
    collection = trt.PluginFieldCollection(fields)
    creator = trt.get_plugin_registry().get_creator(layer.plugin, PLUGIN_VERSION, "")
    return creator.create_plugin(layer.plugin, collection, trt.TensorRTPhase.BUILD)


def _profile(builder: Any, layer: VerifyLayer, max_batch_size: int) -> Any:
    profile = builder.create_optimization_profile()
    for tensor in layer.inputs():
        least, most = (1, *tensor.dims), (max_batch_size, *tensor.dims)
        profile.set_shape(tensor.name, least, most, most)
    return profile
