# SPDX-License-Identifier: Apache-2.0
"""The state file of a rollout, which the supervisor carries out independently of the command that started it.

    staged     waits for the supervisor           canary     gets a share of the requests and is monitored
    starting   the server is starting             holding    stays at a last share below 100 % until promoted
    loaded     the server reports ready           promoted   is live; the previous revision drains and ends
    smoke      it answered; gates are evaluated
    shadow     gets mirrored requests, whose responses are compared and discarded

    rolled-back   it was rejected or cancelled; the previous revision remained live throughout

The command stages the revision and writes the file. Afterwards the deployment's supervisor carries out the rollout,
even if the command ends.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from trtspec.bench.gates import PASS
from trtspec.core.errors import DeployError
from trtspec.core.files import read_bounded, read_typed, replace_file
from trtspec.deployment.journal import MAX_STATE_BYTES, DeploymentJournal, DeploymentRecord

FILE, ASK = "rollout.json", "rollout.ask"
OVER = ("promoted", "rolled-back")
STATES = ("staged", "starting", "loaded", "smoke", "shadow", "canary", "holding", *OVER)
PROMOTE, ROLLBACK = "promote", "rollback"


@dataclass(frozen=True)
class RolloutPolicy:
    """The rollout policy of a new revision, in addition to the gates of its recipe.

    Attributes:
        shares: percentages of the requests, in order.
        hold_s: minimum seconds at each share.
        min_requests: synthetic requests per share that both revisions must answer, and the minimum number of client
            requests for comparing latencies.
        max_failed: failed requests allowed per share.
        max_latency_ratio: maximum ratio of the new to the old latency.
        min_acceptance: minimum acceptance rate; 0 for none.
        shadow: percentage of the other requests to mirror, before the first share and at all shares.
    """

    shares: tuple[int, ...] = (5, 25, 100)
    hold_s: float = 10.0
    min_requests: int = 20
    max_failed: int = 0
    max_latency_ratio: float = 2.0
    min_acceptance: float = 0.0
    shadow: int = 0


@dataclass(frozen=True)
class RolloutRecord:
    """One rollout.

    Attributes:
        record: the deployment's record after promotion.
        share: current percentage of requests for the new revision.
        shadow: results of mirrored requests (`trtspec.deployment.rollout.canary`); empty without mirroring.
        undecided: the policy for undecided gates.
    """

    record: DeploymentRecord
    limits: RolloutPolicy = field(default_factory=RolloutPolicy)
    skip_gates: tuple[str, ...] = ()
    state: str = "staged"
    share: int = 0
    reason: str = ""
    shadow: dict[str, Any] = field(default_factory=dict)
    undecided: str = PASS

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def traffic(self, share: int) -> str:
        """Describe the requests that the new revision gets at `share` percent; at 0, only mirrored requests."""
        if not share and self.limits.shadow:
            return f"{self.limits.shadow} % of the requests mirrored, responses discarded"
        return f"{share} % of the requests" if self.record.openai else "synthetic requests"

    def as_dict(self) -> dict[str, Any]:
        """Return the `rollout` part of the `status` document."""
        record = self.record
        return {
            "revision": record.revision,
            "artifact": record.artifact,
            "manifest": record.manifest,
            "state": self.state,
            "share": self.share,
            "shares": [*self.limits.shares],
            "reason": self.reason,
            "endpoints": record.endpoints,
        } | ({"shadow": self.shadow} if self.shadow else {})


def read_rollout(journal: DeploymentJournal) -> RolloutRecord | None:
    """Return the last rollout of a deployment, or None; raises DeployError if its file is unreadable."""
    path = journal.root / FILE
    try:
        found = read_typed(RolloutRecord, path, MAX_STATE_BYTES)
        if found.state not in STATES:
            raise ValueError(f"{found.state!r} is not a state of a rollout")
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        hint = "remove the file; a rollout in progress continues until the deployment is stopped"
        raise DeployError(f"the rollout cannot be read: {error}", where=str(path), hint=hint) from None


def write_rollout(journal: DeploymentJournal, rollout: RolloutRecord, detail: str = "") -> RolloutRecord:
    """Record a transition of a rollout, first in the journal, then in the state file."""
    note_rollout(journal, rollout, detail)
    return save_rollout(journal, rollout)


def note_rollout(journal: DeploymentJournal, rollout: RolloutRecord, detail: str = "") -> None:
    shadow = f"; mirrored: {rollout.shadow.get('verdict', '')}" if rollout.shadow else ""
    journal.note(rollout.record, rollout.state, (detail or rollout.reason) + shadow)


def save_rollout(journal: DeploymentJournal, rollout: RolloutRecord) -> RolloutRecord:
    """Replace the state file without a journal entry, and return the rollout."""
    document = asdict(rollout) | {"shares": rollout.limits.shares}
    replace_file(journal.root / FILE, json.dumps(document, indent=1).encode())
    return rollout


def send_command(journal: DeploymentJournal, what: str) -> None:
    """Write a command for the supervisor, PROMOTE or ROLLBACK, to the deployment's directory."""
    replace_file(journal.root / ASK, what.encode())


def take_command(journal: DeploymentJournal) -> str:
    """Remove the pending command and return it: PROMOTE, ROLLBACK, or "" for none."""
    path = journal.root / ASK
    found = ""
    with suppress(OSError):
        found = read_bounded(path, 100).decode(errors="replace")
        path.unlink()
    return found if found in (PROMOTE, ROLLBACK) else ""


def active_rollout(journal: DeploymentJournal, record: DeploymentRecord | None) -> RolloutRecord | None:
    """Return the rollout that a running supervisor carries out at present, or None."""
    rollout = read_rollout(journal)
    if rollout is None or rollout.is_over or record is None or not record.is_running:
        return None
    return rollout if rollout.record.pid == record.pid else None
