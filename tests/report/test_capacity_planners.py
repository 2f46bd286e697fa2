# SPDX-License-Identifier: Apache-2.0
"""The measured acceptance of an artifact, as capacity planners read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Run
from trtspec.report.capacity_planners import conditional_rates, describe_acceptance


def profile(**changes: Any) -> dict[str, Any]:
    """Return the document of a profile of the tiny pair."""
    candidate = {
        "method": "draft_target", "draft": "./draft", "draft_len": 2, "acceptance_rate": 0.7,
        "mean_accepted_len": {"token_weighted": [2.4, 2.2, 2.6]}, "by_position": [0.8, 0.6], "by_kind": [],
        "best": [{"batch": 1, "draft_len": 2, "speedup": 1.5, "interval": [1.4, 1.6]}], "speedups": [],
        "mean_accepted_lens": {"2": 2.4, "3": 2.7}, "by_positions": {"2": [0.8, 0.6], "3": [0.8, 0.56, 0.35]},
    }  # fmt: skip
    return {"format_version": 1, "name": "tiny", "prompts": 9, "tokens": 900, "methods": [candidate | changes]}


def test_conditional_rates_divide_by_the_earlier_position() -> None:
    assert conditional_rates([0.8, 0.56, 0.35]) == [0.8, 0.7, 0.625]
    assert conditional_rates([0.5, 0.0, 0.0]) == [0.5, 0.0, 0.0]
    assert conditional_rates([0.5, 0.51]) == [0.5, 1.0]  # rounding, or fewer drafts at the ends of texts


@pytest.mark.parametrize("rates", [[0.9], [0.8, 0.56, 0.35], [1.0] * 5, [0.0] * 4])
def test_inputs_are_within_the_limits_of_the_planners(rates: list[float]) -> None:
    """AIConfigurator 0.12: 0 <= nextn_accepted <= nextn. The mocker of ai-dynamo 1.6.1: a rate for each of 1 to 5."""
    found = describe_acceptance(rates)
    assert found["dynamo_planner"] == {"speculative_nextn": len(rates)}
    nextn, length, accepted_option, accepted = found["aiconfigurator"]
    assert (nextn, length, accepted_option) == ("--nextn", str(len(rates)), "--nextn-accepted")
    assert 0 <= float(accepted) <= len(rates)
    assert found["mean_accepted_len"] == pytest.approx(1 + float(accepted))
    *_, conditional = found["dynamo_mocker"]
    assert found["aisimulate"] == {"nextn": len(rates), "nextn_accept_rates": conditional}
    again, product = 0.0, 1.0
    for rate in conditional.split(","):
        assert 0 <= float(rate) <= 1
        product *= float(rate)
        again += product
    assert again == pytest.approx(float(accepted), abs=1e-3)


def test_long_drafts_exceed_the_mocker() -> None:
    found = describe_acceptance([0.9] * 6)
    assert found["aiconfigurator"][:2] == ["--nextn", "6"]
    assert not {"dynamo_mocker", "aisimulate"} & found.keys()


@pytest.mark.integration
def test_report_has_the_acceptance_of_the_artifacts_draft_length(artifact: Path, trtspec: Run) -> None:
    """The profile's best length is 2; the artifact drafts 3."""
    Path("profile.json").write_text(json.dumps(profile()))
    done = trtspec("report", artifact, "--format", "capacity", "--results", "profile.json")
    assert done.code == 0, done.err
    assert yaml.safe_load(done.out) == {
        "artifact": "tiny",
        "method": "draft_target",
        "measured": {"prompts": 9, "tokens": 900, "draft_len": 3},
        "mean_accepted_len": 2.71,
        "acceptance_rates": [0.8, 0.56, 0.35],
        "dynamo_planner": {"speculative_nextn": 3},
        "aiconfigurator": ["--nextn", "3", "--nextn-accepted", "1.71"],
        "dynamo_mocker": ["--ais-nextn", "3", "--ais-nextn-accept-rates", "0.8,0.7,0.625"],
        "aisimulate": {"nextn": 3, "nextn_accept_rates": "0.8,0.7,0.625"},
        "mean_accepted_lens": {"2": 2.4, "3": 2.7},
    }


@pytest.mark.integration
def test_report_without_a_fitting_profile_has_no_acceptance(artifact: Path, trtspec: Run) -> None:
    refused = trtspec("report", artifact, "--format", "capacity")
    assert (refused.code, "no profile has the artifact's acceptance" in refused.err) == (1, True)
    Path("earlier.json").write_text(json.dumps(profile(by_positions={})))
    refused = trtspec("report", artifact, "--format", "capacity", "--results", "earlier.json")
    assert (refused.code, "the profile has no acceptance of drafts of 3 tokens" in refused.err) == (1, True)
    assert "profile with --max-draft-len 3" in refused.err


@pytest.mark.integration
def test_report_rejects_results_with_simulated_acceptance(artifact: Path, trtspec: Run) -> None:
    Path("simulated.json").write_text(json.dumps(profile() | {"simulated": {"acceptance_rates": [1.0]}}))
    refused = trtspec("report", artifact, "--results", "simulated.json")
    assert (refused.code, "measured with simulated acceptance" in refused.err) == (1, True)
