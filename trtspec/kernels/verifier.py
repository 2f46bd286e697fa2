# SPDX-License-Identifier: Apache-2.0
"""Draft verifiers of an engine: torch, or a compiled library if one was built.

Both return the same results, except if a uniform is within float32 rounding error of a decision boundary. The verifier
is chosen once, when an engine is loaded. This module compiles nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trtspec.core.errors import TrtspecError
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.bit_exact import EMPTY, NONFINITE, DraftKind, Mode
from trtspec.kernels.build import find_libraries
from trtspec.kernels.chain import VerifyResult, verify_block, verify_chain
from trtspec.kernels.sampling import SamplingParams
from trtspec.kernels.tree import Tree, TypicalAcceptance, verify_tree
from trtspec.store.artifact_paths import PLUGINS

log = logging.getLogger(__name__)

KERNELS = ("verify_chain", "verify_tree")


class DraftVerifier:
    """Verification of chains, blocks and trees; this base class uses torch operations."""

    chain = staticmethod(verify_chain)
    block = staticmethod(verify_block)
    tree = staticmethod(verify_tree)


@dataclass(frozen=True)
class CompiledVerifier(DraftVerifier):
    """Verification by a compiled library, for logits of float32, float16 and bfloat16.

    Its methods raise TrtspecError for target logits that are NaN or infinite, because no token can be sampled from
    them.
    """

    library: KernelLibrary

    def chain(
        self,
        logits: Tensor,
        tokens: Tensor,
        lens: Sequence[int],
        params: SamplingParams | None = None,
        draft_probs: Tensor | None = None,
        uniforms: Tensor | None = None,
        kernel: str = "verify_chain",
    ) -> list[VerifyResult]:
        """Verify chains with one library call and one copy to the host; arguments as in `chain.verify_chain`."""
        found = self.library.verify_chain(
            target=logits,
            tokens=tokens.to(torch.int32),
            lengths=torch.tensor(lens, dtype=torch.int32, device=logits.device),
            draft=draft_probs,
            draft_kind=DraftKind.PROBABILITIES,
            threads=1,
            kernel=kernel,
            **_sampling(params, uniforms),
        )
        rows = torch.stack([found.status, found.accepted, found.next], 1).tolist()
        _check_rows([status for status, *_ in rows])
        return [VerifyResult(list(range(1, count + 1)), token) for _, count, token in rows]

    def block(self, *arguments: Any, **named: Any) -> list[VerifyResult]:
        """Verify chains as a whole; the arguments are the same as for `chain`."""
        return self.chain(*arguments, **named | {"kernel": "verify_block"})

    def tree(
        self,
        logits: Tensor,
        tokens: Tensor,
        tree: Tree,
        limits: Sequence[int],
        params: SamplingParams | None = None,
        draft_probs: Tensor | None = None,
        uniforms: Tensor | None = None,
        typical: TypicalAcceptance | None = None,
    ) -> list[VerifyResult]:
        """Verify trees with one library call and one copy to the host; arguments as in `tree.verify_tree`."""
        mode = Mode.DETERMINISTIC if draft_probs is None else Mode.SAMPLED
        options = {}
        if typical is not None:
            mode, options = Mode.TYPICAL, {"threshold": typical.threshold, "alpha": typical.alpha}
        parents = torch.from_numpy(tree.parents.astype(np.int32)).to(tokens.device)
        found = self.library.verify_tree(
            target=logits,
            tokens=tokens.to(torch.int32),
            parents=parents.expand(tokens.shape).contiguous(),
            limits=torch.tensor(limits, dtype=torch.int32, device=logits.device),
            mode=mode,
            draft=draft_probs if mode == Mode.SAMPLED else None,
            draft_kind=DraftKind.PROBABILITIES,
            threads=1,
            **options,
            **_sampling(params, uniforms),
        )
        columns = torch.stack([found.status, found.path_len, found.next], 1)
        rows = torch.cat([columns, found.path], 1).tolist()
        _check_rows([status for status, *_ in rows])
        return [VerifyResult(path[:length], token) for _, length, token, *path in rows]


def candidate_libraries(artifact: Path) -> tuple[Path, ...]:
    """Return the paths of libraries to try for an artifact: those in it, then those compiled on this machine."""
    return (*sorted((artifact / PLUGINS).glob("*.so")), *find_libraries(KERNELS))


def choose_verifier(
    candidates: Sequence[Path], device: torch.device, dtype: torch.dtype, *, block: bool = False
) -> DraftVerifier:
    """Return a verifier with the first library that can verify logits of `dtype` on `device`, or else with torch.

    With `block`, the library must also have the kernel for block verification.
    """
    if dtype == torch.float64:
        log.info("verifying drafts with torch: compiled libraries do not support float64")
        return DraftVerifier()
    for path in candidates:
        try:
            verifier = CompiledVerifier(load_library(path))
            _prove(verifier, device, dtype, block)
        except TrtspecError as error:
            log.warning("not verifying drafts with a compiled library: %s", error)
        else:
            log.info("verifying drafts with %s", path)
            return verifier
    log.info("verifying drafts with torch")
    return DraftVerifier()


def _prove(verifier: CompiledVerifier, device: torch.device, dtype: torch.dtype, block: bool) -> None:
    """Verify an empty draft, which raises TrtspecError if the library lacks a kernel or code for this machine."""
    logits = torch.tensor([[[0.0, 1.0]]], device=device, dtype=dtype)
    tokens = torch.zeros((1, 1), dtype=torch.int32, device=device)
    verifier.chain(logits, tokens[:, :0], [0])
    if block:
        verifier.block(logits, tokens[:, :0], [0])
    verifier.tree(logits, tokens, Tree(np.array([[-1]])), [0])


def _sampling(params: SamplingParams | None, uniforms: Tensor | None) -> dict[str, Any]:
    """Return the sampling arguments of a library call; empty if all rows are greedy."""
    if params is None or uniforms is None:
        return {}
    how = {"temperature": params.temperature.contiguous(), "uniforms": (uniforms * 2.0**32).to(torch.uint32)}
    if params.truncates:
        how |= {"top_k": params.top_k.to(torch.int32), "top_p": params.top_p.contiguous()}
    return how


def _check_rows(statuses: Sequence[int]) -> None:
    """Raise TrtspecError if a row's target logits are invalid; invalid draft rows only lower acceptance."""
    for row, status in enumerate(statuses):
        if status & (NONFINITE | EMPTY):
            raise TrtspecError(f"the target's logits of row {row} are NaN or infinite")
