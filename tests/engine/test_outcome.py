# SPDX-License-Identifier: Apache-2.0
"""The outcome of a step, as drafters get it."""

from __future__ import annotations

import pytest
import torch

from trtspec.engine.drafting.base import VerifyOutcome
from trtspec.kernels.chain import VerifyResult


@pytest.mark.parametrize("paths", [[[], [], []], [[1], [1], [1]], [[1, 3], [], [2]]])
def test_accepted_features_equal_rows_selected_one_by_one(paths: list[list[int]]) -> None:
    """They equal rows selected one by one, in separate memory."""
    width = 2 if paths[0] == [1] else 1 if not any(paths) else 4
    features = torch.randn(3, width, 5)
    outcome = VerifyOutcome([VerifyResult(path, 7) for path in paths], torch.empty(0), features)
    for row, (found, path) in enumerate(zip(outcome.accepted_features(), paths, strict=True)):
        assert torch.equal(found, features[row, [0, *path]])
        assert found.untyped_storage().nbytes() == found.nbytes


def test_accepted_features_without_aux_layers_are_an_error() -> None:
    with pytest.raises(ValueError, match="only available to drafters with aux_layers"):
        VerifyOutcome([], torch.empty(0), None).accepted_features()
