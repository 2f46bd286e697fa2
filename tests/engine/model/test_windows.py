# SPDX-License-Identifier: Apache-2.0
"""Windows of trees: the masks of their nodes, which are the same for static and for growing trees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests._support.configs import model_config
from trtspec.engine.model.positions import Windows
from trtspec.kernels.tree import Tree

MAX_LEN = 32
STARTS = [5, 9, 2]
# three levels of two nodes, with another shape in each row
PARENTS = np.array([[-1, 0, 0, 1, 1, 3, 4], [-1, 0, 0, 2, 1, 4, 4], [-1, 0, 0, 1, 2, 3, 3]])


@pytest.fixture(scope="module")
def windows() -> Windows:
    return Windows(model_config(head_size=4), MAX_LEN, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("offset", [0, 3])
def test_nodes_attend_to_the_text_their_ancestors_and_themselves(offset: int, windows: Windows) -> None:
    window = windows.tree(STARTS, Tree(PARENTS), offset)
    assert window.mask is not None
    assert window.mask.shape == (3, 1, 2 * (7 - offset), max(STARTS) + 7)  # two heads share a key
    for row, (start, parents) in enumerate(zip(STARTS, PARENTS, strict=True)):
        for node in range(offset, 7):
            path = [node]
            while parents[path[-1]] >= 0:
                path.append(int(parents[path[-1]]))
            seen = [*range(start), *sorted(start + number for number in path)]
            for head in range(2):
                mask = window.mask[row, 0, head * (7 - offset) + node - offset]
                assert torch.nonzero(mask == 0).flatten().tolist() == seen
                assert set(mask.tolist()) == {0.0, -torch.inf}
            at = row * (7 - offset) + node - offset
            assert int(window.slots[at]) == row * MAX_LEN + start + node
            place = windows.chain([start + len(path) - 1], 1).rotation
            assert torch.equal(window.rotation[at : at + 1], place)


def test_growing_tree_windows_equal_those_of_the_complete_tree(windows: Windows) -> None:
    whole, growing = windows.tree(STARTS, Tree(PARENTS), 1), windows.growing(STARTS, 2, 3)
    parents = torch.from_numpy(PARENTS)
    for level in range(3):
        nodes = slice(1 + 2 * level, 3 + 2 * level)
        above = parents[:, nodes] - max(0, 2 * level - 1)  # the first level's parent is the root, number 0
        found, expected = growing(above), whole.part(2 * level, 2 * level + 2)
        assert (found.first_row, found.rows, found.width, found.key_len) == (0, 3, 2, expected.key_len)
        for ours, theirs in ((found.slots, expected.slots), (found.rotation, expected.rotation)):
            assert torch.equal(ours, theirs)
        assert found.mask is not None
        assert expected.mask is not None
        assert torch.equal(found.mask, expected.mask)
