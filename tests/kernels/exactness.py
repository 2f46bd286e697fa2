# SPDX-License-Identifier: Apache-2.0
"""The checks of every implementation of plugins/README.md: numpy, C++ and CUDA.

A check takes the implementation and raises AssertionError. Expected ids are computed by hand, or by the reference and
torch, which are independent of `trtspec.kernels.bit_exact`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.kernels import block_checks, chain_checks, random_checks, tree_checks
from tests.kernels.batches import ChainRule, TreeRule
from tests.kernels.cells import (
    BLOCK_SETTINGS,
    CHAIN_SETTINGS,
    TREE_SETTINGS,
    check_chain_distribution,
    check_tree_distribution,
)
from trtspec.kernels import chain
from trtspec.kernels.bit_exact import Mode

CHAIN_CHECKS: dict[str, Callable[[ChainRule], None]] = {
    **{f"distribution, {name}": partial(check_chain_distribution, setting) for name, setting in CHAIN_SETTINGS.items()},
    "draws at every edge": chain_checks.check_draws_at_every_edge,
    "deterministic tokens at every edge": chain_checks.check_deterministic_tokens_at_every_edge,
    "sampled tokens at every edge": chain_checks.check_sampled_tokens_at_every_edge,
    "draft logits are scaled too": chain_checks.check_draft_logits_are_scaled_too,
    "weight zero": chain_checks.check_no_token_of_weight_zero_is_accepted,
    "what the draft cannot have given": chain_checks.check_what_the_draft_cannot_have_given_counts_as_deterministic,
    "no residual": chain_checks.check_without_a_residual_the_target_is_drawn,
    "ill rows": chain_checks.check_ill_rows,
    "tokens outside the vocabulary": chain_checks.check_tokens_outside_the_vocabulary,
    "ill rows of the draft": chain_checks.check_ill_rows_of_the_draft,
    "ties": chain_checks.check_ties,
    "truncation at its limits": chain_checks.check_truncation_at_its_limits,
    "extreme numbers": chain_checks.check_extreme_numbers,
    "lengths and greedy requests": chain_checks.check_lengths_and_greedy_requests,
    "reduced draft vocabulary": chain_checks.check_reduced_draft_vocabulary,
    "padding and half precision": random_checks.check_padding_and_half_precision,
    "torch, sampled": partial(random_checks.check_torch_says_the_same_of_chains, True),
    "torch, deterministic": partial(random_checks.check_torch_says_the_same_of_chains, False),
    "every batch, sampled": partial(
        random_checks.check_a_request_says_the_same_in_every_batch, partial(random_checks.random_chains, sampled=True)
    ),
    "every batch, deterministic": partial(
        random_checks.check_a_request_says_the_same_in_every_batch, partial(random_checks.random_chains, sampled=False)
    ),
    **{
        f"vocabulary of {vocab}": partial(random_checks.check_whole_vocabularies, vocab)
        for vocab in (32000, 128256, 151936)
    },
}

# for these, block verification equals chain verification: at most one token is drafted, or no share is left
ALIKE = (
    "draws at every edge",
    "sampled tokens at every edge",
    "draft logits are scaled too",
    "weight zero",
    "what the draft cannot have given",
    "no residual",
    "ties",
    "truncation at its limits",
    "extreme numbers",
    "lengths and greedy requests",
    "reduced draft vocabulary",
    "padding and half precision",
    "every batch, sampled",
    "every batch, deterministic",
    "vocabulary of 32000",
)
BLOCK_CHECKS: dict[str, Callable[[ChainRule], None]] = {
    **{f"distribution, {name}": partial(check_chain_distribution, setting) for name, setting in BLOCK_SETTINGS.items()},
    **{name: CHAIN_CHECKS[name] for name in ALIKE},
    "by hand": block_checks.check_a_block_by_hand,
    "where a chain ends early": block_checks.check_where_a_chain_ends_early,
    "torch, sampled": partial(random_checks.check_torch_says_the_same_of_chains, True, rule=chain.verify_block),
    "torch, deterministic": partial(random_checks.check_torch_says_the_same_of_chains, False, rule=chain.verify_block),
}

TREE_CHECKS: dict[str, Callable[[TreeRule], None]] = {
    **{f"distribution, {name}": partial(check_tree_distribution, setting) for name, setting in TREE_SETTINGS.items()},
    "deterministic tokens": tree_checks.check_tree_of_deterministic_tokens,
    "unused nodes": tree_checks.check_unused_nodes,
    "greedy": tree_checks.check_greedy_trees,
    "siblings at every edge": tree_checks.check_siblings_at_every_edge,
    "many siblings": tree_checks.check_many_siblings,
    "what the draft cannot have given": tree_checks.check_children_that_the_draft_cannot_have_given,
    "typical": tree_checks.check_typical_acceptance,
    "entropies": tree_checks.check_entropies,
    "ill rows": tree_checks.check_ill_rows_of_trees,
    "tokens outside the vocabulary": tree_checks.check_tokens_outside_the_vocabulary_in_trees,
    "ill rows of the draft": tree_checks.check_ill_rows_of_the_draft_in_trees,
    **{f"torch, {mode.name.lower()}": partial(random_checks.check_torch_says_the_same_of_trees, mode) for mode in Mode},
    **{
        f"every batch, {mode.name.lower()}": partial(
            random_checks.check_a_request_says_the_same_in_every_batch, partial(random_checks.random_trees, mode=mode)
        )
        for mode in Mode
    },
}
