# SPDX-License-Identifier: Apache-2.0
"""How far a net's drafts are accepted by a greedy target, computed from where its tokens stand among the net's logits.

Ranks [steps, positions] are of one sequence: how many draft tokens the net held likelier, at each step, than the one
that the target went on with. A chain is accepted while they are 0; a tree, while they are one of its paths.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import torch
from torch import nn
from transformers import LlamaForCausalLM

Path = tuple[int, ...]
TREE_SIZES = (4, 6, 8, 10, 12, 16)


@torch.no_grad()
def ranks_of(net: nn.Module, target: LlamaForCausalLM, tokens: torch.Tensor, prompt_len: int) -> torch.Tensor:
    """Return the ranks for `tokens` [tokens], a prompt and what the target made of it, from the prompt's last position
    to the last one that has a token to compare with at every step."""
    hidden_states = target(input_ids=tokens[None], output_hidden_states=True).hidden_states
    ranks = []
    for step, logits in enumerate(net(tokens[None], hidden_states)):
        count = logits.shape[1] - 1
        known = torch.full((count, target.config.vocab_size), -torch.inf)
        known[:, net.vocab] = logits[0, :count]
        wanted = tokens[step + 2 : step + 2 + count, None]
        ranks.append((known > known.gather(-1, wanted)).sum(-1))
    return torch.stack(ranks)[:, prompt_len - 1 :]


def prefixes(path: Path) -> list[Path]:
    """Return the nodes on the way to `path`, the nearest to the root first."""
    return list(accumulate((rank,) for rank in path))


def chain(length: int) -> list[Path]:
    return prefixes((0,) * length)


def best_tree(ranks: list[torch.Tensor], size: int) -> list[Path]:
    """Return the `size` nodes that are accepted most often. A node is never accepted more often than its parent, so
    these are a tree; where both are equally often, the parent comes first."""
    counts = Counter(node for rows in ranks for path in rows.T.tolist() for node in prefixes(path))
    return sorted(sorted(counts, key=lambda node: (-counts[node], len(node), node))[:size])


def mean_accepted_len(ranks: list[torch.Tensor], tree: list[Path]) -> float:
    """Return the tokens per verification, the target's own included, when `tree` is drafted from each position that
    decoding comes to."""
    nodes, tokens, verifications = set(tree), 0, 0
    for rows in ranks:
        paths, position = rows.T.tolist(), 0
        while position < len(paths):
            accepted = sum(node in nodes for node in prefixes(paths[position]))
            position += accepted + 1
            tokens += accepted + 1
            verifications += 1
    return tokens / verifications


def print_coverage(net: nn.Module, vocab_size: int, tokens: torch.Tensor) -> None:
    """Print how much of `tokens`, which the target wrote, the net can draft at all."""
    drafted = torch.isin(tokens, torch.arange(vocab_size)[net.vocab])
    print(f"  the draft vocabulary holds {drafted.float().mean():.4%} of the held-out tokens")


def print_ranks(ranks: list[torch.Tensor]) -> None:
    """Print, for each step, how often the target's token was the first, second, ... of the net's; and how often the
    first one was right where all before it were."""
    rows = torch.cat(ranks, 1)
    reached = torch.ones(rows.shape[1], dtype=torch.bool)
    for step, ranked in enumerate(rows, start=1):
        first = [f"{(ranked == rank).float().mean():.3f}" for rank in range(4)]
        right = ranked == 0
        print(f"  step {step}: ranks 0-3 {' '.join(first)}; after a right chain {right[reached].float().mean():.3f}")
        reached &= right


def print_chains(ranks: list[torch.Tensor]) -> None:
    lengths = [f"{length}: {mean_accepted_len(ranks, chain(length)):.3f}" for length in range(1, len(ranks[0]) + 1)]
    print("  mean accepted length of a chain of " + ", ".join(lengths))


def print_trees(ranks: list[torch.Tensor], grown_on: list[torch.Tensor]) -> None:
    """Print the best trees of `grown_on`, and what they bring on `ranks`."""
    for size in TREE_SIZES:
        tree = best_tree(grown_on, size)
        print(f"  tree of {size:2}: mean accepted length {mean_accepted_len(ranks, tree):.3f} {[*map(list, tree)]}")
