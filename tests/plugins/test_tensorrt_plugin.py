# SPDX-License-Identifier: Apache-2.0
"""TensorRT's plugins: their answers to the builder, and the results of their launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.plugins.launches import check_chain, check_greedy_bfloat16_chain, check_tree
from tests.plugins.tensorrt_driver import Driver, Plugin, compile_cuda_driver, compile_driver, created
from trtspec.kernels.bit_exact import DraftKind, Mode, TreeBatch
from trtspec.kernels.tensorrt import ChainLayer, TreeLayer, VerifyLayer

CHAIN = "TrtspecVerifyChain"
TREE = "TrtspecVerifyTree"
SAMPLED = "float32[B] float32[B] int32[B]"  # temperature, top_p, top_k

LAYERS = {
    "chain": ChainLayer(vocab=7, columns=8, draft_len=3),
    "greedy chain": ChainLayer(vocab=7, columns=7, draft_len=3, logits="float32", sampled=False),
    "chain with logits": ChainLayer(vocab=7, columns=8, draft_len=3, draft=DraftKind.LOGITS, logits="bfloat16"),
    "chain with probabilities": ChainLayer(
        vocab=4, columns=8, draft_len=2, draft=DraftKind.PROBABILITIES, draft_columns=3, draft_column=(2, -1, 0, 1)
    ),
    "tree": TreeLayer(vocab=7, columns=8, nodes=5),
    "typical tree": TreeLayer(vocab=7, columns=8, nodes=5, mode=Mode.TYPICAL, threshold=0.5, alpha=0.25),
    "recursive tree": TreeLayer(vocab=7, columns=9, nodes=5, mode=Mode.SAMPLED, draft=DraftKind.LOGITS),
}
REFUSED_FIELDS = {
    "": "field vocab is missing: how many ids the target has",
    "vocab=0": "field vocab is 0, must be 1 to 262144",
    "vocab=262145": "field vocab is 262145, must be 1 to 262144",
    "vocab=7.0": "field vocab must be one int32",
    "vocab=7 draft_kind=3": "field draft_kind is 3, must be 0 to 2",
    "vocab=7 draft_vocab=5": "field draft_vocab needs a draft tensor: set draft_kind",
    "vocab=7 vocabulary=9": (
        "field 'vocabulary' is unknown; known are vocab, draft_kind, draft_vocab, sampled, mode, threshold, alpha"
    ),
    "vocab=7 mode=2 alpha=1.5": "field alpha is 1.5, must be 0 to 1",
    "vocab=7 alpha=1": "field alpha must be one float32",
    "vocab=7 mode=1": "field mode 1 (recursive) needs a draft tensor: set draft_kind",
    "vocab=7 mode=2 draft_kind=1": "field draft_kind must be 0 in this mode, which does not look at the draft",
}
REFUSED_TYPES = {
    "vocab=7 sampled=0": {
        "int32[2,4,8] int32[2,3] int32[2]": "target is int32, must be float32, float16 or bfloat16",
        "float16[2,4,8] int64[2,3] int32[2]": "tokens is int64, must be int32",
    },
    "vocab=7 sampled=0 draft_kind=1": {
        "float16[2,4,8] int32[2,3] int32[2] float32[2,3,8]": "draft is float32, must be float16, the type of target",
        "float32[2,4,8] int32[2,3] int32[2] bfloat16[2,3,8]": "draft is bfloat16, must be float32, the type of target",
    },
    "vocab=7 sampled=0 draft_kind=2": {
        "float16[2,4,8] int32[2,3] int32[2] float16[2,3,8]": "draft is float16, must be float32",
    },
}
REFUSED_SHAPES = {
    "float16[B,4,8] int32[B,3]": "takes 3 inputs (target, tokens, lengths), not 2",
    "float16[B,32] int32[B,3] int32[B]": "target is [-1, 32], must have 3 dimensions",
    "float16[2,4,8] int32[3,3] int32[2]": "tokens is [3, 3], dimension 0 must be 2 (batch)",
    "float16[2,3,8] int32[2,3] int32[2]": "tokens is [2, 3], dimension 1 must be 2 (tokens)",
    "float16[B,4,6] int32[B,3] int32[B]": "target has 6 columns for 7 ids",
    "float16[B,1,8] int32[B,L] int32[B]": "target is [-1, 1, 8], dimension 1 must be 2 (tokens + 1)",
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(compile_driver(tmp_path_factory.mktemp("tensorrt")))


def made_from(driver: Driver, layer: VerifyLayer) -> Plugin:
    return created(driver, layer.plugin, " ".join(f"{name}={value}" for name, value in layer.fields().items()))


def described(layer: VerifyLayer) -> str:
    """The layer's inputs as in the network, including the constants of the plan."""
    texts = []
    for tensor in layer.inputs():
        texts.append(f"{tensor.dtype}[{','.join(['B', *map(str, tensor.dims)])}]")
        if tensor.name == "draft" and layer.draft_column:
            texts.append(f"int32[{len(layer.draft_column)}]")
    return " ".join(texts)


@pytest.mark.parametrize("name", LAYERS)
def test_layer_tensors_equal_those_of_its_plugin(driver: Driver, name: str) -> None:
    layer = LAYERS[name]
    plugin = made_from(driver, layer)
    inputs, outputs = plugin.call("tensor_names").split("->")
    assert [name for name in inputs.split() if name != "draft_column"] == [tensor.name for tensor in layer.inputs()]
    assert ("draft_column" in inputs) == bool(layer.draft_column)
    assert outputs.split() == [tensor.name for tensor in layer.outputs()]

    shapes = plugin.call("output_shapes", described(layer))
    assert shapes is not None, driver.message
    expected = [f"int32[{','.join(['B', *map(str, tensor.dims)])}]" for tensor in layer.outputs()]
    draft_len = getattr(layer, "draft_len", 0)
    assert shapes.replace(f"{draft_len}+1", str(draft_len + 1)).split() == expected


def test_dynamic_length_of_the_network_is_dynamic_in_the_outputs(driver: Driver) -> None:
    plugin = created(driver, CHAIN, "vocab=7 sampled=0")
    shapes = plugin.call("output_shapes", "float16[B,R,8] int32[B,L] int32[B]")
    assert shapes == "int32[B] int32[B,L+1] int32[B] int32[B]"


@pytest.mark.parametrize("name", LAYERS)
def test_fields_survive_serialization_and_cloning(driver: Driver, name: str) -> None:
    layer = LAYERS[name]
    plugin = made_from(driver, layer)
    kept = " ".join(f"{name}={value}" for name, value in layer.fields().items())
    loaded, clone = plugin.again("from_plan"), plugin.again("cloned")
    del plugin
    assert loaded.call("kept_fields") == kept
    assert clone.call("kept_fields") == kept


def test_omitted_fields_have_the_oracles_defaults(driver: Driver) -> None:
    assert driver.call("known_fields", CHAIN) == "vocab=0 draft_kind=0 draft_vocab=0 sampled=1"
    left = "draft_kind=0 draft_vocab=0 sampled=1 mode=0 threshold=0.09 alpha=0.3"
    assert created(driver, TREE, "vocab=7").call("kept_fields") == f"vocab=7 {left}"
    fields = TreeBatch.__dataclass_fields__
    assert (fields["threshold"].default, fields["alpha"].default) == (0.09, 0.3)


@pytest.mark.parametrize("fields", REFUSED_FIELDS)
def test_invalid_fields_are_rejected_with_the_reason(driver: Driver, fields: str) -> None:
    assert driver.create(TREE, fields) is None
    assert driver.message == f"{TREE}: {REFUSED_FIELDS[fields]}"


@pytest.mark.parametrize("inputs", REFUSED_SHAPES)
def test_contradictory_shapes_are_rejected_with_the_reason(driver: Driver, inputs: str) -> None:
    plugin = created(driver, CHAIN, "vocab=7 sampled=0")
    assert plugin.call("output_shapes", inputs) is None
    assert driver.message == f"{CHAIN}: {REFUSED_SHAPES[inputs]}"


@pytest.mark.parametrize(
    ("fields", "inputs", "message"),
    [(fields, inputs, message) for fields, table in REFUSED_TYPES.items() for inputs, message in table.items()],
)
def test_unsupported_types_are_rejected_with_the_reason(driver: Driver, fields: str, inputs: str, message: str) -> None:
    assert created(driver, CHAIN, fields).call("output_shapes", inputs) is None
    assert driver.message == f"{CHAIN}: {message}"


@pytest.mark.parametrize(
    ("plugin", "fields", "most", "inputs"),
    [
        (CHAIN, "vocab=7 sampled=0", 65_535, "float16[1,{more},8] int32[1,{n}] int32[1]"),
        (TREE, "vocab=7 sampled=0", 65_536, "float16[1,{n},8] int32[1,{n}] int32[1,{n}] int32[1]"),
    ],
)
def test_more_tokens_than_a_kernel_supports_are_rejected(
    driver: Driver, plugin: str, fields: str, most: int, inputs: str
) -> None:
    made = created(driver, plugin, fields)
    assert made.call("configure", inputs.format(n=most, more=most + 1)) == 0
    assert made.call("configure", inputs.format(n=most + 1, more=most + 2)) == 1
    assert driver.message == f"{plugin}: tokens has {most + 1} columns; at most {most} are supported"


@pytest.mark.parametrize(
    ("columns", "message"),
    [("9,6", "draft has 8 columns for 9 ids"), ("8,6", "draft_column has 6 columns for 7 ids"), ("8,7", "")],
)
def test_mismatched_draft_vocabulary_is_rejected(driver: Driver, columns: str, message: str) -> None:
    ids, mapped = columns.split(",")
    plugin = created(driver, CHAIN, f"vocab=7 sampled=0 draft_kind=2 draft_vocab={ids}")
    inputs = f"float16[2,4,8] int32[2,3] int32[2] float32[2,3,8] int32[{mapped}]"
    assert plugin.call("configure", inputs) == (1 if message else 0)
    assert not message or driver.message == f"{CHAIN}: {message}"


def test_supported_types_are_three_floats_for_logits_and_fixed_for_the_rest(driver: Driver) -> None:
    plugin = created(driver, CHAIN, "vocab=7 draft_kind=1")
    outputs = " int32[2] int32[2,4] int32[2] int32[2]"
    takes = {
        0: {"float32", "float16", "bfloat16"},  # target
        1: {"int32"},  # tokens
        2: {"int32"},  # lengths
        3: {"float32", "float16", "bfloat16"},  # draft
        4: {"float32"},  # temperature
        5: {"float32"},  # top_p
        6: {"int32"},  # top_k
        7: {"int32"},  # uniforms
        8: {"int32"},  # accepted
    }
    shapes = ["[2,4,8]", "[2,3]", "[2]", "[2,3,8]", "[2]", "[2]", "[2]", "[2,4]"]
    for position, types in takes.items():
        for dtype in ("float32", "float16", "bfloat16", "int32", "int64"):
            tensors = " ".join(dtype + shape for shape in shapes) + outputs.replace("int32", dtype)
            assert plugin.call("supported", position, tensors, 4, 1) == (dtype in types), (position, dtype)
            assert plugin.call("supported", position, tensors, 4, 0) == 0


def test_draft_logits_must_have_the_targets_type(driver: Driver) -> None:
    plugin = created(driver, CHAIN, "vocab=7 draft_kind=1 sampled=0")
    for target in ("float32", "float16", "bfloat16"):
        for draft in ("float32", "float16", "bfloat16"):
            tensors = f"{target}[2,4,8] int32[2,3] int32[2] {draft}[2,3,8] int32[2] int32[2,4] int32[2] int32[2]"
            assert plugin.call("supported", 3, tensors, 4, 1) == (draft == target)


def test_draft_probabilities_must_be_float32(driver: Driver) -> None:
    plugin = created(driver, CHAIN, "vocab=7 draft_kind=2 sampled=0")
    for dtype in ("float32", "float16"):
        tensors = f"float16[2,4,8] int32[2,3] int32[2] {dtype}[2,3,8] int32[2] int32[2,4] int32[2] int32[2]"
        assert plugin.call("supported", 3, tensors, 4, 1) == (dtype == "float32")


def test_workspace_size_is_computed_from_the_sizes_of_the_call(driver: Driver) -> None:
    """The driver returns 100 per request, 10 per token, plus the number of the logits' type."""
    chain = created(driver, CHAIN, "vocab=7 sampled=0")
    assert chain.call("workspace", "float16[5,4,8] int32[5,3] int32[5]") == 532
    tree = created(driver, TREE, "vocab=7 sampled=0")
    assert tree.call("workspace", "bfloat16[2,6,8] int32[2,6] int32[2,6] int32[2]") == 263


@pytest.mark.parametrize("draft", [None, DraftKind.LOGITS, DraftKind.PROBABILITIES])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_chain_launched_through_the_plugin_equals_the_oracle(
    driver: Driver, draft: DraftKind | None, dtype: str
) -> None:
    check_chain(driver, draft, dtype)


def test_greedy_chain_in_bfloat16_equals_the_oracle(driver: Driver) -> None:
    check_greedy_bfloat16_chain(driver)


@pytest.mark.parametrize("mode", Mode)
def test_tree_launched_through_the_plugin_equals_the_oracle(driver: Driver, mode: Mode) -> None:
    check_tree(driver, mode)


def test_launch_error_is_reported_and_returned(driver: Driver) -> None:
    plugin = created(driver, CHAIN, "vocab=7 sampled=0")
    inputs = "float16[2,4,8] int32[2,3] int32[2]"
    nowhere = np.zeros(4, np.uintp).ctypes
    assert plugin.call("launch", inputs, nowhere, nowhere, None) == -5
    assert driver.message == f"{CHAIN}: {driver.call('trtspec_error', -5)}"
    assert plugin.call("launch", "float16[2,9,8] int32[2,3] int32[2]", nowhere, nowhere, None) == 1
    assert driver.message == f"{CHAIN}: tokens is [2, 3], dimension 1 must be 8 (tokens)"


def test_driver_for_a_gpu_links_with_the_kernels_and_reports_a_missing_gpu(
    kernel_library: Path, tmp_path: Path
) -> None:
    plugin = created(Driver(compile_cuda_driver(tmp_path, kernel_library)), CHAIN, "vocab=7 sampled=0")
    target, tokens, lengths = np.zeros((2, 4, 8), np.float16), np.zeros((2, 3), np.int32), np.zeros(2, np.int32)
    outputs = [np.zeros(shape, np.int32) for shape in ((2,), (2, 4), (2,), (2,))]
    assert plugin.launch([target, tokens, lengths], outputs) == -7
