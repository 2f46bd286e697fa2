# SPDX-License-Identifier: Apache-2.0
"""`trtspec profile --server`, against a server whose acceptance and times are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Run
from tests.load.scripted import Script, scripted

TOKENS, OWN_LEN, ACCEPTED = 25, 4, 2
ASKED = ("--prompts", "default", "--samples", 4, "--max-tokens", TOKENS, "--set", "engine.max_batch_size=1", "--json")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time few requests: these answers come by the clock."""
    monkeypatch.setattr("trtspec.profiling.asking.LEAST", 4)
    monkeypatch.setattr("trtspec.profiling.asking.ROUNDS", 2)


def drafting(draft_len: int) -> Script:
    """Accept the first two tokens of every draft; a step takes 10 ms and 2 ms for each token that is drafted."""
    accepted = min(ACCEPTED, draft_len)
    steps = (TOKENS - 1) // (accepted + 1)
    chunks = [(0.01, 1), *[(0.01 + 0.002 * draft_len, accepted + 1)] * steps]
    histogram = [0] * (OWN_LEN + 1)
    histogram[accepted] = steps
    return Script(chunks, (steps * draft_len, steps * accepted, steps) if draft_len else None, histogram)


def answer(body: dict[str, Any]) -> Script:
    return drafting(body.get("num_draft_tokens", OWN_LEN))


def unasked(body: dict[str, Any]) -> Script:
    """Draft as much as ever, as servers do that read no `num_draft_tokens`."""
    return drafting(OWN_LEN)


def expected(draft_len: int) -> float:
    """Return the speed-up of whole answers."""
    alone, steps = 0.01 + (TOKENS - 1) * 0.01, (TOKENS - 1) / (min(ACCEPTED, draft_len) + 1)
    return alone / (0.01 + steps * (0.01 + 0.002 * draft_len))


def method(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["methods"]
    assert isinstance(found, dict)
    return found


@pytest.mark.alone
@pytest.mark.slow  # a server answers by the clock
def test_a_server_that_is_told_how_much_to_draft(trtspec: Run, recipe: Path) -> None:
    with scripted(answer) as server:
        document = trtspec("profile", recipe, "--server", server.url, *ASKED, "--write").document
        shown = trtspec("profile", recipe, "--server", server.url, *ASKED[:-1]).out
    found = method(document)
    assert {row["draft_len"] for row in document["server"]["speeds"]} == {0, 1, 2, 3, 4}
    assert (document["server"]["draft_len"], document["server"]["api"]) == (OWN_LEN, "completions")
    assert found["mean_accepted_lens"] == {"1": 2.0, "2": 3.0, "3": 3.0, "4": 3.0}
    assert found["by_position"] == [1.0, 1.0]
    assert document["by_position"] == [1.0, 1.0]
    for row in found["speedups"]:
        assert row["speedup"] == pytest.approx(expected(row["draft_len"]), rel=0.1)
    assert (document["recommendation"]["draft_len"], found["verdict"]) == (2, "pays")
    assert yaml.safe_load(recipe.read_text())["speculation"]["draft_len"] == 2
    assert f"{server.url}, model scripted" in shown
    assert "draft_len 4" in shown


@pytest.mark.alone
@pytest.mark.slow  # a server answers by the clock
def test_of_another_its_own_length_tells_of_shorter_ones(trtspec: Run, recipe: Path) -> None:
    """Steps lie on a line here, and every draft is accepted alike, so that nothing is lost."""
    with scripted(unasked, ours=False) as server, scripted(lambda body: drafting(0), ours=False) as alone:
        document = trtspec("profile", recipe, "--server", server.url, "--baseline", alone.url, *ASKED).document
    found = method(document)
    assert {row["draft_len"] for row in document["server"]["speeds"]} == {0, 4}
    assert {row["draft_len"] for row in found["step_seconds"]} == {0, 4}
    assert found["mean_accepted_lens"] == {"1": 2.0, "2": 3.0, "3": 3.0, "4": 3.0}
    for row in found["speedups"]:
        assert row["speedup"] == pytest.approx(expected(row["draft_len"]), rel=0.1)
    assert document["recommendation"]["draft_len"] == 2
    assert not any("num_draft_tokens" in server.asked[number] for number in server.of_load())


def test_where_places_are_not_told_no_other_length_is(trtspec: Run, recipe: Path) -> None:
    lens = ("--max-draft-len", 1, "--set", f"speculation.draft_len={OWN_LEN}")
    with scripted(answer, models=()) as server:
        document = trtspec("profile", recipe, "--server", server.url, *ASKED, *lens).document
    found = method(document)
    assert document["server"]["api"] == "triton"
    assert found["by_position"] == []
    assert document["server"]["draft_len"] == OWN_LEN  # which is the recipe's
    assert {row["draft_len"] for row in found["speedups"]} == {1, OWN_LEN}


def test_prompts_that_a_server_refuses_are_counted(trtspec: Run, recipe: Path) -> None:
    seen: list[str] = []
    with scripted(lambda body: refused(body, seen)) as server:
        document = trtspec("profile", recipe, "--server", server.url, *ASKED).document
    assert (document["prompts"], document["prompts_left_out"]) == (3, 1)


def refused(body: dict[str, Any], seen: list[str]) -> Script:
    """Refuse the first prompt that is no probe."""
    if body["prompt"] != "Hello" and not seen:
        seen.append(body["prompt"])
    return Script(status=400, refusal="too long") if body["prompt"] in seen else answer(body)


def silent(body: dict[str, Any]) -> Script:
    return replace(answer(body), drafts=None)


def at_once(body: dict[str, Any]) -> Script:
    return replace(answer(body), chunks=((0.0, TOKENS),))


@pytest.mark.parametrize(
    ("script", "ours", "said"),
    [
        (silent, True, "its answers tell of no drafts"),
        (at_once, True, "its answers come in one piece"),
        (unasked, False, "there is nothing to compare with"),
        (lambda body: Script(status=500, refusal="broken"), True, "broken"),
        (lambda body: answer(body) if body["prompt"] == "Hello" else Script(), True, "none has two tokens"),
    ],
)
def test_a_server_that_does_not_do_is_told(trtspec: Run, recipe: Path, script: Any, ours: bool, said: str) -> None:
    with scripted(script, ours=ours) as server:
        outcome = trtspec("profile", recipe, "--server", server.url, *ASKED)
    assert outcome.code != 0
    assert said in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--server", "http://127.0.0.1:1"), "the server cannot be reached"),
        (("--server", "http://127.0.0.1:1", "--methods", "ngram"), "a server drafts by its own method"),
        (("--baseline", "http://127.0.0.1:1"), "are of a server"),
        (("--server", "./here"), "this is an artifact"),
        (("--server", "http://127.0.0.1:1", "--set", "speculation={method: none}"), "drafts nothing"),
    ],
)
def test_what_does_not_go_together_is_refused(
    trtspec: Run, recipe: Path, arguments: tuple[str, ...], said: str
) -> None:
    outcome = trtspec("profile", recipe, *arguments)
    assert outcome.code != 0
    assert said in outcome.err
    assert "Traceback" not in outcome.err
