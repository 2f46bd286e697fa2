# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts gives the bits of transformers' Mixtral block for any number of experts per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.model.layers import mix_experts

if TYPE_CHECKING:
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

HIDDEN, INTER, EXPERTS = 32, 48, 5


def random_block(top_k: int, dtype: torch.dtype) -> MixtralSparseMoeBlock:
    from transformers import MixtralConfig  # imported late: the import takes seconds, which would slow every collection
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=HIDDEN, intermediate_size=INTER, num_local_experts=EXPERTS, num_experts_per_tok=top_k
    )
    config._experts_implementation = "eager"
    block = MixtralSparseMoeBlock(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.3)
    return block.to(dtype).eval()


def expert_of(block: MixtralSparseMoeBlock, seen: list[int]):
    def expert(number: int, rows: Tensor) -> Tensor:
        seen.append(number)
        gate, up = F.linear(rows, block.experts.gate_up_proj[number]).chunk(2, -1)
        return F.linear(F.silu(gate) * up, block.experts.down_proj[number])

    return expert


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_k", range(1, EXPERTS + 1))
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_outputs_are_bit_identical_to_transformers(top_k: int, tokens: int, dtype: torch.dtype) -> None:
    block = random_block(top_k, dtype)
    hidden = torch.randn(tokens, HIDDEN).to(dtype)
    seen: list[int] = []
    with torch.inference_mode():
        expected = block(hidden.unsqueeze(0)).squeeze(0)
        ours = mix_experts(hidden, block.gate.weight, top_k, expert_of(block, seen))
    assert torch.equal(ours, expected)
    assert seen == sorted(set(seen))
    assert top_k <= len(seen) <= EXPERTS


def test_float32_router_selects_experts_in_float32() -> None:
    """The logits of two experts are equal in bfloat16; only the float32 router distinguishes them."""
    hidden = torch.ones(1, HIDDEN, dtype=torch.bfloat16)
    router = torch.full((2, HIDDEN), 1.0)
    router[1, 0] += 2**-12
    answers = [
        mix_experts(hidden, weights, 1, lambda number, rows: torch.full_like(rows, number))
        for weights in (router, router.bfloat16())
    ]
    assert [answer[0, 0].item() for answer in answers] == [1.0, 0.0]
