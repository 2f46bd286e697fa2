# SPDX-License-Identifier: Apache-2.0
"""Admission control: API keys, rate limits and the limit of concurrent completions."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.core.errors import TrtspecError
from trtspec.serving.gateway.admission import AdmissionControl, load_keys
from trtspec.serving.gateway.config import GatewayLimits
from trtspec.serving.gateway.errors import ApiError


def test_api_keys_are_read_from_the_environment_and_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("three\n\nfour\n")
    with pytest.raises(TrtspecError, match="the API keys are readable by other users"):
        load_keys(str(file), {})
    file.chmod(0o600)
    assert load_keys(str(file), {"TRTSPEC_OPENAI_KEYS": "one, two,"}) == ["one", "two", "three", "four"]
    assert load_keys("", {}) == []
    file.write_text("\n")
    with pytest.raises(TrtspecError, match="the file contains no API key"):
        load_keys(str(file), {})
    with pytest.raises(TrtspecError, match="cannot be read"):
        load_keys(str(tmp_path / "none"), {})


def test_request_without_valid_key_is_rejected() -> None:
    gate = AdmissionControl(GatewayLimits(), ["secret", "other"])
    gate.check("Bearer secret")
    gate.check("Bearer other")
    for wrong in ("", "Bearer", "Bearer secre", "Bearer secret2", "Basic secret"):
        with pytest.raises(ApiError) as caught:
            gate.check(wrong)
        assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    AdmissionControl(GatewayLimits(), []).check("")


def test_rate_limit_is_per_key_and_recovers() -> None:
    now = [0.0]
    gate = AdmissionControl(GatewayLimits(requests_per_minute=2), ["a", "b"], lambda: now[0])
    gate.check("Bearer a")
    gate.check("Bearer a")
    with pytest.raises(ApiError, match="more than 2 requests per minute") as caught:
        gate.check("Bearer a")
    assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "30"})
    gate.check("Bearer b")
    now[0] = 30.0
    gate.check("Bearer a")


def test_generations_beyond_the_limit_get_503_with_retry_after() -> None:
    gate = AdmissionControl(GatewayLimits(max_texts=3), [])
    with gate.reserve(2):
        with pytest.raises(ApiError, match="the limit is 3") as caught, gate.reserve(2):
            pass
        assert (caught.value.status, caught.value.headers) == (503, {"retry-after": "1"})
        with gate.reserve(1):
            assert gate.texts == 3
    assert gate.texts == 0
