# SPDX-License-Identifier: Apache-2.0
"""`trtspec profile --server` against a server with known acceptance and times."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bench.load.scripted import Script, scripted
from tests.conftest import Run
from trtspec.bench.load.rounds import Round, ask_all
from trtspec.bench.load.sample import RequestSample

TOKENS, OWN_LEN, ACCEPTED, FIRST_S = 25, 4, 2, 0.01
SPEED_ALONE = TOKENS / (FIRST_S + (TOKENS - 1) * 0.01)
ASKED = (
    "--prompts",
    "default",
    "--num-prompts",
    4,
    "--max-tokens",
    TOKENS,
    "--set",
    "engine.max_batch_size=1",
    "--json",
)


@pytest.fixture(autouse=True)
def by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace measured times with computed ones, and use few requests."""

    async def ask(*asked: Any) -> Round:
        done = await ask_all(*asked)
        return replace(done, samples=[timed(sample) for sample in done.samples])

    monkeypatch.setattr("trtspec.bench.profile.server_profile.ask_all", ask)
    monkeypatch.setattr("trtspec.bench.profile.server_profile.LEAST", 4)
    monkeypatch.setattr("trtspec.bench.profile.server_profile.MOST_ROUNDS", 2)


def timed(sample: RequestSample) -> RequestSample:
    """Set the first token's time to 10 ms, and a step's to 10 ms plus 2 ms per drafted token."""
    steps = len(sample.chunks_s) - 1
    if steps < 1:
        return sample
    step_s = step_seconds((sample.drafted or 0) // steps)
    return replace(sample, chunks_s=tuple(FIRST_S + step * step_s for step in range(steps + 1)))


def step_seconds(draft_len: int) -> float:
    return 0.01 + 0.002 * draft_len


def drafting(draft_len: int) -> Script:
    """Return a script that accepts two tokens, then none of the third, wherever a step begins."""
    accepted = accepted_of(draft_len)
    histogram = [accepted.count(length) for length in range(OWN_LEN + 1)]
    drafts = (len(accepted) * draft_len, sum(accepted), len(accepted)) if draft_len else None
    return Script([(0.0, 1), *[(0.0, each + 1) for each in accepted]], drafts, histogram)


def accepted_of(draft_len: int) -> list[int]:
    """Return the accepted tokens of each step."""
    of_three = {0: [0, 0, 0], 1: [1, 0]}.get(draft_len, [ACCEPTED])
    return of_three * ((TOKENS - 1) // 3)


def of_length(draft_len: int) -> Script:
    """Return the script of a server with this default draft length."""
    script = drafting(draft_len)
    return replace(script, histogram=script.histogram[: draft_len + 1])


def answer(body: dict[str, Any]) -> Script:
    return drafting(body.get("num_draft_tokens", OWN_LEN))


def unasked(body: dict[str, Any]) -> Script:
    """Draft at full length, like servers that ignore `num_draft_tokens`."""
    return drafting(OWN_LEN)


def expected(draft_len: int) -> float:
    """Return the speed-up for complete responses."""
    steps = len(accepted_of(draft_len))
    return (FIRST_S + (TOKENS - 1) * step_seconds(0)) / (FIRST_S + steps * step_seconds(draft_len))


def method(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["methods"]
    assert isinstance(found, dict)
    return found


def test_server_that_accepts_num_draft_tokens_is_profiled_at_every_length(trtspec: Run, recipe: Path) -> None:
    with scripted(answer) as server:
        document = trtspec("profile", recipe, "--server", server.url, *ASKED, "--write").document
        shown = trtspec("profile", recipe, "--server", server.url, *ASKED[:-1]).out
    found = method(document)
    assert {row["draft_len"] for row in document["server"]["speeds"]} == {0, 1, 2, 3, 4}
    assert (document["server"]["draft_len"], document["server"]["api"]) == (OWN_LEN, "completions")
    assert found["mean_accepted_lens"] == {"1": 1.5, "2": 3.0, "3": 3.0, "4": 3.0}
    assert found["by_position"] == [1.0, 1.0]
    assert document["by_position"] == [1.0, 1.0]
    for row in found["speedups"]:
        assert row["speedup"] == pytest.approx(expected(row["draft_len"]), abs=1e-3)
    for row in document["server"]["speeds"]:
        assert row["output_tokens_per_s"] == pytest.approx(SPEED_ALONE * expected(row["draft_len"]), abs=0.1)
    assert (document["recommendation"]["draft_len"], found["verdict"]) == (2, "pays")
    assert yaml.safe_load(recipe.read_text())["speculation"]["draft_len"] == 2
    assert f"{server.url}, model scripted" in shown
    assert "draft_len 4" in shown


@pytest.mark.parametrize(("sure", "rounds"), [(0.05, 3), (-1.0, 4)])
def test_rounds_continue_until_the_interval_is_narrow_or_the_maximum(
    trtspec: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch, sure: float, rounds: int
) -> None:
    """All rounds take the same time, so the interval has width 0."""
    monkeypatch.setattr("trtspec.bench.profile.server_profile.LEAST_ROUNDS", 3)
    monkeypatch.setattr("trtspec.bench.profile.server_profile.MOST_ROUNDS", 4)
    monkeypatch.setattr("trtspec.bench.profile.server_profile.MAX_REL_CI", sure)
    with scripted(answer) as server:
        trtspec("profile", recipe, "--server", server.url, *ASKED)
        of_load = len(server.of_load())
    asked = 4  # prompts for the acceptance of each length except 0, and requests per round
    assert of_load == asked * OWN_LEN + asked * (OWN_LEN + 1) * rounds


def test_shorter_lengths_are_derived_from_a_fixed_length_server(trtspec: Run, recipe: Path) -> None:
    """Step times are linear here and drafts depend only on the text, so derived results are exact."""
    with scripted(unasked, ours=False) as server, scripted(lambda body: drafting(0), ours=False) as alone:
        document = trtspec("profile", recipe, "--server", server.url, "--baseline", alone.url, *ASKED).document
    found = method(document)
    assert {row["draft_len"] for row in document["server"]["speeds"]} == {0, 4}
    assert {row["draft_len"] for row in found["step_seconds"]} == {0, 4}
    assert found["mean_accepted_lens"] == {"1": 1.5, "2": 3.0, "3": 3.0, "4": 3.0}
    for row in found["speedups"]:
        assert row["speedup"] == pytest.approx(expected(row["draft_len"]), abs=1e-3)
    assert document["recommendation"]["draft_len"] == 2
    assert not any("num_draft_tokens" in server.asked[number] for number in server.of_load())


def test_lengths_between_two_servers_are_interpolated(
    trtspec: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step times are linear from one drafted token, but not from zero."""
    monkeypatch.setattr(
        sys.modules[__name__], "step_seconds", lambda draft_len: 0.01 + 0.001 * draft_len + 0.003 * (draft_len > 0)
    )
    with (
        scripted(unasked, ours=False) as server,
        scripted(lambda body: of_length(1), ours=False) as shorter,
        scripted(lambda body: drafting(0), ours=False) as alone,
    ):
        servers = ("--server", server.url, "--server", shorter.url, "--baseline", alone.url)
        document = trtspec("profile", recipe, *servers, *ASKED).document
        twice = trtspec("profile", recipe, *servers, "--server", shorter.url, *ASKED)
    found = method(document)
    assert document["server"]["url"] == server.url
    assert {row["draft_len"] for row in found["step_seconds"]} == {0, 1, 4}
    assert {row["draft_len"] for row in found["speedups"]} == {1, 2, 3, 4}
    for row in found["speedups"]:
        assert row["speedup"] == pytest.approx(expected(row["draft_len"]), abs=1e-3)
    assert f"{shorter.url}: it drafts 1 tokens, the same as another server" in twice.err


def test_additional_server_must_report_its_draft_length(trtspec: Run, recipe: Path) -> None:
    with scripted(answer) as server, scripted(lambda body: replace(of_length(1), histogram=[12])) as other:
        outcome = trtspec("profile", recipe, "--server", server.url, "--server", other.url, *ASKED)
    assert outcome.code != 0
    assert "its responses do not report the draft length" in outcome.err


def test_unreported_positions_limit_lengths_to_the_measured_ones(trtspec: Run, recipe: Path) -> None:
    lens = ("--max-draft-len", 1, "--set", f"speculation.draft_len={OWN_LEN}")
    with scripted(answer, models=()) as server:
        document = trtspec("profile", recipe, "--server", server.url, *ASKED, *lens).document
    found = method(document)
    assert document["server"]["api"] == "triton"
    assert found["by_position"] == []
    assert document["server"]["draft_len"] == OWN_LEN  # from the recipe
    assert {row["draft_len"] for row in found["speedups"]} == {1, OWN_LEN}


def test_prompts_that_a_server_rejects_are_counted(trtspec: Run, recipe: Path) -> None:
    seen: list[str] = []
    with scripted(lambda body: refused(body, seen)) as server:
        document = trtspec("profile", recipe, "--server", server.url, *ASKED).document
    assert (document["prompts"], document["prompts_left_out"]) == (3, 1)


def refused(body: dict[str, Any], seen: list[str]) -> Script:
    """Reject the first prompt that is not a probe."""
    if body["prompt"] != "Hello" and not seen:
        seen.append(body["prompt"])
    return Script(status=400, refusal="too long") if body["prompt"] in seen else answer(body)


def test_failed_requests_are_not_counted_as_too_long_prompts(trtspec: Run, recipe: Path) -> None:
    """One request fails in the first pass, another in a round; only the other requests' times count."""
    seen: list[str] = []

    def script(body: dict[str, Any]) -> Script:
        seen.append(body["prompt"])
        loads = sum(prompt != "Hello" for prompt in seen)
        fails = body["prompt"] != "Hello" and loads in (1, 20)
        return Script(status=500, refusal="out of memory") if fails else answer(body)

    with scripted(script) as server:
        document = trtspec("profile", recipe, "--server", server.url, *ASKED).document
        seen.clear()
        said = trtspec("profile", recipe, "--server", server.url, *ASKED[:-1])
    assert (document["prompts"], document["prompts_left_out"]) == (3, 0)
    assert document["server"]["requests_failed"] == 2
    for row in method(document)["speedups"]:
        assert row["speedup"] == pytest.approx(expected(row["draft_len"]), abs=1e-3)
    assert "2 requests failed and were excluded: the server returned 500: out of memory" in said.out + said.err
    assert "too long" not in said.out + said.err


def test_server_that_fails_in_every_round_ends_the_profile(trtspec: Run, recipe: Path) -> None:
    """A quarter of the timed requests fail, so the concurrency is lower than intended."""
    seen: list[str] = []

    def script(body: dict[str, Any]) -> Script:
        seen.append(body["prompt"])
        timing = len(seen) > 4 * OWN_LEN + 4  # after four responses of each length, and the probes
        return Script(status=503, refusal="busy") if timing and len(seen) % 4 == 0 else answer(body)

    with scripted(script) as server:
        outcome = trtspec("profile", recipe, "--server", server.url, *ASKED)
    assert outcome.code != 0
    assert "requests failed in each round of 1 concurrent requests: the server returned 503: busy" in outcome.err


def silent(body: dict[str, Any]) -> Script:
    return replace(answer(body), drafts=None)


def at_once(body: dict[str, Any]) -> Script:
    return replace(answer(body), chunks=((0.0, TOKENS),))


@pytest.mark.parametrize(
    ("script", "ours", "said"),
    [
        (silent, True, "its responses do not report drafts"),
        (at_once, True, "its responses are not streamed"),
        (unasked, False, "no baseline to compare with"),
        (lambda body: Script(status=500, refusal="broken"), True, "broken"),
        (lambda body: answer(body) if body["prompt"] == "Hello" else Script(), True, "all have fewer than two tokens"),
    ],
)
def test_unsuitable_server_is_rejected_with_the_reason(
    trtspec: Run, recipe: Path, script: Any, ours: bool, said: str
) -> None:
    with scripted(script, ours=ours) as server:
        outcome = trtspec("profile", recipe, "--server", server.url, *ASKED)
    assert outcome.code != 0
    assert said in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--server", "http://127.0.0.1:1"), "the server cannot be reached"),
        (
            ("--server", "http://127.0.0.1:1", "--methods", "ngram"),
            "--server cannot be combined with --drafts or --methods",
        ),
        (("--baseline", "http://127.0.0.1:1"), "require --server"),
        (("--server", "./here"), "requires a server, not an artifact"),
        (("--server", "http://127.0.0.1:1", "--set", "speculation={method: none}"), "does not speculate"),
    ],
)
def test_invalid_arguments_are_rejected(trtspec: Run, recipe: Path, arguments: tuple[str, ...], said: str) -> None:
    outcome = trtspec("profile", recipe, *arguments)
    assert outcome.code != 0
    assert said in outcome.err
    assert "Traceback" not in outcome.err
