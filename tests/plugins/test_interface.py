# SPDX-License-Identifier: Apache-2.0
"""Wrong calls: C functions return a code and write nothing; Python functions raise a TrtspecError with the reason."""

from __future__ import annotations

import ctypes.util
import re
from collections.abc import Callable
from ctypes import byref, sizeof
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.plugins.batches import Shape, random_chains, random_trees
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import plugins_dir
from trtspec.kernels import abi
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.bit_exact import Mode
from trtspec.kernels.host_kernels import CensusStruct, QuantizeArgs

OK, BAD_STRUCT_SIZE, BAD_SIZE, BAD_DTYPE, BAD_KIND, BAD_POINTER = 0, -1, -2, -3, -4, -5
UNTOUCHED = -77


class Memory:
    """A chain and a tree of one request, with a vocabulary of 8, as C structs."""

    def __init__(self) -> None:
        self.logits = np.zeros((1, 3, 8), dtype=np.float32)
        self.ints = np.zeros((1, 3), dtype=np.int32)
        self.uniforms = np.zeros((1, 3), dtype=np.uint32)
        self.outputs = np.full((4, 3), UNTOUCHED, dtype=np.int32)

    def rows(self) -> abi.RowsStruct:
        return abi.RowsStruct(self.logits.ctypes.data, 24, 8, 1, 8)

    def chain(self) -> abi.ChainArgs:
        args = abi.ChainArgs(sizeof(abi.ChainArgs), 1, 2, 1, self.rows(), self.rows())
        args.tokens = self.ints.ctypes.data
        args.sampling.uniforms = self.uniforms.ctypes.data
        args.accepted, args.output, args.next, args.status = self._outputs()
        return args

    def tree(self) -> abi.TreeArgs:
        args = abi.TreeArgs(sizeof(abi.TreeArgs), 1, 3, 1, 1, 0.1, 0.3, 0, self.rows(), self.rows())
        args.tokens = args.parents = self.ints.ctypes.data
        args.sampling.uniforms = self.uniforms.ctypes.data
        args.path_len, args.path, args.next, args.status = self._outputs()
        return args

    def _outputs(self) -> list[int]:
        return [row.ctypes.data for row in self.outputs]


def change(path: str, value: object) -> Callable[[Any], None]:
    """Return a function that sets a field of a struct, or of a nested one."""

    def apply(args: Any) -> None:
        *outer, last = path.split(".")
        for name in outer:
            args = getattr(args, name)
        setattr(args, last, value)

    return apply


BOTH = [
    ("struct_size", 8, BAD_STRUCT_SIZE),
    ("batch", -1, BAD_SIZE),
    ("target.entries", 0, BAD_SIZE),
    ("target.entries", 1 << 19, BAD_SIZE),
    ("target.row_stride", -8, BAD_SIZE),
    ("target.dtype", 0, BAD_DTYPE),
    ("target.dtype", 4, BAD_DTYPE),
    ("draft.dtype", 2, BAD_DTYPE),
    ("draft_kind", 3, BAD_KIND),
    ("target.data", None, BAD_POINTER),
    ("target.data", 4098, BAD_POINTER),
    ("draft.data", None, BAD_POINTER),
    ("tokens", None, BAD_POINTER),
    ("next", None, BAD_POINTER),
    ("status", None, BAD_POINTER),
]


@pytest.mark.parametrize(("field", "value", "code"), [*BOTH, ("draft_len", -1, BAD_SIZE), ("accepted", None, -5)])
def test_invalid_chain_arguments_return_a_code_and_write_nothing(
    cpu_library: KernelLibrary, field: str, value: object, code: int
) -> None:
    memory = Memory()
    args = memory.chain()
    assert cpu_library.handle.trtspec_verify_chain_cpu(byref(args), 1) == OK
    assert UNTOUCHED not in memory.outputs[1]
    memory.outputs[:] = UNTOUCHED
    change(field, value)(args)
    assert cpu_library.handle.trtspec_verify_chain_cpu(byref(args), 1) == code
    assert (memory.outputs == UNTOUCHED).all()


TREES = [("nodes", 0, BAD_SIZE), ("mode", 3, BAD_KIND), ("draft_kind", 0, BAD_KIND), ("parents", None, BAD_POINTER)]


@pytest.mark.parametrize(("field", "value", "code"), [*BOTH, *TREES])
def test_invalid_tree_arguments_return_a_code_and_write_nothing(
    cpu_library: KernelLibrary, field: str, value: object, code: int
) -> None:
    memory = Memory()
    args = memory.tree()
    assert cpu_library.handle.trtspec_verify_tree_cpu(byref(args), 1) == OK
    assert UNTOUCHED not in memory.outputs[1]
    memory.outputs[:] = UNTOUCHED
    change(field, value)(args)
    assert cpu_library.handle.trtspec_verify_tree_cpu(byref(args), 1) == code
    assert (memory.outputs == UNTOUCHED).all()


def test_null_struct_is_rejected(cpu_library: KernelLibrary) -> None:
    for kernel in ("verify_chain", "verify_block", "verify_tree", "compact_kv"):
        assert cpu_library.handle[f"trtspec_{kernel}_cpu"](None, 1) == BAD_POINTER


def test_empty_batch_is_accepted(cpu_library: KernelLibrary) -> None:
    args = Memory().chain()
    args.batch = 0
    assert cpu_library.handle.trtspec_verify_chain_cpu(byref(args), 1) == OK


def test_every_code_has_a_distinct_message(cpu_library: KernelLibrary) -> None:
    header = (plugins_dir() / "include/trtspec/verify.h").read_text()
    codes = [int(code) for code in re.findall(r"^    TRTSPEC_\w+ = (-\d+)", header, re.M)]
    assert codes == list(range(-1, -10, -1))
    words = [cpu_library.message(code) for code in (0, *codes, -99)]
    assert len(set(words)) == len(words)
    assert words[-1] == "unknown code"


def test_structs_have_the_sizes_and_offsets_of_the_header(cpu_library: KernelLibrary, tmp_path: Path) -> None:
    """A C compiler prints the size of each struct and the offset of its last field."""
    import subprocess

    lasts = {
        "rows": ("entries", abi.RowsStruct),
        "sampling": ("uniforms", abi.SamplingStruct),
        "chain_args": ("workspace_bytes", abi.ChainArgs),
        "tree_args": ("workspace_bytes", abi.TreeArgs),
        "compact_args": ("start", abi.CompactArgs),
        "census": ("reserved", CensusStruct),
        "quantize_args": ("census", QuantizeArgs),
    }
    prints = "".join(
        f'printf("%zu %zu\\n", sizeof(trtspec_{name}), offsetof(trtspec_{name}, {last}));'
        for name, (last, _) in lasts.items()
    )
    source = f'#include <stddef.h>\n#include <stdio.h>\n#include "trtspec/quantize.h"\nint main(void) {{ {prints} }}\n'
    (tmp_path / "sizes.c").write_text(source)
    command = ["gcc", "-std=c11", "-Wall", "-Werror", f"-I{plugins_dir() / 'include'}", "sizes.c", "-o", "sizes"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    printed = subprocess.run(
        [tmp_path / "sizes"], capture_output=True, text=True, check=True, timeout=300
    ).stdout.splitlines()
    ours = [f"{sizeof(struct)} {getattr(struct, last).offset}" for last, struct in lasts.values()]
    assert printed == ours


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": np.zeros((7, 3), dtype=np.int64)}, "tokens is int64 [7, 3]; it must be int32 [7, 3]"),
        ({"tokens": np.zeros((7, 2), dtype=np.int32)}, "tokens is int32 [7, 2]; it must be int32 [7, 3]"),
        ({"tokens": np.zeros((3, 7), dtype=np.int32).T}, "tokens is not dense"),
        ({"tokens": [[0] * 3] * 7}, "tokens is a list, not a numpy array or a tensor"),
        ({"target": np.zeros((7, 4, 40))}, "target is float64; supported: float32, float16, bfloat16"),
        ({"target": np.zeros((7, 4, 80), dtype=np.float32)[..., ::2]}, "target is not dense along its last axis"),
        (
            {"target": np.zeros((7, 4), dtype=np.float32)},
            "the first array is of shape (7, 4); it must be a numpy array",
        ),
        ({"draft": np.zeros((7, 4, 40), dtype=np.float32)}, "draft has shape (7, 4, 40); it must be [7, 3, entries]"),
        ({"draft": np.zeros((7, 3, 40), dtype=np.float16)}, "a dtype is unknown, or not the one that the draft has to"),
        ({"uniforms": np.zeros((7, 4), dtype=np.float32)}, "uniforms is float32 [7, 4]; it must be uint32 [7, 4]"),
        ({"draft_kind": 5}, "the kind of draft or the mode is unknown"),
    ],
)
def test_invalid_argument_is_rejected_with_the_reason(
    cpu_library: KernelLibrary, changes: dict[str, Any], message: str
) -> None:
    chains = random_chains(Shape(40, draft="logits"))
    with pytest.raises(TrtspecError, match=re.escape(message)):
        cpu_library.verify_chain(**(vars(chains) | changes))


def test_sampled_mode_without_a_draft_is_rejected(cpu_library: KernelLibrary) -> None:
    trees = random_trees(Shape(40), Mode.DETERMINISTIC)
    with pytest.raises(
        TrtspecError, match="verify_tree: the kind of draft or the mode is unknown, or the mode needs a"
    ):
        cpu_library.verify_tree(**(vars(trees) | {"mode": Mode.SAMPLED}))


def test_cache_with_too_few_dimensions_is_rejected(cpu_library: KernelLibrary) -> None:
    ints = np.zeros((2, 3), dtype=np.int32)
    with pytest.raises(TrtspecError, match=r"cache has shape \(4, 4\); it must be \[planes, rows, slots, values\]"):
        cpu_library.compact_kv(cache=np.zeros((4, 4)), path=ints, path_len=ints[:, 0].copy(), start=ints[:, 0].copy())


def test_library_lists_its_kernels(cpu_library: KernelLibrary) -> None:
    assert cpu_library.kernels == ["verify_chain", "verify_block", "verify_tree", "compact_kv"]


def test_missing_or_foreign_library_is_rejected(tmp_path: Path, cpu_library: KernelLibrary) -> None:
    with pytest.raises(TrtspecError, match="cannot be loaded"):
        load_library(tmp_path / "nosuch.so")
    with pytest.raises(TrtspecError, match="does not implement interface version 1"):
        load_library(Path(ctypes.util.find_library("c") or "libc.so.6"))
