# SPDX-License-Identifier: Apache-2.0
"""The torch operators return the library's results, in eager code and in graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.core.errors import TrtspecError
from trtspec.kernels import ops
from trtspec.kernels.bindings import KernelLibrary, load_library

BATCH, DRAFT_LEN, VOCAB = 3, 4, 50


@pytest.fixture
def library(kernel_library: Path, monkeypatch: pytest.MonkeyPatch) -> KernelLibrary:
    """The library that the operators call."""
    monkeypatch.setattr(ops, "_library", None)
    ops.load_ops(kernel_library)
    return load_library(kernel_library)


def chains() -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Return the arguments of verify_chain."""
    made = torch.Generator().manual_seed(1)
    target = torch.randn(BATCH, DRAFT_LEN + 1, VOCAB, generator=made)
    tokens = torch.randint(0, VOCAB, (BATCH, DRAFT_LEN), generator=made, dtype=torch.int32)
    uniforms = torch.randint(0, 1 << 32, (BATCH, DRAFT_LEN + 1), generator=made).to(torch.uint32)
    draft = torch.softmax(target[:, :-1] + torch.randn(BATCH, DRAFT_LEN, VOCAB, generator=made), -1)
    top_p = torch.tensor([1.0, 0.9, 0.5])
    return (target, tokens), {"draft": draft, "draft_kind": 2, "uniforms": uniforms, "top_p": top_p, "threads": 1}


def trees() -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Return the arguments of verify_tree."""
    (target, tokens), how = chains()
    parents = torch.tensor([[-1, 0, 0, 1, 2]] * BATCH, dtype=torch.int32)
    tokens = torch.cat([tokens[:, :1], tokens], 1)
    return (target, tokens, parents), {
        "uniforms": how["uniforms"],
        "limits": torch.tensor([4, 2, 1], dtype=torch.int32),
    }


CALLS = {"verify_chain": chains, "verify_tree": trees}
NAMES = {"verify_chain": ("target", "tokens"), "verify_tree": ("target", "tokens", "parents")}


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_says_what_the_library_says(library: KernelLibrary, name: str) -> None:
    arrays, how = CALLS[name]()
    found = getattr(torch.ops.trtspec, name)(*arrays, **how)
    wanted = getattr(library, name)(**dict(zip(NAMES[name], arrays, strict=True)), **how)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)
    assert found[0].any()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", CALLS)
def test_torch_can_trace_an_operator(name: str) -> None:
    """The operator's schema and declared output shapes are correct."""
    arrays, how = CALLS[name]()
    torch.library.opcheck(getattr(torch.ops.trtspec, name).default, arrays, how)


@pytest.mark.usefixtures("library")
def test_a_graph_goes_through_an_operator_in_one_piece() -> None:
    arrays, how = chains()

    def step(target: Tensor, tokens: Tensor) -> Tensor:
        return torch.ops.trtspec.verify_chain(target * 2.0, tokens, **how)[2] + 1

    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(*arrays), step(*arrays))


def test_an_operator_without_a_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_library", None)
    arrays, how = chains()
    with pytest.raises(TrtspecError, match=r"torch.ops.trtspec lacks a library\nhint: call .*load_ops\(path\)"):
        torch.ops.trtspec.verify_chain(*arrays, **how)
