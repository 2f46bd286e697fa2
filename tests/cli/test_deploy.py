# SPDX-License-Identifier: Apache-2.0
"""Parsing of percentages by `deploy`."""

from __future__ import annotations

import pytest

from trtspec.cli.deploy import parse_canary_shares, parse_mirror_share
from trtspec.core.errors import DeployError


@pytest.mark.parametrize(("said", "percent"), [(None, None), ("30%", 30), (" 5% ", 5), ("0", 0)])
def test_mirror_share_is_parsed_as_a_percentage(said: str | None, percent: int | None) -> None:
    assert parse_mirror_share(said) == percent


@pytest.mark.parametrize("said", ["101%", "-1%", "half", "", "5%,10%"])
def test_invalid_mirror_share_is_rejected(said: str) -> None:
    with pytest.raises(DeployError, match="expected a percent") as caught:
        parse_mirror_share(said)
    assert caught.value.hint == "e.g. --shadow 30%; 0% disables mirroring"


def test_canary_shares_must_increase() -> None:
    assert parse_canary_shares("5%, 25%,100%") == (5, 25, 100)
    for said in ("25%,5%", "0%", "a", "5%,5%"):
        with pytest.raises(DeployError, match="expected increasing percentages"):
            parse_canary_shares(said)
