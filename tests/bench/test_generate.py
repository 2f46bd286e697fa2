# SPDX-License-Identifier: Apache-2.0
"""`generate`: the streamed pieces add up to the text, whichever characters the tokens split."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests._support import forked
from tests._support.tiny import greedy, reference_model
from tests.conftest import Run
from trtspec.bench.artifact import generate_one
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.request import SamplingOptions
from trtspec.engine.prompts.prompt import PATH_HINT

pytestmark = pytest.mark.integration
SAMPLED = ("--temperature", "1.5", "--top-k", "50", "--top-p", "0.95")


def test_text_matches_the_source_model(recipe: Path, artifact: Path, trtspec: Run) -> None:
    document = trtspec("generate", artifact, "-p", "the rest", "--max-tokens", 24, "--json").document
    tokenizer = Tokenizer(recipe.parent / "target")
    prompt = tokenizer.encode("the rest")
    expected = greedy(reference_model(recipe.parent / "target"), prompt, 24)
    assert document["token_ids"] == expected
    assert document["text"] == tokenizer.decode(expected)
    assert (document["prompt_tokens"], document["new_tokens"]) == (len(prompt), 24)
    assert document["drafted"] > 0
    assert sum(document["accepted_by_position"]) == document["accepted"]
    assert document["acceptance_rate"] == round(document["accepted"] / document["drafted"], 4)
    assert document["tokens_per_s"] == pytest.approx(24 / document["seconds"], rel=0.05)


def test_text_goes_to_stdout_and_statistics_to_stderr(artifact: Path, trtspec: Run) -> None:
    arguments = ("generate", artifact, "-p", "naïve 北京", "--max-tokens", 12)
    document = trtspec(*arguments, "--json").document
    shown = trtspec(*arguments)
    assert shown.out == document["text"] + "\n"
    assert shown.err.startswith("12 tokens in ")
    assert f"acceptance rate {document['acceptance_rate']:.3f}" in shown.err


def test_streamed_pieces_add_up_to_the_text(artifact: Path) -> None:
    for seed in range(6):  # random bytes: nearly every character is split between tokens
        pieces: list[str] = []
        sampling = SamplingOptions(temperature=2.0, seed=seed)
        whole = generate_one(artifact, "京", max_tokens=60, sampling=sampling, stop=(), on_text=pieces.append)
        assert len(pieces) > 5
        assert "".join(pieces) == whole.text


def test_seed_makes_sampling_reproducible(artifact: Path, trtspec: Run) -> None:
    def text(seed: int) -> str:
        arguments = ("-p", "the", "--max-tokens", 20, *SAMPLED, "--seed", seed, "--json")
        return str(trtspec("generate", artifact, *arguments).document["text"])

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_stop_text_ends_generation(artifact: Path, trtspec: Run) -> None:
    arguments = ("generate", artifact, "-p", "{", "--max-tokens", 40, "--json")
    whole = trtspec(*arguments).document
    stop = whole["text"][9:11]
    stopped = trtspec(*arguments, "--stop", stop, "--stop", "never in here").document
    assert stopped["finish_reason"] == "stop"
    assert stop in stopped["text"]
    assert whole["text"].startswith(stopped["text"])
    assert stop not in Tokenizer(artifact / "tokenizer").decode(stopped["token_ids"][:-1])
    assert stopped["new_tokens"] == len(stopped["token_ids"]) < 40


def test_prompts_file_gives_the_same_results_as_single_prompts(recipe: Path, artifact: Path, trtspec: Run) -> None:
    prompts = recipe.parent / "many.jsonl"
    texts = [f"{number} the" for number in range(9)]
    prompts.write_text("\n".join(json.dumps({"prompt": text, "id": f"p{text[0]}"}) for text in texts))
    results = trtspec("generate", artifact, "--prompts", prompts, "--max-tokens", 8).document["results"]
    assert [result["id"] for result in results] == [f"p{number}" for number in range(9)]
    for number in (0, 8):
        one = trtspec("generate", artifact, "-p", texts[number], "--max-tokens", 8, "--json").document
        assert results[number]["token_ids"] == one["token_ids"]


REFUSED: list[tuple[tuple[object, ...], str]] = [
    ((), "generate requires either --prompt TEXT or --prompts FILE"),
    (("-p", "a", "--prompts", "b.jsonl"), "generate requires either --prompt TEXT or --prompts FILE"),
    (("-p", ""), "the prompt is empty"),
    (("-p", "a" * 129), "the prompt has 129 tokens, expected at most 128 (engine.max_input_len)"),
    (
        ("-p", "a", "--max-tokens", 256),
        "prompt and max_tokens are 257 tokens together, at most 256 fit (engine.max_seq_len)",
    ),
    (("-p", "a", "--max-tokens", 0), "max_tokens is 0, expected at least 1"),
    (("-p", "a", "--temperature", "nan"), "temperature is nan, expected 0 or more"),
    (("-p", "a", "--top-p", 0), "top_p is 0.0, expected more than 0 and at most 1"),
    (("-p", "a", "--top-k", -1), "top_k is -1, expected 0 (all) or more"),
    (("-p", "a", "--seed", -1), "seed is -1, expected 0 to 2^64 - 1"),
    (("-p", "a", "--stop", ""), "a stop text is empty"),
    (("-p", "ab\udcff"), "the text is not UTF-8: character 3 is a lone surrogate"),
    (("--prompts", "nosuch.jsonl"), f"nosuch.jsonl: cannot be read: No such file or directory\nhint: {PATH_HINT}"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_invalid_request_is_rejected(arguments: tuple[object, ...], message: str, artifact: Path, trtspec: Run) -> None:
    refused = trtspec("generate", artifact, *arguments)
    assert (refused.code, refused.out, refused.err) == (1, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "manifest.json").unlink(), "not an artifact: manifest.json is missing"),
        (lambda root: (root / "manifest.json").write_text("{"), "not valid JSON"),
        (lambda root: (root / "tokenizer" / "tokenizer.json").unlink(), "tokenizer/tokenizer.json: missing"),
    ],
)
def test_damaged_artifact_is_rejected(damage: Any, message: str, artifact: Path, trtspec: Run) -> None:
    damage(artifact)
    refused = trtspec("generate", artifact, "-p", "a")
    assert refused.code in (1, 102)
    assert message in refused.err


def test_interrupted_generation_exits_with_130(artifact: Path) -> None:
    arguments = ["generate", str(artifact), "-p", "the", "--max-tokens", "250"]
    slow = "from trtspec.engine.model.decoder import Decoder; import time\n"
    slow += "forward = Decoder.forward_with_features\n"
    slow += "Decoder.forward_with_features = lambda *a, **k: (time.sleep(0.05), forward(*a, **k))[1]\n"
    command = [sys.executable, "-c", f"{slow}from trtspec.cli.app import main; main({arguments!r})"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forked.Computing(command, **pipes) as process:
        assert process.stdout.read(1)  # generation has started
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.decode() == "interrupted\n"
