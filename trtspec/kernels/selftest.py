# SPDX-License-Identifier: Apache-2.0
"""Self-test of a compiled library on this machine: random batches must give the same ids as `bit_exact`.

The test takes a few seconds. The acceptance rules themselves are tested in tests/kernels/exactness.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.kernels import bit_exact
from trtspec.kernels.abi import Array
from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.bit_exact import ChainBatch, ChainResult, DraftKind, Mode, TreeBatch, TreeResult

REQUESTS, ROWS = 4, 6
VOCABS = (7, 1000, 32000)
DTYPES = (np.float32, np.float16)
SEED = 20230601
CHAIN_RULES = {"verify_chain": bit_exact.verify_chain, "verify_block": bit_exact.verify_block}

Arrays = dict[str, Any]


@dataclass(frozen=True)
class SelfTestCheck:
    """The result of testing one kernel with one kind of batch; `detail` lists the differences."""

    name: str
    ok: bool
    detail: str


def run_self_test(library: KernelLibrary, device: str = "cpu") -> Iterator[SelfTestCheck]:
    """Yield a check for each kernel of the library and each kind of batch.

    `device` is "cpu" or a GPU's name in torch. Raise TrtspecError if the GPU is not available.
    """
    to_device = _device_mover(device)
    for dtype, vocab in product(DTYPES, VOCABS):
        batch = f"{np.dtype(dtype)}, vocabulary of {vocab}"
        for kernel, rule in CHAIN_RULES.items():
            for kind in (None, *DraftKind) if kernel in library.kernels else ():
                chains = _chains(vocab, dtype, kind)
                got = library.verify_chain(**to_device(vars(chains)), kernel=kernel)
                drafted = "deterministic" if kind is None else kind.name.lower()
                yield _compare(f"{kernel}, {drafted}, {batch}", got, rule(chains))
        for mode in Mode if "verify_tree" in library.kernels else ():
            trees = _trees(vocab, dtype, mode)
            tree = library.verify_tree(**to_device(vars(trees)))
            yield _compare(f"verify_tree, {mode.name.lower()}, {batch}", tree, bit_exact.verify_tree(trees))
    if "compact_kv" in library.kernels:
        yield _compact(library, to_device)


def _compact(library: KernelLibrary, to_device: Callable[[Arrays], Arrays]) -> SelfTestCheck:
    rng = np.random.default_rng(SEED)
    cache = rng.normal(size=(1, REQUESTS, 3 * ROWS, 16)).astype(np.float32)
    path = np.array([[1, 3, 5, -1, -1, -1], [2, 4, -1, -1, -1, -1], [5, -1, -1, -1, -1, -1], [-1] * 6], dtype=np.int32)
    start = np.arange(REQUESTS, dtype=np.int32)
    expected = bit_exact.compact_kv(cache[0], bit_exact.kv_moves(path, start))
    arrays = to_device({"cache": cache, "path": path, "path_len": (path >= 0).sum(1).astype(np.int32), "start": start})
    library.compact_kv(**arrays)
    same = np.array_equal(_to_numpy(arrays["cache"])[0], expected)
    return SelfTestCheck("compact_kv", same, "" if same else "the cache differs")


def _compare(name: str, got: ChainResult | TreeResult, expected: ChainResult | TreeResult) -> SelfTestCheck:
    differing = [
        f"{field}: {ours.tolist()} instead of {theirs.tolist()}"
        for field, theirs in expected._asdict().items()
        if not np.array_equal(ours := _to_numpy(getattr(got, field)), theirs)
    ]
    return SelfTestCheck(name, not differing, "; ".join(differing))


def _chains(vocab: int, dtype: type, kind: DraftKind | None) -> ChainBatch:
    rng = np.random.default_rng([SEED, vocab, kind or 0])
    target = _logits(rng, vocab, dtype)
    lengths = rng.integers(0, ROWS, REQUESTS, dtype=np.int32)
    common = _common(rng, target, target[:, :-1], kind)
    return ChainBatch(target=target, tokens=_tokens(rng, target[:, :-1]), lengths=lengths, **common)


def _trees(vocab: int, dtype: type, mode: Mode) -> TreeBatch:
    rng = np.random.default_rng([SEED, vocab, mode])
    target = _logits(rng, vocab, dtype)
    parents = np.tile(np.array([-1, 0, 0, 1, 1, 3], dtype=np.int32), (REQUESTS, 1))
    common = _common(rng, target, target, DraftKind.LOGITS if mode == Mode.SAMPLED else None)
    tokens = _tokens(rng, np.take_along_axis(target, parents.clip(0)[..., None], 1))
    return TreeBatch(target=target, tokens=tokens, parents=parents, mode=mode, **common)


def _common(rng: np.random.Generator, target: Array, drafted: Array, kind: DraftKind | None) -> Arrays:
    """Return sampling parameters (greedy, plain, top-k and top-p), and a draft close to the `drafted` rows."""
    arrays: Arrays = {
        "temperature": np.array([0.0, 1.0, 0.7, 1.5], dtype=np.float32),
        "top_k": np.array([0, 0, 40, 0], dtype=np.int32),
        "top_p": np.array([1.0, 1.0, 1.0, 0.9], dtype=np.float32),
        "uniforms": rng.integers(0, 2**32, target.shape[:2], dtype=np.uint32),
    }
    if kind is None:
        return arrays
    near = (drafted + rng.normal(size=drafted.shape)).astype(drafted.dtype)
    if kind == DraftKind.PROBABILITIES:
        weights = np.exp(near.astype(np.float64))
        near = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    return arrays | {"draft": near, "draft_kind": kind}


def _logits(rng: np.random.Generator, vocab: int, dtype: type) -> Array:
    return (rng.normal(size=(REQUESTS, ROWS, vocab)) * 3).astype(dtype)


def _tokens(rng: np.random.Generator, logits: Array) -> Array:
    """Return probable tokens [requests, rows], so that some of them are accepted."""
    noisy = logits + rng.gumbel(size=logits.shape)
    return noisy.argmax(-1).astype(np.int32)


def _device_mover(device: str) -> Callable[[Arrays], Arrays]:
    """Return a function that copies the arrays of a call to a device; raise TrtspecError without a CUDA device."""
    if device == "cpu":
        return dict

    import torch

    if not torch.cuda.is_available():
        raise TrtspecError(
            "no CUDA device is available to test the library", hint="omit --arch to test the CPU kernels"
        )

    def to_device(arrays: Arrays) -> Arrays:
        is_array = {name: isinstance(value, np.ndarray) for name, value in arrays.items()}
        return {name: torch.from_numpy(v).to(device) if is_array[name] else v for name, v in arrays.items()}

    return to_device


def _to_numpy(array: Array) -> Any:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
