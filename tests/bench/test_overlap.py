# SPDX-License-Identifier: Apache-2.0
"""Measuring prompts that the draft was trained on are counted and reported in a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.bench.sources import DIGESTS, OTHER_PROMPTS, RECORD, overlap, prompt_digest
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.store.artifact_paths import TOKENIZER

PROMPTS = [f'{{"id": {number}, "name":' for number in range(8)]
WARNING = (
    "6 of 8 prompts are among the draft's 6 training prompts: acceptance on other prompts may be lower; "
    "measure with held-out prompts (--prompts FILE)"
)


@pytest.fixture
def trained(artifact: Path) -> Path:
    """Return an artifact whose draft was trained on the first six prompts."""
    encode = Tokenizer(artifact / TOKENIZER).encode
    digests = [prompt_digest(encode(prompt)) for prompt in PROMPTS[:6]]
    (artifact.parents[1] / "draft" / RECORD).write_text(json.dumps({"published": True, DIGESTS: digests}))
    (artifact.parents[1] / "prompts.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in PROMPTS))
    return artifact


def test_overlap_counts_prompts_that_the_draft_was_trained_on(trained: Path) -> None:
    assert f"{overlap(trained, PROMPTS)}: {OTHER_PROMPTS}" == WARNING
    assert not overlap(trained, PROMPTS[6:])


@pytest.mark.parametrize("record", ["", "{", "[]", "{}", '{"prompt_digests": 3}', '{"prompt_digests": [3]}'])
def test_draft_without_a_valid_training_record_has_no_overlap(record: str, trained: Path) -> None:
    (trained.parents[1] / "draft" / RECORD).write_text(record)
    assert not overlap(trained, PROMPTS)


@pytest.mark.integration
@pytest.mark.parametrize("command", [("verify",), ("bench", "--runs", 1), ("bench", "--runs", 1, "--gates")])
def test_verify_and_bench_warn_of_training_prompts(command: tuple[object, ...], trained: Path, trtspec: Run) -> None:
    name, *rest = command
    asked = (name, trained, *rest, "--prompts", "prompts.jsonl", "--max-tokens", 2)
    assert f"warning: {WARNING}\n" in trtspec(*asked).err
    assert WARNING in trtspec(*asked, "--json").document["warnings"]
    assert "warning" not in trtspec(name, trained, *rest, "--max-tokens", 2).err, (
        "the artifact's prompts are not training prompts"
    )
