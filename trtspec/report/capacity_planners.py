# SPDX-License-Identifier: Apache-2.0
"""Measured acceptance in the terms of capacity planners: Dynamo's planner and mocker, AIConfigurator and AISimulate.

They predict a service's speed without a GPU, but have no built-in acceptance: it depends on the draft and the prompts.
Names and limits are from the wheels ai-dynamo 1.6.1 (dynamo/planner/config/planner_config.py, dynamo/mocker/args.py)
and aiconfigurator 0.12.0 (aiconfigurator/cli/main.py). aisimulate has the commands of aiconfigurator, and its own
engine configuration (aisimulate/config/engine.py).

Rates here are unconditional: of the steps that draft a position, the share that accepts it. The mocker and AISimulate
expect conditional rates: the share if all earlier positions were accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from trtspec.core.errors import TrtspecError
from trtspec.planning.documents import ProfileDocument
from trtspec.report.evidence import ReportInputs, matching_candidate

MOCKER_POSITIONS = 5  # the mocker's and AISimulate's limit
NEEDED = "run trtspec profile for its recipe, or pass a saved profile with --results"


def render_capacity(facts: ReportInputs) -> str:
    """Return a YAML document with the acceptance of an artifact's profile for each planner.

    Raises TrtspecError if no profile of the artifact has the acceptance of its draft length.
    """
    candidate, profile = matching_candidate(facts), facts.counted(ProfileDocument)
    if candidate is None or profile is None:
        raise TrtspecError("no profile has the artifact's acceptance", where=str(facts.root), hint=NEEDED)
    draft_len = facts.manifest.recipe.speculation.draft_len or candidate.draft_len
    own = candidate.by_position if candidate.draft_len == draft_len else []
    rates = candidate.by_positions.get(str(draft_len), own)
    if not rates:
        message = f"the profile has no acceptance of drafts of {draft_len} tokens"
        raise TrtspecError(message, where=str(facts.root), hint=f"profile with --max-draft-len {draft_len}")
    document = {
        "artifact": facts.name,
        "method": candidate.method,
        "measured": {"prompts": profile.prompts, "tokens": profile.tokens, "draft_len": draft_len},
        **describe_acceptance(rates),
    }
    if candidate.mean_accepted_lens:
        document["mean_accepted_lens"] = candidate.mean_accepted_lens
    comment = "# Acceptance of drafts for capacity planners, measured by trtspec; docs/planning.md explains the keys.\n"
    return comment + yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=100)


def describe_acceptance(rates: Sequence[float]) -> dict[str, Any]:
    """Return the inputs of each planner for the unconditional acceptance rates of a draft's positions."""
    positions, accepted = len(rates), round(sum(rates), 4)
    conditional = conditional_rates(rates)
    found: dict[str, Any] = {
        "mean_accepted_len": round(1 + accepted, 4),
        "acceptance_rates": [round(rate, 4) for rate in rates],
        "dynamo_planner": {"speculative_nextn": positions},
        "aiconfigurator": ["--nextn", str(positions), "--nextn-accepted", f"{accepted:g}"],
    }
    if positions <= MOCKER_POSITIONS:
        words = ",".join(f"{rate:g}" for rate in conditional)
        found["dynamo_mocker"] = ["--ais-nextn", str(positions), "--ais-nextn-accept-rates", words]
        found["aisimulate"] = {"nextn": positions, "nextn_accept_rates": words}
    return found


def conditional_rates(rates: Sequence[float]) -> list[float]:
    """Return each position's rate among the steps that accepted all earlier ones; 0 after a position without any."""
    pairs = zip(rates, [1.0, *rates], strict=False)
    return [round(min(1.0, rate / before), 4) if before else 0.0 for rate, before in pairs]
