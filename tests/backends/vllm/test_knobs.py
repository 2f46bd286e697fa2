# SPDX-License-Identifier: Apache-2.0
"""vLLM: schedules of draft lengths and block verification, by release."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.source_contexts import facts, said, source_context
from trtspec.backends.vllm import BACKEND
from trtspec.backends.vllm.arguments import speculative_config

SCHEDULE = [{"max_batch": 2, "draft_len": 5}, {"max_batch": 3, "draft_len": 2}]
BLOCK = {"speculation__verify": "block"}


def errors(version: str, method: str, **changes: Any) -> list[str]:
    found = said(BACKEND.check(source_context("vllm", version, method, draft_facts=facts(), **changes)))
    return [each.message for each in found.values() if each.severity == "error"]


def config(method: str = "draft_target", **changes: Any) -> dict[str, Any]:
    return speculative_config(source_context("vllm", "0.32.0", method, **changes), "./draft")


@pytest.mark.parametrize(
    ("most", "schedule", "ranges"),
    [
        (4, SCHEDULE, [[1, 2, 5], [3, 3, 2], [4, 4, 0]]),
        (3, SCHEDULE, [[1, 2, 5], [3, 3, 2]]),
        (
            64,
            [{"max_batch": 8, "draft_len": 5}, {"max_batch": 16, "draft_len": 0}],
            [[1, 8, 5], [9, 16, 0], [17, 64, 0]],
        ),
    ],
)
def test_schedule_becomes_batch_size_ranges_without_drafts_beyond(most, schedule, ranges) -> None:
    found = config(speculation__schedule=schedule, engine__max_batch_size=most)
    assert found["num_speculative_tokens_per_batch_size"] == ranges
    assert found["num_speculative_tokens"] == 5


def test_schedule_is_rejected_for_releases_and_methods_with_a_fixed_length() -> None:
    asked = {"speculation__schedule": SCHEDULE}
    assert errors("0.24.0", "draft_target", **asked) == []
    assert errors("0.23.0", "draft_target", **asked) == [
        "vLLM 0.23.0 does not adapt the draft length to the batch size"
    ]
    for method in ("suffix", "pard", "p_eagle", "dflash", "dspark"):
        assert (
            errors("0.32.0", method, **asked)[-1]
            == f"vLLM does not adapt the draft length of {method} to the batch size"
        )


def test_block_verification_uses_probabilistic_draft_sampling() -> None:
    assert config(**BLOCK)["rejection_sample_method"] == "block"
    assert config(**BLOCK)["draft_sample_method"] == "probabilistic"
    assert not {"rejection_sample_method", "draft_sample_method"} & config().keys()


@pytest.mark.parametrize(
    ("version", "method", "message"),
    [
        ("0.31.0", "draft_target", ""),
        ("0.29.0", "eagle3", ""),
        ("0.24.0", "eagle3", "vLLM 0.24.0 does not support block verification for every target"),
        ("0.28.0", "eagle3", "vLLM 0.28.0 does not support block verification for every target"),
        (
            "0.30.0",
            "draft_target",
            "vLLM runs this drafter on its V1 model runner, which verifies draft_target token by token",
        ),
        ("0.32.0", "pard", "vLLM runs this drafter on its V1 model runner, which verifies pard token by token"),
        (
            "0.32.0",
            "ngram",
            "ngram does not provide draft probabilities, so block verification accepts the same tokens as standard",
        ),
    ],
)
def test_block_verification_is_rejected_where_vllm_would_ignore_it(version, method, message) -> None:
    assert errors(version, method, **BLOCK) == ([message] if message else [])


@pytest.mark.parametrize("method", ["draft_target", "pard", "ngram", "suffix", "eagle3", "p_eagle", "dflash", "mtp"])
def test_emitted_config_has_no_lossy_acceptance_rule(method: str) -> None:
    found = config(method)
    assert found.get("rejection_sample_method", "standard") in ("standard", "block")
    assert not [key for key in found if key.startswith(("synthetic", "fly"))]
