# SPDX-License-Identifier: Apache-2.0
"""Bindings to the compiled kernels of plugins/ for numpy arrays and torch tensors.

Arguments and results are described in plugins/README.md. `trtspec.kernels.bit_exact` is the equivalent in numpy. All
arrays and results of a call are on one device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import Structure, byref, c_int, c_int32, c_int64, c_uint64, c_void_p, sizeof
from dataclasses import dataclass
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.kernels.abi import ABI_VERSION, Array, ChainArgs, CompactArgs, KernelCall, TreeArgs, data_address
from trtspec.kernels.bit_exact import ChainResult, TreeResult

_KERNELS = ("verify_chain", "verify_block", "verify_tree", "compact_kv")


@dataclass(frozen=True)
class KernelLibrary:
    """A loaded kernel library; calls of missing kernels or on unsupported GPUs raise TrtspecError."""

    path: Path
    handle: ctypes.CDLL

    @property
    def kernels(self) -> list[str]:
        """Return the names of the library's kernels, which are the names of their folders in plugins/."""
        return [name for name in _KERNELS if hasattr(self.handle, f"trtspec_{name}_cpu")]

    def verify_chain(
        self,
        *,
        target: Array,
        tokens: Array,
        draft: Array | None = None,
        draft_kind: int = 1,
        draft_column: Array | None = None,
        lengths: Array | None = None,
        temperature: Array | None = None,
        top_k: Array | None = None,
        top_p: Array | None = None,
        uniforms: Array | None = None,
        threads: int = 0,
        kernel: str = "verify_chain",
    ) -> ChainResult:
        """Verify a batch of chains with the arguments of `bit_exact.ChainBatch`; logits may also be bfloat16.

        `threads` is the number of CPU threads; 0 uses all cores. The kernel "verify_block" accepts or rejects prefixes
        as a whole. Raise TrtspecError for arrays whose shapes, dtypes or devices do not match.
        """
        call = KernelCall(target)
        batch, rows, vocab = call.shape
        draft_len = rows - 1
        args = ChainArgs(sizeof(ChainArgs), batch, draft_len, 0, call.rows("target", target, batch, rows))
        if draft is not None:
            args.draft_kind = draft_kind
            args.draft = call.rows("draft", draft, batch, draft_len)
        args.draft_column = call.pointer("draft_column", draft_column, "int32", vocab)
        args.tokens = call.pointer("tokens", tokens, "int32", batch, draft_len)
        args.lengths = call.pointer("lengths", lengths, "int32", batch)
        args.sampling = call.sampling(temperature, top_k, top_p, uniforms)
        result = ChainResult(call.empty(batch), call.empty(batch, rows), call.empty(batch), call.empty(batch))
        args.accepted, args.output, args.next, args.status = map(data_address, result)
        self._run(kernel, args, call, threads)
        return result

    def verify_tree(
        self,
        *,
        target: Array,
        tokens: Array,
        parents: Array,
        mode: int = 0,
        draft: Array | None = None,
        draft_kind: int = 1,
        draft_column: Array | None = None,
        limits: Array | None = None,
        temperature: Array | None = None,
        top_k: Array | None = None,
        top_p: Array | None = None,
        uniforms: Array | None = None,
        threshold: float = 0.09,
        alpha: float = 0.3,
        threads: int = 0,
    ) -> TreeResult:
        """Verify a batch of trees like `verify_chain`, with the arguments of `bit_exact.TreeBatch`."""
        call = KernelCall(target)
        batch, nodes, vocab = call.shape
        args = TreeArgs(sizeof(TreeArgs), batch, nodes, mode)
        args.threshold, args.alpha = threshold, alpha
        args.target = call.rows("target", target, batch, nodes)
        if draft is not None:
            args.draft_kind = draft_kind
            args.draft = call.rows("draft", draft, batch, nodes)
        args.draft_column = call.pointer("draft_column", draft_column, "int32", vocab)
        args.tokens = call.pointer("tokens", tokens, "int32", batch, nodes)
        args.parents = call.pointer("parents", parents, "int32", batch, nodes)
        args.limits = call.pointer("limits", limits, "int32", batch)
        args.sampling = call.sampling(temperature, top_k, top_p, uniforms)
        result = TreeResult(call.empty(batch, nodes), call.empty(batch), call.empty(batch), call.empty(batch))
        args.path, args.path_len, args.next, args.status = map(data_address, result)
        self._run("verify_tree", args, call, threads)
        return result

    def compact_kv(
        self,
        *,
        cache: Array,
        path: Array,
        path_len: Array,
        start: Array,
        block_table: Array | None = None,
        threads: int = 0,
    ) -> None:
        """Move the KV-cache entries of accepted tree nodes to consecutive slots, in place.

        Args:
            cache: [planes, rows or blocks, slots, values] of any dtype, the last axis contiguous. `planes` are up to
                three axes, such as layers, keys and values, heads.
            path: [batch, nodes] int32, as returned by `verify_tree`.
            path_len: [batch] int32, as returned by `verify_tree`.
            start: [batch] int32, the slot of each root, counted through all blocks of the request.
            block_table: [batch, blocks] int32, the number of each block in the cache, or None for caches with one row
                per request.
        """
        call = KernelCall(path, axes=2)
        batch, nodes = call.shape
        view = call.view("cache", cache)
        if not 3 <= len(view.shape) <= 6 or not view.is_dense(axes=1):
            raise TrtspecError(
                f"cache has shape {view.shape}; it must be [planes, rows, slots, values], the last dense"
            )
        planes, strides = _padded(view.shape[:-3], 1), _padded(view.strides[:-3], 0)
        args = CompactArgs(sizeof(CompactArgs), batch, view.address, (c_int32 * 3)(*planes))
        args.vector_bytes = view.shape[-1] * view.item_bytes
        args.plane_strides = (c_int64 * 3)(*(stride * view.item_bytes for stride in strides))
        args.token_stride = view.strides[-2] * view.item_bytes
        if block_table is None:
            args.row_stride = view.strides[-3] * view.item_bytes
        else:
            args.block_stride = view.strides[-3] * view.item_bytes
            args.block_tokens = view.shape[-2]
            args.table_stride = call.view("block_table", block_table).shape[-1]
            args.block_table = call.pointer("block_table", block_table, "int32", batch, args.table_stride)
        args.path_stride = nodes
        args.path = call.pointer("path", path, "int32", batch, nodes)
        args.path_len = call.pointer("path_len", path_len, "int32", batch)
        args.start = call.pointer("start", start, "int32", batch)
        self._run("compact_kv", args, call, threads)

    def _run(self, kernel: str, args: Structure, call: KernelCall, threads: int) -> None:
        function = self._function(f"trtspec_{kernel}_{call.device}")
        if call.device == "cpu":
            code = function(byref(args), c_int(threads))
        else:
            with call.on_stream() as stream:
                workspace = self._workspace(kernel, args, call)
                code = function(byref(args), c_void_p(stream))
                del workspace  # safe: all work is on one stream, so the memory is reused only after the kernel
        if code:
            raise TrtspecError(f"{kernel}: {self.message(code)}", where=str(self.path))

    def _workspace(self, kernel: str, args: Structure, call: KernelCall) -> Array:
        """Allocate the kernel's workspace and store its address in `args`; the caller keeps it until the launch."""
        if kernel == "compact_kv":
            return None
        workspace = call.empty_bytes(self._function(f"trtspec_{kernel}_workspace")(byref(args)))
        args.workspace, args.workspace_bytes = data_address(workspace), len(workspace)
        return workspace

    def _function(self, name: str) -> Callable[..., int]:
        if not hasattr(self.handle, name):
            hint = "build it with `trtspec plugins build`, with --arch for a GPU"
            raise TrtspecError(f"the library lacks {name}", where=str(self.path), hint=hint)
        function: Callable[..., int] = getattr(self.handle, name)
        return function

    def message(self, code: int) -> str:
        """Return the error message for a kernel's return code."""
        text: bytes = self.handle.trtspec_error(c_int(code))
        return text.decode()


def load_library(path: Path) -> KernelLibrary:
    """Load a library built by `build.build_library`; raise TrtspecError if it cannot be loaded or has another ABI."""
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        hint = "build it again on this machine: trtspec plugins build"
        raise TrtspecError(f"cannot be loaded: {error}", where=str(path), hint=hint) from None
    if not hasattr(handle, "trtspec_abi_version") or handle.trtspec_abi_version() != ABI_VERSION:
        hint = "build it again: trtspec plugins build"
        raise TrtspecError(f"does not implement interface version {ABI_VERSION}", where=str(path), hint=hint)
    handle.trtspec_error.restype = ctypes.c_char_p
    for kernel in _KERNELS:
        if hasattr(handle, f"trtspec_{kernel}_workspace"):
            handle[f"trtspec_{kernel}_workspace"].restype = c_uint64
    return KernelLibrary(path, handle)


def _padded(numbers: Sequence[int], filling: int) -> list[int]:
    """Return three numbers: `numbers`, preceded by copies of `filling`."""
    return [*[filling] * (3 - len(numbers)), *numbers]
