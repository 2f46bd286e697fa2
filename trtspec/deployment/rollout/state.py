# SPDX-License-Identifier: Apache-2.0
"""A rollout: a new revision on its way to replace the one that serves, as a record that outlives whoever asked for it.

    staged     the supervisor is to start it      canary     it gets a share of the requests, which is watched
    starting   its server runs                    holding    the last share is below 100 %: somebody has to promote it
    loaded     it says it is ready                promoted   it serves, and the one before drains and ends
    smoke      it answered, its gates are judged
    shadow     it gets copies of requests, whose answers are compared and thrown away

    rolled-back   it was not good enough, or nobody wanted it: the one before serves, as it did all the time

The command stages the revision and writes the record; from then on the supervisor of the deployment carries it out,
so that nothing depends on the command being alive.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trtspec.bench.verification_report import PASS
from trtspec.core.errors import DeployError
from trtspec.core.files import read_bounded, read_typed, replace_file
from trtspec.deployment.journal import MAX_STATE_BYTES, DeploymentJournal, Record

FILE, ASK = "rollout.json", "rollout.ask"
OVER = ("promoted", "rolled-back")
STATES = ("staged", "starting", "loaded", "smoke", "shadow", "canary", "holding", *OVER)
PROMOTE, ROLLBACK = "promote", "rollback"


@dataclass(frozen=True)
class Limits:
    """What a new revision has to keep to, beside the gates of its recipe.

    Attributes:
        shares: percent of the requests, one after the other.
        hold_s: seconds at each share, at least.
        min_requests: requests of our own that both revisions answer at each share, and the least number of others'
            from which their latencies are compared.
        max_failed: requests that it may fail at one share.
        max_latency_ratio: of its latencies over those of the one before.
        min_acceptance: least part of the drafted tokens accepted; 0 where that is not asked for.
        shadow: percent of the others' requests that it gets as well, before the first share and beside all.
    """

    shares: tuple[int, ...] = (5, 25, 100)
    hold_s: float = 10.0
    min_requests: int = 20
    max_failed: int = 0
    max_latency_ratio: float = 2.0
    min_acceptance: float = 0.0
    shadow: int = 0


@dataclass(frozen=True)
class Rollout:
    """One rollout; `record` is the deployment as it will be once it is promoted.

    `share` is its current percentage of requests, `shadow` the results of mirrored requests
    (`trtspec.deployment.rollout.mirroring`), empty without mirroring.
    `undecided` is the policy for undecided gates.
    """

    record: Record
    limits: Limits = field(default_factory=Limits)
    skip_gates: tuple[str, ...] = ()
    state: str = "staged"
    share: int = 0
    reason: str = ""
    shadow: dict[str, Any] = field(default_factory=dict)
    undecided: str = PASS

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def as_dict(self) -> dict[str, Any]:
        """Return its part of the document of `status`."""
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


def read_rollout(journal: DeploymentJournal) -> Rollout | None:
    """Return the last rollout of a deployment; None where there was none."""
    path = journal.root / FILE
    try:
        found = read_typed(Rollout, path, MAX_STATE_BYTES)
        if found.state not in STATES:
            raise ValueError(f"{found.state!r} is not a state of a rollout")
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        hint = "remove the file; a rollout that is under way goes on until the deployment is stopped"
        raise DeployError(f"the rollout cannot be read: {error}", where=str(path), hint=hint) from None


def write_rollout(journal: DeploymentJournal, rollout: Rollout, detail: str = "") -> Rollout:
    """Note where a rollout stands: first in the journal, then as its state."""
    note_rollout(journal, rollout, detail)
    return keep_rollout(journal, rollout)


def note_rollout(journal: DeploymentJournal, rollout: Rollout, detail: str = "") -> None:
    """Add a line to the journal alone."""
    shadow = f"; shadow: {rollout.shadow.get('verdict', '')}" if rollout.shadow else ""
    journal.note(rollout.record, rollout.state, (detail or rollout.reason) + shadow)


def keep_rollout(journal: DeploymentJournal, rollout: Rollout) -> Rollout:
    """Replace what is known of a rollout whose state stays."""
    document = asdict(rollout) | {"shares": rollout.limits.shares}
    data, path = json.dumps(document, indent=1).encode(), journal.root / FILE
    replace_file(path, data)
    return rollout


def ask(journal: DeploymentJournal, what: str) -> None:
    """Leave word for the supervisor: PROMOTE or ROLLBACK."""
    path = journal.root / ASK
    replace_file(path, what.encode())


def asked(journal: DeploymentJournal) -> str:
    """Return what was asked for since this was last looked at, "" for nothing."""
    path = journal.root / ASK
    found = ""
    with suppress(OSError):
        found = read_bounded(path, 100).decode(errors="replace")
        path.unlink()
    return found if found in (PROMOTE, ROLLBACK) else ""


def under_way(journal: DeploymentJournal, record: Record | None) -> Rollout | None:
    """Return the rollout that the supervisor of a deployment carries out; None where there is none, or it died."""
    rollout = read_rollout(journal)
    if rollout is None or rollout.is_over or record is None or not record.is_running:
        return None
    return rollout if rollout.record.pid == record.pid else None


def moved(rollout: Rollout, state: str, *, share: int | None = None, reason: str = "") -> Rollout:
    """Return a rollout in another state."""
    return replace(rollout, state=state, share=rollout.share if share is None else share, reason=reason)
