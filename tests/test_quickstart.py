# SPDX-License-Identifier: Apache-2.0
"""The quickstart recipe on its committed pair: what `make demo` promises, held against transformers."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import greedy, reference_model
from tests.conftest import Run
from trtspec.bench.parity import TIE
from trtspec.core.paths import recipes_dir

pytestmark = pytest.mark.integration
RECIPE = recipes_dir() / "quickstart.yaml"
MODELS = recipes_dir() / "models"
TARGET, DRAFT = MODELS / "quickstart-target", MODELS / "quickstart-draft"
PROMPTS, NEW_TOKENS, MAX_BYTES = 64, 64, 24_000_000


def test_quickstart_pair_is_small_and_shares_its_tokenizer() -> None:
    size = sum(path.stat().st_size for root in (TARGET, DRAFT) for path in root.iterdir())
    assert size <= MAX_BYTES
    assert (TARGET / "tokenizer.json").read_bytes() == (DRAFT / "tokenizer.json").read_bytes()


def lead_of(model: Any, prompt: list[int], ours: list[int]) -> float:
    """Return by how much the model prefers another token, at most, to one of ours after all that stand before it.

    Where it prefers none, ours is its greedy text: one pass over a text tells what writing it token by token would.
    """
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ours]])).logits[0, len(prompt) - 1 : -1]
    return float((logits.max(-1).values - logits.gather(1, torch.tensor(ours)[:, None])[:, 0]).max())


@pytest.mark.every_python
def test_generated_text_matches_transformers_except_at_ties(trtspec: Run, workplace: Path) -> None:
    from trtspec.checkpoints.tokenizer import Tokenizer
    from trtspec.engine.prompts.load import load_prompts

    assert trtspec("build", RECIPE).code == 0
    prompts = load_prompts(workplace / "build" / "quickstart" / "prompts" / "quickstart.jsonl")
    assert len(prompts) == PROMPTS
    results = trtspec(
        "generate", "build/quickstart", "--prompts", RECIPE.parent / "prompts" / "quickstart.jsonl",
        "--max-tokens", NEW_TOKENS,
    ).document["results"]  # fmt: skip
    tokenizer, model = Tokenizer(TARGET), reference_model(TARGET)
    for prompt, result in zip(prompts, results, strict=True):
        ids, ours = tokenizer.encode(prompt.text), result["token_ids"]
        if result["finish_reason"] == "end_id":
            ours = [*ours, tokenizer.end_ids[0]]  # transformers shows it
        else:
            assert len(ours) == NEW_TOKENS
        assert lead_of(model, ids, ours) <= TIE, prompt.name
        if prompt in prompts[::16]:
            theirs = greedy(model, ids, NEW_TOKENS)
            assert ours == theirs or lead_of(model, ids, ours) > 0, prompt.name  # they part at a tie
    drafted, accepted = (sum(result[key] for result in results) for key in ("drafted", "accepted"))
    assert accepted / drafted >= 0.6


def test_fp8_on_two_ranks_has_high_parity_and_is_lossless(trtspec: Run, workplace: Path) -> None:
    assert trtspec("build", RECIPE.with_name("quickstart-fp8.yaml")).code == 0
    some = workplace / "some.jsonl"
    some.write_text("".join((RECIPE.parent / "prompts" / "quickstart.jsonl").open().readlines()[::8]))
    report = trtspec("verify", "build/quickstart-fp8", "--prompts", some, "--max-tokens", "32", "--json").document
    checks = {check["name"]: check for check in report["checks"]}
    assert all(check["ok"] for check in checks.values()), report
    assert 0.97 <= checks["parity"]["value"] <= 1
    assert "tokens of the FP8 target match the unquantized source's choice" in checks["parity"]["detail"]
    assert checks["lossless"]["value"] == 8
    inspected = trtspec("inspect", "build/quickstart-fp8/checkpoints/target", "--json").document
    assert (inspected["tensor_parallel"], inspected["quantization"]) == (2, "FP8, FP8 KV cache")


@pytest.mark.parametrize("name", [f"quickstart-{kind}" for kind in ("medusa", "eagle", "eagle3", "redrafter")])
def test_trained_drafts_are_accepted_and_output_is_lossless(name: str, trtspec: Run, workplace: Path) -> None:
    """They were trained on the target's texts, and gave more than 3.5 tokens a step when they were committed."""
    from trtspec.checkpoints.tokenizer import Tokenizer
    from trtspec.engine.engine import Engine
    from trtspec.engine.generation.request import EngineRequest
    from trtspec.engine.settings import EngineSettings

    assert trtspec("build", RECIPE.with_name(f"{name}.yaml")).code == 0
    lines = (RECIPE.parent / "prompts" / "quickstart.jsonl").read_text().splitlines()[:6]
    some = workplace / "some.jsonl"
    some.write_text("\n".join(lines))
    results = trtspec("generate", f"build/{name}", "--prompts", some, "--max-tokens", "48").document["results"]
    tokenizer = Tokenizer(TARGET)
    prompts = [tuple(tokenizer.encode(json.loads(line)["prompt"])) for line in lines]
    engine = Engine(
        workplace / "build" / name / "checkpoints" / "target", None, EngineSettings(device="cpu", max_seq_len=1024)
    )
    alone = engine.generate([EngineRequest(prompt, 48, end_ids=tokenizer.end_ids) for prompt in prompts])
    engine.close()
    assert [result["token_ids"] for result in results] == [list(each.ids) for each in alone]
    assert statistics.mean(result["mean_accepted_len"] for result in results) > 3
