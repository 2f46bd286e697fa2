# SPDX-License-Identifier: Apache-2.0
"""Two revisions behind a gateway, each a strict double of Triton's gRPC service: routing, failover and mirroring."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests._support.manifests import resolved
from tests.serving.gateway.running import Fake, RunningGateway, fake_triton, serve_gateway, wait_until
from tests.serving.triton.answering import response
from tests.serving.triton.artifact import make_tokenizer
from trtspec.serving.gateway.command import same_text
from trtspec.serving.gateway.config import (
    BackendStats,
    GatewayConfig,
    GatewayLimits,
    MirrorStats,
    Route,
    Routes,
    read_router_stats,
    write_routes,
)
from trtspec.serving.gateway.router import router_stats_path
from trtspec.store.artifact import BackendRecord, Manifest
from trtspec.store.file_records import FileRecord

OLD, NEW = 1, 2
GONE = (grpc.StatusCode.UNAVAILABLE, "Socket closed")


def says(text: str, counted: tuple[int, int] = (0, 0)) -> Any:
    """Respond with a text, one token per response; a prompt of more than two tokens resumes it."""
    ids = [byte - 32 for byte in text.encode()]  # the first token is '!', id 1

    def serve(model: str, inputs: dict[str, Any]) -> list[Any]:
        done = inputs["input_ids"].size - 2
        return [response(output_ids=[[[one]]], sequence_length=[[1]]) for one in ids[done:]]

    return serve


@dataclass
class Pair:
    """A gateway in front of two fakes; `share` sets the share of the new revision."""

    entry: RunningGateway
    old: Fake
    new: Fake
    generation: int = 0

    @property
    def shadowed(self) -> MirrorStats:
        return read_router_stats(router_stats_path(Path(self.entry.config.routes_file))).shadow

    def share(self, new: int, takes: int = 0, **of_new: int) -> None:
        """Set the share of the new revision; `takes` is its maximum sequence length, by default the old one's."""
        self.generation += 1
        config = self.entry.config
        newer = replace(config, max_seq_len=takes or config.max_seq_len)
        routes = (
            Route(OLD, 100 - new, replace(config, grpc=self.old.address, fingerprint="old")),
            Route(NEW, new, replace(newer, grpc=self.new.address, fingerprint="new"), **of_new),
        )
        file = Path(config.routes_file)
        write_routes(file, Routes(self.generation, routes))
        wait_until(lambda: read_router_stats(router_stats_path(file)).generation == self.generation)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("versions")
    tokenizer, limits = make_tokenizer(root / "tokenizer"), GatewayLimits(resume_s=2.0, max_texts=8)
    with fake_triton() as old, fake_triton() as new:
        config = GatewayConfig(old.address, 0, "m", "tensorrt_llm", str(tokenizer), 200, 100, limits=limits)
        with serve_gateway(replace(config, routes_file=str(root / "routes"), same_text="the same")) as entry:
            yield Pair(entry, old, new)


@pytest.fixture
def pair(served: Pair) -> Pair:
    for fake in (served.old, served.new):
        fake.serve, fake.status, fake.ready = says("abcd"), None, True
        fake.closes_early = fake.waits = False
        fake.made.clear()
    return served


def breaks_off(fake: Fake, after: str = "") -> None:
    """Let a server break off in the middle of each completion."""
    fake.serve, fake.status, fake.closes_early, fake.ready = says(after), GONE, True, False


def ask(pair: Pair, **body: Any) -> Any:
    return pair.entry.post(**{"prompt": "xy", "max_tokens": 4, "temperature": 0, **body})


def streamed(answer: Any) -> str:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    assert "error" not in lines[-1]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


@pytest.mark.parametrize(("keys", "same"), [("aa", True), ("ab", False), (("", ""), False)])
def test_same_text_key_depends_only_on_the_target(keys: str, same: bool) -> None:
    """The draft head is part of the target's checkpoint and must not affect the key."""
    found = set()
    for number, key in enumerate(keys):
        files = [FileRecord(path="checkpoints/target/rank0.safetensors", size=1, segments=(str(number) * 64,))]
        backend = BackendRecord(name="embedded", why="a test")
        made = {"recipe": resolved(), "steps": (), "files": files, "tools": {}, "gpu": {}, "backend": backend}
        found.add(same_text(Manifest(**made, target_key=key * 64)))
    assert "" not in found
    assert (len(found) == 1) is same


@pytest.mark.slow
def test_failed_new_revision_falls_back_to_the_previous_one_at_full_share(pair: Pair) -> None:
    pair.share(100)
    assert ask(pair).json()["system_fingerprint"] == "new"
    breaks_off(pair.new)
    answer = ask(pair)
    assert (answer.status_code, answer.json()["system_fingerprint"]) == (200, "old")


def test_previous_revision_resumes_a_stream_interrupted_by_the_new_one(pair: Pair) -> None:
    pair.share(100)
    breaks_off(pair.new, after="ab")
    assert streamed(ask(pair, stream=True)) == "abcd"


@pytest.mark.slow
def test_rolled_back_revision_is_not_used_as_fallback(pair: Pair) -> None:
    pair.share(0)
    breaks_off(pair.old)
    assert ask(pair).status_code == 503
    assert not pair.new.made


@pytest.mark.slow
def test_mirror_traffic_copies_the_configured_share_of_requests(pair: Pair) -> None:
    pair.share(0, shadow=50)
    for number in range(8):
        assert ask(pair, stream=number % 2 > 0, temperature=number // 4).status_code == 200
        wait_until(lambda sent=(number + 1) // 2: pair.shadowed.sent == sent)
    seen = pair.shadowed
    assert (seen.failed, seen.compared, seen.different, seen.dropped) == (0, 2, 0, 0), "two are sampled"
    assert len(seen.old_s) == len(seen.new_s) == 4
    assert len(pair.new.made) == 4
    told = 'trtspec_openai_shadow_{}_total{{revision="2",outcome="{}"}}'
    for what, outcome, count in (("requests", "ok", 4), ("requests", "dropped", 0), ("texts", "same", 2)):
        assert pair.entry.metric(told.format(what, outcome)) == count
    pair.share(50)
    assert pair.shadowed == MirrorStats()
    assert pair.entry.metric(told.format("requests", "ok")) == 4, "the counters must survive the end of mirroring"


@pytest.mark.slow
def test_different_mirrored_text_is_counted_but_not_sent_to_the_client(pair: Pair) -> None:
    pair.share(0, shadow=100)
    pair.new.serve = says("abXd")
    assert ask(pair, n=2).json()["choices"][1]["text"] == "abcd"
    wait_until(lambda: pair.shadowed.sent == 1)
    assert (pair.shadowed.compared, pair.shadowed.different) == (2, 2)
    assert pair.entry.metric('trtspec_openai_shadow_texts_total{revision="2",outcome="different"}') == 2
    pair.share(0)


@pytest.mark.slow
def test_failed_or_hanging_mirror_request_is_counted_without_client_impact(pair: Pair) -> None:
    """At most four mirrored requests hang; further ones are dropped, and all end with the trial."""
    pair.share(0, shadow=100)
    breaks_off(pair.new)
    assert ask(pair).json()["system_fingerprint"] == "old"
    wait_until(lambda: pair.shadowed.failed == 1)
    assert "the model is unavailable" in pair.shadowed.said
    pair.new.status, pair.new.closes_early, pair.new.waits, pair.new.serve = None, False, True, says("ab")
    began = time.monotonic()
    assert [ask(pair).status_code for _ in range(7)] == [200] * 7
    assert time.monotonic() - began < 5
    wait_until(lambda: pair.shadowed.dropped == 3)
    held = pair.new.made[-4:]
    pair.share(0)
    wait_until(lambda: all(made.left.is_set() for made in held))
    assert pair.shadowed == MirrorStats()


@pytest.mark.slow
def test_mirrored_text_is_not_written_to_disk(pair: Pair) -> None:
    pair.share(0, shadow=100)
    pair.old.serve = pair.new.serve = says("SECRET")
    ask(pair, max_tokens=6)
    wait_until(lambda: pair.shadowed.sent == 1)
    root = Path(pair.entry.config.routes_file).parent
    assert not [file for file in root.glob("routes*") if b"SECRET" in file.read_bytes()]
    pair.share(0)


def test_request_rejected_only_by_the_new_revision_counts_as_its_failure(pair: Pair) -> None:
    """For example, because it lost its chat template or accepts only shorter prompts."""
    pair.share(100, takes=3)
    answer = ask(pair, max_tokens=2)
    assert (answer.status_code, answer.json()["system_fingerprint"]) == (200, "old")
    wait_until(lambda: seen_of(pair, NEW).failed == 1)
    assert "it rejects a request that revision 1 accepts" in seen_of(pair, NEW).said


def test_request_rejected_by_both_revisions_is_a_client_error(pair: Pair) -> None:
    pair.share(100, takes=3)
    assert ask(pair, max_tokens=-1).status_code == 400
    assert ask(pair, max_tokens=1).json()["system_fingerprint"] == "new"
    wait_until(lambda: seen_of(pair, NEW).requests == 1)
    assert seen_of(pair, NEW).failed == 0


def seen_of(pair: Pair, revision: int) -> BackendStats:
    return read_router_stats(router_stats_path(Path(pair.entry.config.routes_file))).of(revision)
