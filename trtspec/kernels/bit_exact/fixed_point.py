# SPDX-License-Identifier: Apache-2.0
"""Conversion of logits to integer weights, and sampling from integer weights, as specified in plugins/README.md.

A sum of integers does not depend on the order, so decisions based on these weights are the same on every machine. All
floating-point operations are IEEE 754 and concern a single id. Only `fma32` is contracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Weights = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

NONFINITE, EMPTY, BAD_DRAFT, DRAFT_NONFINITE = 1, 2, 4, 8

ONE = 1 << 44
"""The weight of a row's largest logit."""

FIXED_ONE = 2.0**62
"""Probabilities become weights in units of its inverse."""

LOG2_E = np.float32(1.44269504)
LOWEST_EXPONENT = np.float32(-45.0)
EXP2_COEFFICIENTS = ("0x1.62e4c8p-1", "0x1.ebd8a2p-3", "0x1.c94438p-5", "0x1.269e16p-7", "0x1.eca68p-10")
"""C1 to C5 of plugins/common/exp2_coefficients.h."""

_BELOW_TWO = np.nextafter(np.float32(2.0), np.float32(0.0))


@dataclass(frozen=True)
class RowSampling:
    """The sampling parameters of one request: `top_k` 0 and `top_p` 1 keep all ids; temperature 0 is greedy."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def scale(self) -> np.float32:
        """Return log2(e) divided by the temperature."""
        with np.errstate(over="ignore", divide="ignore"):
            return LOG2_E / np.float32(self.temperature)

    @property
    def greedy(self) -> bool:
        """Return whether the largest logit is always chosen."""
        return not self.temperature > 0.0 or bool(np.isinf(self.scale)) or self.top_k == 1


@dataclass(frozen=True, eq=False)
class WeightRow:
    """The integer weights of a row of logits.

    `exponents` [vocab] are log2(weight / ONE). `status` is NONFINITE, EMPTY, both or 0; unless it is 0, `exponents` and
    `weights` [vocab] are undefined. `argmax` is -1 in an empty row.
    """

    exponents: Logits
    weights: Weights
    argmax: int
    status: int

    @cached_property
    def total(self) -> int:
        return int(self.weights.sum())

    @cached_property
    def probs(self) -> Floats:
        """Return the weights as probabilities [vocab]."""
        return self.weights.astype(np.float64) * self.per_weight

    @property
    def per_weight(self) -> float:
        """Return the probability of a weight of 1."""
        return 1.0 / float(self.total)

    def without(self, token: int) -> Weights:
        """Return the weights [vocab] with one token's weight set to 0."""
        rest = self.weights.copy()
        rest[token] = 0
        return rest


def read_row(logits: npt.NDArray[np.floating[Any]], sampling: RowSampling) -> WeightRow:
    """Convert float32 or float16 logits [vocab] to weights, with a request's sampling parameters."""
    row = logits.astype(np.float32)
    finite = np.isfinite(row)
    status = (0 if np.all(finite | np.isneginf(row)) else NONFINITE) | (0 if finite.any() else EMPTY)
    argmax = int(np.argmax(np.where(finite, row, -np.inf))) if finite.any() else -1
    if status:
        return WeightRow(np.zeros_like(row), np.zeros(len(row), dtype=np.uint64), argmax, status)
    if sampling.greedy:
        one_hot = np.zeros(len(row), dtype=np.uint64)
        one_hot[argmax] = ONE
        return WeightRow(np.zeros_like(row), one_hot, argmax, status)
    t = exponents(row, sampling.scale)
    return WeightRow(t, truncate(row, exp2_weights(t), sampling.top_k, sampling.top_p), argmax, status)


def exponents(logits: Logits, scale: np.float32) -> Logits:
    """Return (logit - maximum) * scale [vocab]; at least one logit must be finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        t: Logits = (logits - logits.max()) * scale
    return t


def exp2_weights(t: Logits) -> Weights:
    """Return 2^t * ONE for exponents t <= 0, truncated to integers, with a relative error of at most 1.8e-7.

    Weights of exponents below -45 are 0.
    """
    inside = t >= LOWEST_EXPONENT
    t = np.where(inside, t, np.float32(0.0))
    whole = np.floor(t)
    fraction = t - whole
    power = np.full_like(t, np.float32(float.fromhex(EXP2_COEFFICIENTS[-1])))
    for coefficient in reversed(EXP2_COEFFICIENTS[:-1]):
        power = fma32(power, fraction, np.float32(float.fromhex(coefficient)))
    power = np.minimum(fma32(power, fraction, np.float32(1.0)), _BELOW_TWO)
    significand = (power.view(np.uint32) & 0x7FFFFF | 0x800000).astype(np.uint64)
    shift = whole.astype(np.int64) + 21
    left, right = np.maximum(shift, 0).astype(np.uint64), np.maximum(-shift, 0).astype(np.uint64)
    return np.where(inside, significand << left >> right, np.uint64(0))


def fma32(a: Logits, b: Logits, c: np.float32) -> Logits:
    """Return a * b + c in float32 with a single rounding.

    The product of two float32 numbers is exact in float64. The sum is rounded to odd, which preserves the information
    that the rounding to float32 needs.
    """
    product, addend = a.astype(np.float64) * b, np.float64(c)
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.copysign(np.inf, lost))
    return np.where((lost != 0.0) & even, odd, total).astype(np.float32)


def truncate(logits: Logits, weights: Weights, top_k: int, top_p: float) -> Weights:
    """Return the weights [vocab] with only the first `top_k` ids, and of these only the share `top_p` of the mass.

    Ids are ordered by decreasing logit, then by id. Ids with a logit of -inf are never kept.
    """
    if top_k <= 0 and not top_p < 1.0:
        return weights
    order = np.argsort(-logits, kind="stable")
    order = order[np.isfinite(logits[order])]
    order = order[:top_k] if top_k > 0 else order
    if top_p < 1.0:
        upto = np.cumsum(weights[order])
        bound = int(max(float(np.float32(top_p)) * float(upto[-1]), 0.0))
        inside = upto - weights[order] < np.uint64(bound)
        inside[0] = True
        order = order[inside]
    kept = np.zeros_like(weights)
    kept[order] = weights[order]
    return kept


def draw(weights: Weights, uniform: int) -> int:
    """Return the token at `uniform` / 2^32 of the cumulative weights [vocab], which must not all be 0."""
    upto = np.cumsum(weights)
    return int(np.searchsorted(upto, np.uint64(uniform * int(upto[-1]) >> 32), side="right"))


def fix(values: Floats) -> Weights:
    """Convert numbers to weights in units of 1 / FIXED_ONE, after clamping them to [0, 1]."""
    return (np.clip(values, 0.0, 1.0) * FIXED_ONE).astype(np.uint64)


def wrapped_sum(weights: Weights) -> int:
    """Return the sum of weights modulo 2^64, as in machine arithmetic."""
    return int(weights.sum())


def to_unit(uniform: int) -> float:
    """Convert a 32-bit unsigned number to a float in [0, 1)."""
    return uniform * 2.0**-32
