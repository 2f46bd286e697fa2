# SPDX-License-Identifier: Apache-2.0
"""Random files: they are read correctly or rejected with a CheckpointError, without any other outcome.

Runs for seconds; TRTSPEC_FUZZ_EXAMPLES=100000 makes it search longer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize

from tests.checkpoints.corpus import (
    CONFIG,
    GOOD_CONFIG,
    INDEX,
    SHAPES,
    SHARD_OF,
    WEIGHTS,
    make_good,
    make_sharded,
    pack,
)
from trtspec.checkpoints.rules import Family
from trtspec.checkpoints.safetensors import ITEM_BYTES, TensorInfo, read_header
from trtspec.core.errors import CheckpointError
from trtspec.core.registry import discover
from trtspec.planning.inspection import inspect_path

pytestmark = pytest.mark.slow

FUZZ = settings(
    max_examples=int(os.environ.get("TRTSPEC_FUZZ_EXAMPLES", "400")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Files that the safetensors library accepts and trtspec rejects: names that would escape or garble their destination,
# content that other readers interpret differently, and impossible sizes.
STRICTER = re.compile(
    "tensor name .* has a path separator or unprintable character, or a wrong length"
    "|tensor .* must have exactly the keys dtype, shape and data_offsets"
    "|tensor .* has the unknown dtype"
    "|tensor .* has more than 8 dimensions, or is too large"
    "|tensor .* has an invalid shape or offset"
    "|not a safetensors file: invalid header: not valid JSON: (duplicate key|it has a number of|the number .* is too)"
    "|not a safetensors file: invalid header: its __metadata__ does not map text to text"
)
FAMILIES: dict[str, Family] = discover("trtspec.families", "FAMILY")

T = TypeVar("T")
Edits = list[tuple[str, int, int]]

# Bytes that often turn one valid document into another valid or almost valid one.
BYTES = st.sampled_from(list(b'"{}[],:\\ 0129-+.eEuntfa_/\x00\x1f\x7f\xc3\xa9\xff'))
EDIT = st.tuples(st.sampled_from(["set", "insert", "delete"]), st.integers(0, 1 << 16), BYTES)
EDITS = st.just([]) | st.lists(EDIT, max_size=3)  # half of the documents stay valid JSON
SIZES = st.integers(0, 3) | st.sampled_from([-1, 1 << 31, 1 << 32, 1 << 62, 1 << 63, 1 << 64, 10**50])
ODD = st.none() | st.booleans() | SIZES | st.floats() | st.text(max_size=4)
JSON = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


NAMES = st.sampled_from(["a", "b", "model.c", "é"]) | st.sampled_from(
    ["x/y", "..", "", "\u202e", "\ud800", "__metadata__"]
)
DTYPES = [*ITEM_BYTES, *("F32", "BF16") * 10, "F4", "C64"]


def edited(raw: bytes, edits: Edits) -> bytes:
    """Return `raw` with bytes set, inserted or deleted."""
    changed = bytearray(raw)
    for what, place, byte in edits:
        at = place % (len(changed) + 1)
        changed[at : at + (what != "insert")] = b"" if what == "delete" else bytes([byte])
    return bytes(changed)


def pretend(value: Any) -> bytes:
    """Return JSON as Python writes it, with NaN and lone surrogates."""
    return json.dumps(value).encode()


@st.composite
def headers(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Return a header of a few consecutive tensors and their total bytes, often with a change."""
    header: dict[str, Any] = {}
    position = 0
    for name in draw(st.lists(NAMES, max_size=4)):
        dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.lists(st.integers(0, 3), max_size=3))
        end = position + prod(shape) * ITEM_BYTES.get(dtype, 8)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    if header and draw(st.booleans()):
        entry = header[draw(st.sampled_from(sorted(header)))]
        entry[draw(st.sampled_from(["dtype", "shape", "data_offsets", "other"]))] = draw(
            JSON | st.lists(SIZES, max_size=10)
        )
    if draw(st.booleans()):
        text = st.text(max_size=3)
        header["__metadata__"] = draw(st.dictionaries(text, text, max_size=2) | JSON)
    return header, position


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Return the bytes of a safetensors file, often slightly invalid."""
    header, nbytes = draw(headers())
    raw = edited(pretend(header), draw(EDITS)) + draw(st.sampled_from([b"", b"   ", b"\n"]))
    whole = pack(raw, max(0, nbytes + draw(st.sampled_from([0, 0, 0, 0, 0, -1, 1, 8]))))
    return edited(whole, draw(EDITS)) if draw(st.integers(0, 9)) == 9 else whole


def attempt(action: Callable[[], T]) -> tuple[T | None, CheckpointError | None]:
    """Return (result, CheckpointError) of an action; any other error fails the test."""
    try:
        return action(), None
    except CheckpointError as error:
        return None, error


def check_sound(tensors: list[TensorInfo], size: int) -> None:
    """Compare tensors with their file: sizes match shapes, and tensors are consecutive up to the end."""
    ends = [tensor.offset + tensor.nbytes for tensor in tensors]
    assert all(tensor.nbytes == prod(tensor.shape) * ITEM_BYTES[tensor.dtype] for tensor in tensors)
    assert all(end == tensor.offset for end, tensor in zip(ends, tensors[1:], strict=False))
    assert all(8 <= tensor.offset <= end <= size for tensor, end in zip(tensors, ends, strict=True))


@FUZZ
@given(raw=files())
def test_random_header_is_read_as_safetensors_does_or_rejected(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS
    path.write_bytes(raw)
    ours, refused = attempt(lambda: read_header(path))
    try:
        theirs = dict(deserialize(raw))
    except SafetensorError:
        theirs = None
    event(f"{'read' if refused is None else 'refused'}, the library {'refuses' if theirs is None else 'reads'}")
    if ours is None:
        assert refused.where == str(path)
        assert theirs is None or STRICTER.match(refused.message), refused
        return
    check_sound(list(ours.values()), len(raw))
    assert theirs is not None
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor.dtype, list(tensor.shape)) == (theirs[name]["dtype"], theirs[name]["shape"])
        assert raw[tensor.offset : tensor.offset + tensor.nbytes] == theirs[name]["data"]


@FUZZ
@given(raw=st.binary(max_size=200))
def test_random_bytes_are_read_as_empty_or_rejected(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS
    path.write_bytes(raw)
    ours, refused = attempt(lambda: read_header(path))
    assert ours == {} or refused.where == str(path)  # the shortest header of a tensor has more than 200 bytes


ARCHITECTURES = sorted(name for family in FAMILIES.values() for name in family.architectures)
KEYS = sorted(
    {*GOOD_CONFIG, "head_dim", "attention_bias", "mlp_bias", "tie_word_embeddings", "rope_scaling", "rope_parameters"}
    | {"torch_dtype", "sliding_window", "use_sliding_window", "num_local_experts", "num_experts_per_tok", "layer_types"}
)
ROPE = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn"]), "factor": st.floats(0.1, 99)},
    optional=dict.fromkeys(
        [
            "low_freq_factor",
            "high_freq_factor",
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
        ],
        st.floats() | ODD,
    )
    | {"original_max_position_embeddings": SIZES, "rope_theta": ODD},
)
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
CHANGES = st.dictionaries(st.sampled_from(KEYS), JSON | ROPE | st.integers(1, 9), max_size=2)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return make_good(tmp_path / "model")


@pytest.fixture
def sharded(good: Path) -> Path:
    return make_sharded(good)


def inspect_or_refuse(root: Path) -> None:
    """Inspect a directory; the result must be correct, or a CheckpointError with a location."""
    document, refused = attempt(lambda: inspect_path(root))
    event("read" if refused is None else "refused")
    if refused is not None:
        assert refused.where is not None
        assert refused.where.startswith(str(root))
    else:
        assert document["bytes"] == sum(prod(shape) * 2 for shape in SHAPES.values())


@FUZZ
@given(architecture=st.sampled_from(ARCHITECTURES), changes=CHANGES, edits=EDITS)
def test_random_config_is_read_or_rejected(
    architecture: str, changes: dict[str, Any], edits: Edits, good: Path
) -> None:
    config = GOOD_CONFIG | EXPERTS | {"architectures": [architecture]} | changes
    (good / CONFIG).write_bytes(edited(pretend(config), edits))
    inspect_or_refuse(good)


SHARDS = st.sampled_from(["a.safetensors", "b.safetensors", "c.safetensors", "../a.safetensors"]) | ODD
ENTRIES = st.just({}) | st.dictionaries(st.sampled_from(sorted(SHAPES)) | st.text(max_size=3), SHARDS, max_size=2)


@FUZZ
@given(changes=ENTRIES, edits=EDITS)
def test_random_index_is_read_or_rejected(changes: dict[str, Any], edits: Edits, sharded: Path) -> None:
    (sharded / INDEX).write_bytes(edited(pretend({"weight_map": SHARD_OF | changes}), edits))
    inspect_or_refuse(sharded)
