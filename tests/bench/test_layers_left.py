# SPDX-License-Identifier: Apache-2.0
"""A draft made of a target's layers: the choice of layers, its acceptance, and the written checkpoint."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
import torch

from tests._support.tiny import convert, make_llama, reference_model
from tests.conftest import Run
from trtspec.bench.layer_search import LENS, Matcher, PrunedDraft, SearchBudget, Text, _chains, ranked, rate, search
from trtspec.bench.profile.acceptance import AcceptanceStats, count_steps
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.engine.measurement import replay
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.settings import EngineSettings
from trtspec.engine.speculator import Speculator
from trtspec.methods.layer_pruning import Skip, prune_checkpoint

SKIP = Skip(attention=[1], mlp=[1])
FREELY = SearchBudget(1.0, 10_000, 1e9, layers_left=4)


def said_by(source: Path, prompts: list[tuple[int, ...]], count: int) -> list[Text]:
    model, texts = reference_model(source), []
    for prompt in prompts:
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(count):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        texts.append((prompt, tuple(tokens[len(prompt) :])))
    return texts


@pytest.mark.integration
def test_pruned_draft_acceptance_matches_the_engine(tmp_path: Path) -> None:
    """The pruned checkpoint is replayed as a draft model on the same texts, at every draft length."""
    source = make_llama(tmp_path / "hf", num_hidden_layers=3, scale=0.05)
    texts = said_by(source, [(1, 2, 3, 4, 5), (6,), (7, 7, 7)], 20)
    target = convert(source, tmp_path / "target")
    prune_checkpoint(load_model(source, "auto"), SKIP, tmp_path / "pruned")
    draft = convert(tmp_path / "pruned", tmp_path / "draft")
    model = Decoder(load_checkpoint(target), 3, 32, torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        chains = [_chains(hits) for hits in Matcher(model, texts, 0, alone=True).hits(SKIP)]
    assert sum(place.matched for places in chains for place in places) > 0
    for length in (1, 4, max(LENS)):
        settings = EngineSettings("draft_target", length, max_batch_size=4, max_seq_len=64)
        places = replay(Speculator.load(target, draft, settings), texts, 64)
        assert [count_steps(each, length) for each in chains] == [count_steps(each, length) for each in places]


@pytest.mark.parametrize("seed", range(3))
def test_search_finds_the_best_set_for_a_layer_count(seed: int, tmp_path: Path) -> None:
    config = load_model(make_llama(tmp_path / "hf", num_hidden_layers=9), "auto").config

    def matchness(skip: Skip) -> float:
        """Layers 3 and 5 are expensive to skip, and layers 1 and 2 are expensive to skip together."""
        share = 1.0
        for layer in skip.layers:
            share *= {3: 0.4, 5: 0.5}.get(layer, 0.95 - 0.01 * layer)
        return share * (0.5 if {1, 2} <= set(skip.layers) else 1.0)

    everything = [
        rate(Skip(attention=left_out, mlp=left_out), matchness(Skip(attention=left_out, mlp=left_out)), config)
        for left_out in map(list, combinations(range(1, 8), 5))
    ]
    tried = search(config, matchness, FREELY, Random(seed))
    found = ranked([each for each in tried if len(each.skip.layers) == 5])[0]
    assert found == ranked(everything)[0]
    assert max(len(each.skip.layers) for each in tried) == 5


@pytest.mark.parametrize("left", [1, 9, 10])
def test_invalid_layer_count_is_rejected(left: int, tmp_path: Path) -> None:
    config = load_model(make_llama(tmp_path / "hf", num_hidden_layers=9), "auto").config
    with pytest.raises(TrtspecError, match=f"cannot keep {left} of 9 layers"):
        search(config, lambda skip: 1.0, SearchBudget(1.0, 9, 9.0, layers_left=left), Random(0))


def test_draft_len_maximizes_the_expected_speedup() -> None:
    """All draft tokens are accepted except the fourth of each chain, at a third of the target's cost."""
    chains = [_chains([True, *([True] * 3 + [False]) * 10])]
    found = {n: AcceptanceStats((count_steps(chains[0], n),), ("",)) for n in LENS}
    draft = max((PrunedDraft(SKIP, 4, 1 / 3, n, found[n], 1, 1.0) for n in LENS), key=lambda draft: draft.speedup)
    assert draft.draft_len == 3
    assert draft.acceptance.token_weighted.value == pytest.approx(4.0, abs=0.1)
    assert draft.layers == [0, 2, 3]


@pytest.mark.integration
def test_prune_layers_writes_a_draft_that_a_recipe_accepts(recipe: Path, trtspec: Run) -> None:
    prompts = recipe.parent / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"the rest {n}"}) + "\n" for n in range(4)))
    arguments = ("prune-layers", recipe, "--prompts", prompts, "--layers", 3, "--max-tokens", 6)
    done = trtspec(*arguments, "--out", "pruned")
    assert done.code == 0, done.err
    assert "3 of 4 layers" in done.err
    assert json.loads(Path("pruned/config.json").read_text())["num_hidden_layers"] == 3
    text = recipe.read_text()
    start, end = text.index("speculation:"), text.index("engine:")
    recipe.write_text(text[:start] + done.out + text[end:])
    assert trtspec("build", recipe).code == 0
    assert trtspec("verify", "build/tiny", "--max-tokens", 8, "--json").document["ok"]
    found = trtspec(*arguments, "--out", "again", "--json").document
    assert (len(found["layers"]), found["texts"], found["draft"]) == (3, 2, "again")
    refused = trtspec(*arguments, "--out", "pruned")
    assert refused.code == 1
    assert "already exists" in refused.err
