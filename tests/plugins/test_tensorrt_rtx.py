# SPDX-License-Identifier: Apache-2.0
"""The plugin library in real TensorRT-RTX, on a CPU: the networks it builds, and the reasons for rejections.

TensorRT-RTX supports plugins only through ONNX. Building calls all functions of a plugin except its launch, which needs
a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engines import engine_python
from tests.plugins.tensorrt_driver import compile_driver
from trtspec.kernels.bit_exact import DraftKind, Mode
from trtspec.kernels.tensorrt import ChainLayer, TreeLayer, VerifyLayer

CHAIN = ChainLayer(vocab=5000, columns=5008, draft_len=5)
TREE = TreeLayer(vocab=5000, columns=5008, nodes=16)
OWN_VOCABULARY = tuple(id // 2 if id % 2 == 0 else -1 for id in range(5000))

BUILT: dict[str, VerifyLayer] = {
    "chain": CHAIN,
    "chain of a large vocabulary": replace(CHAIN, vocab=128256, columns=128256),
    "greedy chain, float32": replace(CHAIN, sampled=False, logits="float32"),
    "chain, bfloat16": replace(CHAIN, logits="bfloat16"),
    "chain, float32, draft of logits": replace(CHAIN, draft=DraftKind.LOGITS, logits="float32"),
    "chain, bfloat16, draft of logits": replace(CHAIN, draft=DraftKind.LOGITS, logits="bfloat16"),
    "chain, draft of probabilities": replace(CHAIN, draft=DraftKind.PROBABILITIES),
    "chain, draft with its own vocabulary": replace(
        CHAIN, draft=DraftKind.LOGITS, draft_columns=2560, draft_column=OWN_VOCABULARY
    ),
    "tree": TREE,
    "greedy tree, float32": replace(TREE, sampled=False, logits="float32"),
    "recursive tree, bfloat16": replace(TREE, mode=Mode.SAMPLED, draft=DraftKind.LOGITS, logits="bfloat16"),
    "typical tree": replace(TREE, mode=Mode.TYPICAL, threshold=0.5, alpha=0.25),
}


def network_of(layer: VerifyLayer) -> dict[str, Any]:
    """Return a layer in the input format of build_networks.py."""
    return {
        "plugin": layer.plugin,
        "fields": layer.fields(),
        "inputs": {tensor.name: [tensor.dtype, tensor.dims] for tensor in layer.inputs()},
        "column": layer.draft_column,
        "outputs": {tensor.name: tensor.dims for tensor in layer.outputs()},
    }


def changed(layer: VerifyLayer, inputs: dict[str, Any] | None = None, **fields: float) -> dict[str, Any]:
    """Return a layer's network with changed fields or inputs (None: without the input)."""
    network = network_of(layer)
    network["fields"] |= fields
    network["inputs"] |= inputs or {}
    network["inputs"] = {name: value for name, value in network["inputs"].items() if value is not None}
    return network


DRAFTED = replace(CHAIN, draft=DraftKind.LOGITS)
REFUSED: dict[str, dict[str, Any]] = {
    "field vocab is 0, must be 1 to 262144": changed(CHAIN, vocab=0),
    "field vocab is 262145, must be 1 to 262144": changed(CHAIN, vocab=262145),
    "field draft_kind is 3, must be 0 to 2": changed(CHAIN, draft_kind=3),
    "field draft_vocab needs a draft tensor: set draft_kind": changed(CHAIN, draft_vocab=5),
    "field mode 1 (recursive) needs a draft tensor: set draft_kind": changed(TREE, mode=1),
    "field alpha is 1.5, must be 0 to 1": changed(TREE, mode=2, alpha=1.5),
    "takes 7 inputs (target, tokens, lengths, temperature, top_p, top_k, uniforms), not 6": changed(
        CHAIN, {"uniforms": None}
    ),
    "target has 1024 columns for 5000 ids": changed(CHAIN, {"target": ["float16", [6, 1024]]}),
    "target is [-1, 6], must have 3 dimensions": changed(CHAIN, {"target": ["float16", [6]]}),
    "tokens is [-1, 4], dimension 1 must be 5 (tokens)": changed(CHAIN, {"tokens": ["int32", [4]]}),
    "draft is float32, must be float16, the type of target": changed(DRAFTED, {"draft": ["float32", [5, 5008]]}),
    "temperature is float16, must be float32": changed(CHAIN, {"temperature": ["float16", []]}),
    "tokens is int64, must be int32": changed(CHAIN, {"tokens": ["int64", [5]]}),
    "tokens has 65536 columns; at most 65535 are supported": network_of(replace(CHAIN, draft_len=65536)),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """TensorRT-RTX's results for all networks, by name."""
    python, folder = engine_python("tensorrt_rtx"), tmp_path_factory.mktemp("rtx")
    networks = {name: network_of(layer) for name, layer in BUILT.items()} | REFUSED
    (libraries,) = python.parents[1].glob("lib/python3*/site-packages/tensorrt_rtx_libs")
    # The parser opens libtensorrt_rtx.so for a plugin node, but the package only has libtensorrt_rtx.so.1.
    (folder / "libtensorrt_rtx.so").symlink_to(libraries / "libtensorrt_rtx.so.1")
    done = subprocess.run(
        [python, Path(__file__).with_name("build_networks.py"), compile_driver(folder)],
        input=json.dumps(list(networks.values())),
        capture_output=True,
        text=True,
        env=os.environ | {"LD_LIBRARY_PATH": str(folder)},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(networks, json.loads(done.stdout), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_network_with_plugin_is_built(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    assert outcomes[name].get("bytes", 0) > 1000, outcomes[name]


@pytest.mark.slow
@pytest.mark.parametrize("message", REFUSED)
def test_invalid_network_is_rejected_with_its_cause(outcomes: dict[str, dict[str, Any]], message: str) -> None:
    assert "bytes" not in outcomes[message]
    assert any(error.endswith(f": {message}") for error in outcomes[message]["errors"]), outcomes[message]
