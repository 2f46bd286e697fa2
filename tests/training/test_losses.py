# SPDX-License-Identifier: Apache-2.0
"""The losses and their gradients equal formulas in numpy and finite differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from trtspec.training.trainer import LOSSES


def softmax(logits: Any) -> Any:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


FORMULAS: dict[str, Callable[[Any, Any], float]] = {
    "kl": lambda draft, target: (target * np.log(target / draft)).sum(-1).mean(),
    "greedy": lambda draft, target: (
        FORMULAS["kl"](draft, target)
        + np.mean([np.log(theirs.max() / ours[theirs.argmax()]) for ours, theirs in zip(draft, target, strict=True)])
    ),
    "reverse_kl": lambda draft, target: (draft * np.log(draft / target)).sum(-1).mean(),
    "tv": lambda draft, target: 1 - np.minimum(draft, target).sum(-1).mean(),
}


def test_every_loss_has_a_reference_formula() -> None:
    assert FORMULAS.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", LOSSES)
def test_loss_values_and_gradients_match_the_formulas(name: Any) -> None:
    draw = np.random.default_rng(0)
    draft, target = draw.normal(size=(5, 7)) * 2, draw.normal(size=(5, 7)) * 2

    def formula(logits: Any) -> float:
        return FORMULAS[name](softmax(logits), softmax(target))

    ours = torch.from_numpy(draft.copy()).requires_grad_()
    loss = LOSSES[name](ours, torch.from_numpy(target))
    loss.backward()
    assert loss.item() == pytest.approx(formula(draft), abs=1e-12)
    step, slopes = 1e-6, np.zeros_like(draft)
    for at in np.ndindex(*draft.shape):
        moved = np.zeros_like(draft)
        moved[at] = step
        slopes[at] = (formula(draft + moved) - formula(draft - moved)) / (2 * step)
    assert ours.grad is not None
    np.testing.assert_allclose(ours.grad.numpy(), slopes, atol=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_equal_distributions_is_zero(name: Any) -> None:
    logits = torch.randn(4, 6, dtype=torch.float64)
    assert float(LOSSES[name](logits, logits + 3.0)) == pytest.approx(0.0, abs=1e-12)
