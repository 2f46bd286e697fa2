# SPDX-License-Identifier: Apache-2.0
"""Recipes with one-pass drafters on the torch engine: from a published net to verified text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests._support.tiny import PAIR_VOCAB, TARGET_SHAPE
from tests.conftest import Run
from tests.methods.block_nets import save_net
from tests.methods.parallel_nets import random_block_net, random_p_eagle
from trtspec.bench.artifact import open_artifact
from trtspec.engine.prompts.load import load_prompts

pytestmark = pytest.mark.integration

TARGET = {**TARGET_SHAPE, "vocab_size": PAIR_VOCAB}


def save_draft(method: str, workplace: Path) -> str:
    """Save a draft for the recipe's target, and return its reference for the recipe."""
    if method == "pard":
        path = workplace / "draft" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "pard_token": 3}))
        return "./draft"
    net = random_p_eagle(target=TARGET) if method == "p_eagle" else random_block_net(method, target=TARGET)
    save_net(workplace / "net", net.config, net.tensors)
    return "./net"


def wanted(method: str, draft: str, *further: str) -> list[str]:
    keys = [f"speculation.method={method}", f"speculation.draft.model={draft}", "speculation.draft_len=3", *further]
    return [word for key in keys for word in ("--set", key)]


@pytest.mark.parametrize("method", ["pard", "p_eagle", "dflash", "dspark"])
def test_recipe_is_built_and_passes_lossless_verification(method: str, recipe: Path, trtspec: Run) -> None:
    draft, out = save_draft(method, recipe.parent), recipe.parent / "built"
    knobs = ("speculation.confidence=0.0001", "speculation.verify=block", "gates.lossless=true")
    built = trtspec("build", recipe, *wanted(method, draft, *knobs), "--out", out)
    assert built.code == 0, built.stderr
    verified = trtspec("verify", out, "--max-tokens", "8", "--json")
    checks = {each["name"]: each["ok"] for each in verified.document["checks"]}
    assert checks["lossless"] is checks["parity"] is True, verified.stdout


def test_net_drafts_as_usual_after_a_pause_in_drafting(workplace: Path, trtspec: Run) -> None:
    """Two requests are too many to draft for; after the short one has ended, the trained net drafts as usual."""
    schedule = "speculation.schedule=[{max_batch: 1, draft_len: 15}]"
    assert trtspec("build", "quickstart-dspark", "--set", schedule, "--out", "built").code == 0
    prompts = load_prompts(workplace / "built" / "prompts" / "quickstart.jsonl")[:2]
    with open_artifact(workplace / "built") as artifact:
        alone = artifact.request(prompts[0].text, 128)
        (whole,) = artifact.engine.generate([alone])
        both = artifact.engine.generate([alone, artifact.request(prompts[1].text, 48)])
    assert both[0].ids == whole.ids
    undrafted = both[1].stats.steps
    assert undrafted == 47  # the first token is the prefill's
    rest, drafted = 127 - undrafted, both[0].stats.steps - undrafted
    assert rest / drafted > 0.8 * 127 / whole.stats.steps > 4


def test_net_with_unsupported_config_keys_is_rejected(recipe: Path, trtspec: Run) -> None:
    draft = save_draft("dflash", recipe.parent)
    path = recipe.parent / "net" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "layer_types": ["sliding_attention", "full_attention"], "logit_scale": 2.0}))
    found = trtspec("check", "--json", recipe, *wanted("dflash", draft, "engine.backend=embedded"))
    said = [each["message"] for each in found.document["problems"] if each["code"] == "not-supported"]
    assert said == ["the torch engine does not support these keys of the draft's config.json: logit_scale, layer_types"]
