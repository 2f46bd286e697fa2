# SPDX-License-Identifier: Apache-2.0
"""The compiled verifiers as torch operators: `torch.ops.trtspec.verify_chain` and `verify_tree`.

They are meant for graphs: torch.compile and torch.export support them without a graph break, and CUDA graphs replay
them. They take the arguments of `bindings.KernelLibrary`, which is faster outside graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.core.errors import TrtspecError
from trtspec.kernels.bindings import KernelLibrary, load_library

_HOW = (
    "Tensor? draft=None, int draft_kind=1, Tensor? draft_column=None, Tensor? temperature=None, Tensor? top_k=None, "
    "Tensor? top_p=None, Tensor? uniforms=None, int threads=0"
)
_CHAIN = (
    f"(Tensor target, Tensor tokens, *, Tensor? lengths=None, {_HOW}) "
    "-> (Tensor accepted, Tensor output, Tensor next, Tensor status)"
)
_TREE = (
    "(Tensor target, Tensor tokens, Tensor parents, *, int mode=0, Tensor? limits=None, float threshold=0.09, "
    f"float alpha=0.3, {_HOW}) -> (Tensor path, Tensor path_len, Tensor next, Tensor status)"
)
_library: KernelLibrary | None = None


def load_ops(path: Path) -> None:
    """Set the library that the operators call; raise TrtspecError if it cannot be loaded."""
    global _library  # noqa: PLW0603 - operators are global to the process
    _library = load_library(path)


def _get_library() -> KernelLibrary:
    if _library is None:
        raise TrtspecError("torch.ops.trtspec lacks a library", hint="call trtspec.kernels.ops.load_ops(path) first")
    return _library


def _verify_chain(target: Tensor, tokens: Tensor, **how: Any) -> tuple[Tensor, ...]:
    return tuple(_get_library().verify_chain(target=target, tokens=tokens, **how))


def _verify_tree(target: Tensor, tokens: Tensor, parents: Tensor, **how: Any) -> tuple[Tensor, ...]:
    return tuple(_get_library().verify_tree(target=target, tokens=tokens, parents=parents, **how))


def _shapes_of_chain(target: Tensor, tokens: Tensor, **how: Any) -> tuple[Tensor, ...]:
    batch, rows, _ = target.shape
    return tuple(tokens.new_empty(shape, dtype=torch.int32) for shape in ((batch,), (batch, rows), (batch,), (batch,)))


def _shapes_of_tree(target: Tensor, tokens: Tensor, parents: Tensor, **how: Any) -> tuple[Tensor, ...]:
    batch, nodes, _ = target.shape
    return tuple(tokens.new_empty(shape, dtype=torch.int32) for shape in ((batch, nodes), (batch,), (batch,), (batch,)))


def _define(name: str, schema: str, verify: Callable[..., object], shapes: Callable[..., object]) -> None:
    torch.library.define(name, schema)
    torch.library.impl(name, ("cpu", "cuda"), verify)
    torch.library.register_fake(name, shapes)


_define("trtspec::verify_chain", _CHAIN, _verify_chain, _shapes_of_chain)
_define("trtspec::verify_tree", _TREE, _verify_tree, _shapes_of_tree)
