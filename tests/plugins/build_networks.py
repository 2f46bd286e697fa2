# SPDX-License-Identifier: Apache-2.0
"""Build networks of one verification layer with real TensorRT-RTX, through ONNX; runs in TensorRT-RTX's environment.

    python build_networks.py LIBRARY < networks.json

A network is {"plugin", "fields", "inputs": {name: [dtype, dims]}, "column": [...], "outputs": {name: dims}}; the batch
is the first dimension, dynamic. Prints a JSON list in the same order: {"bytes": N} or {"errors": [message, ...]}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorrt_rtx_bindings as trt
from onnx import TensorProto, helper, numpy_helper

DTYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}
MAX_BATCH = 4


class Errors(trt.ILogger):  # type: ignore[misc]
    """Collects TensorRT's errors."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR) and "cudaError" not in message:
            self.messages.append(message)


def onnx_model(network: dict[str, Any]) -> bytes:
    """Return the ONNX model of one plugin node; its attributes are the plugin's fields."""
    inputs = [
        helper.make_tensor_value_info(name, DTYPES[dtype], ["batch", *dims])
        for name, (dtype, dims) in network["inputs"].items()
    ]
    names, constants = list(network["inputs"]), []
    if network["column"]:
        constants.append(numpy_helper.from_array(np.array(network["column"], np.int32), "draft_column"))
        names.insert(names.index("draft") + 1, "draft_column")
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", *dims])
        for name, dims in network["outputs"].items()
    ]
    node = helper.make_node(
        network["plugin"], names, list(network["outputs"]), plugin_version="1", plugin_namespace="", **network["fields"]
    )
    graph = helper.make_graph([node], "verification", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def build(network: dict[str, Any], logger: Errors) -> dict[str, Any]:
    """Return TensorRT's result for a network."""
    logger.messages.clear()
    builder = trt.Builder(logger)
    definition = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(definition, logger)
    if not parser.parse(onnx_model(network)):
        errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        return {"errors": [*logger.messages, *errors]}
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM120, 0)
    profile = builder.create_optimization_profile()
    for name, (_, dims) in network["inputs"].items():
        profile.set_shape(name, (1, *dims), (MAX_BATCH, *dims), (MAX_BATCH, *dims))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(definition, config)
    return {"errors": logger.messages[:]} if plan is None else {"bytes": len(bytes(plan))}


def main() -> None:
    logger = Errors()
    if trt.get_plugin_registry().load_library(sys.argv[1]) is None:
        sys.exit(f"TensorRT-RTX {trt.__version__} cannot load {sys.argv[1]}: {logger.messages}")
    print(json.dumps([build(network, logger) for network in json.load(sys.stdin)]))  # noqa: T201


if __name__ == "__main__":
    main()
