# SPDX-License-Identifier: Apache-2.0
"""A running request without a model: where it ends, what it shows, and which numbers it draws."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny import make_tokenizer
from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.engines.embedded.request import EngineSettings, Request, Sampling, Stats, Update
from trtspec.engines.embedded.running import Running, check_request
from trtspec.errors import TrtspecError


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(make_tokenizer(Path(mkdtemp())))


def running(max_new: int = 10, **options: object) -> tuple[Running, list[Update]]:
    """Return a request after the prompt [7, 8], and the list that its updates go to."""
    updates: list[Update] = []
    request = Request((7, 8), max_new, **options)  # type: ignore[arg-type]
    return Running(request, updates.append, tokenizer()), updates


def test_it_ends_at_its_length() -> None:
    request, _ = running(4)
    assert request.begin(1) is None
    assert request.advance(2, [2], 4) is None
    assert request.text == [7, 8, 1, 2, 4]
    assert request.advance(2, [5, 6], 9) == "length"
    assert request.text == [7, 8, 1, 2, 4, 5]
    assert request.stats == Stats(prompt_tokens=2, new_tokens=4, drafted=4, accepted=3, steps=2)
    assert (request.stats.acceptance_rate, request.stats.mean_accepted_len) == (0.75, 2.5)


def test_it_ends_before_an_end_id() -> None:
    request, _ = running(end_ids=(0, 3))
    request.begin(1)
    assert request.advance(3, [2, 3, 4], 5) == "end_id"
    assert request.text == [7, 8, 1, 2]
    assert running(end_ids=(1,))[0].begin(1) == "end_id"
    assert running(2, end_ids=(3,))[0].advance(2, [4, 5], 3) == "length"  # what lies beyond the length never was


def test_the_end_id_wins_over_a_stop_text_behind_it() -> None:
    ids = tokenizer().encode("ab")
    request, _ = running(end_ids=(0,), stop=("b",))
    assert request.advance(2, [ids[0], 0], ids[1]) == "end_id"
    request, _ = running(end_ids=(0,), stop=("b",))
    assert request.advance(2, [*ids], 0) == "stop"


@given(st.text(min_size=1, max_size=12), st.text("ab京", min_size=1, max_size=3), st.integers(1, 5))
def test_a_stop_text_ends_it_with_the_token_that_completes_it(before: str, stop: str, step: int) -> None:
    """The oracle decodes the whole text after every token."""
    ids = tokenizer().encode(f"{before}{stop}ab")
    expected = next(end for end in range(1, len(ids) + 1) if stop in tokenizer().decode(ids[:end]))
    request, _ = running(len(ids) + 9, stop=("never", stop))
    reason = None
    for start in range(0, len(ids), step):
        *chain, last = ids[start : start + step]
        if reason := request.advance(len(chain), chain, last):
            break
    assert reason == "stop"
    assert request.text[2:] == ids[:expected]


def test_updates_hold_back_half_characters() -> None:
    request, updates = running()
    first, second, third = tokenizer().encode("京")
    for token in (first, second):
        request.begin(token)
        request.update(None)
    assert updates == []
    request.begin(third)
    request.update(None)
    assert [update.new_ids for update in updates] == [(first, second, third)]
    request.begin(first)
    request.update("length")
    assert (updates[-1].new_ids, updates[-1].finish_reason) == ((first,), "length")


def test_the_last_update_comes_even_without_news() -> None:
    request, updates = running()
    request.update("cancelled", "gone")
    assert updates == [Update((), "cancelled", Stats(prompt_tokens=2), "gone")]


@pytest.mark.parametrize(
    ("max_new", "own", "expected"), [(10, None, 5), (10, 3, 3), (10, 0, 0), (4, None, 3), (1, None, 0), (4, 9, 3)]
)
def test_how_much_is_drafted(max_new: int, own: int | None, expected: int) -> None:
    assert running(max_new, draft_len=own)[0].draft_len(5) == expected


def test_the_numbers_depend_on_seed_and_history_alone() -> None:
    def drawn(seed: int, lens: list[int]) -> list[float]:
        request, _ = running(sampling=Sampling(temperature=1.0, seed=seed))
        return np.concatenate([request.uniforms(length) for length in lens]).tolist()

    assert drawn(1, [0, 5, 2]) == drawn(1, [7])
    assert len(drawn(1, [0, 5, 2])) == 7
    assert drawn(1, [5]) != drawn(2, [5])
    assert all(0 <= number < 1 for number in drawn(3, [20]))


def test_greedy_requests_draw_nothing() -> None:
    for sampling in (Sampling(), Sampling(temperature=1.0, top_k=1)):
        request, _ = running(sampling=sampling)
        assert not request.samples
        assert request.uniforms(5).tolist() == [0.0] * 5


def test_a_request_that_fits() -> None:
    settings = EngineSettings(max_seq_len=6, max_input_len=4)
    check_request(Request((1, 2, 3, 4), 2, stop=("a",)), settings, vocab_size=5, has_tokenizer=True)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request((), 1), "the prompt is empty"),
        (Request((5,), 1), "the prompt has a token id outside 0..4"),
        (Request((-1,), 1), "the prompt has a token id outside 0..4"),
        (Request((1,) * 5, 1), "the prompt has 5 tokens, at most 4 are taken (engine.max_input_len)"),
        (Request((1,), 6), "prompt and max_tokens are 7 tokens together, at most 6 fit (engine.max_seq_len)"),
        (Request((1,), 0), "max_tokens is 0, expected at least 1"),
        (Request((1,), 1, draft_len=-1), "the draft length is -1, expected 0 or more"),
        (Request((1,), 1, Sampling(float("inf"))), "temperature is inf, expected 0 or more"),
        (Request((1,), 1, Sampling(top_p=1.5)), "top_p is 1.5, expected more than 0 and at most 1"),
        (Request((1,), 1, Sampling(seed=1 << 64)), "seed is 18446744073709551616, expected 0 to 2^64 - 1"),
        (Request((1,), 1, stop=("a",)), "stop texts need the engine to have a tokenizer"),
    ],
)
def test_a_request_that_does_not(request_: Request, message: str) -> None:
    settings = EngineSettings(max_seq_len=6, max_input_len=4)
    with pytest.raises(TrtspecError) as refused:
        check_request(request_, settings, vocab_size=5, has_tokenizer=False)
    assert str(refused.value) == message


def test_openmp_workers_spin_briefly_unless_the_user_says_otherwise() -> None:
    code = "import os, trtspec.engines.embedded; print(os.environ['GOMP_SPINCOUNT'])"
    for environment, expected in (({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7")):
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == expected
