# SPDX-License-Identifier: Apache-2.0
"""Traffic split between two revisions by the OpenAI gateway, and the gateway's statistics per revision."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

from trtspec.core.errors import DeployError
from trtspec.core.processes import wait_until
from trtspec.deployment.gateway import GATEWAY_CONFIG_FILE, ROUTES, returns_ok, revision_config
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.process_specs import read_process_specs
from trtspec.serving.gateway.command import write_config
from trtspec.serving.gateway.router import router_stats_path
from trtspec.serving.gateway.routing_state import (
    Route,
    RouterStats,
    Routes,
    read_router_stats,
    split_shares,
    write_routes,
)

TAKEN_UP_S = 5.0  # until the gateway has read new routes
POLL_S = 0.1


@dataclass
class TrafficSplit:
    """The split between an old and a new revision of one deployment; does nothing without a gateway."""

    journal: DeploymentJournal
    old: DeploymentRecord
    new: DeploymentRecord
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_entry(self) -> bool:
        return bool(self.old.openai)

    def give(self, share: int, *, alone: bool = False, shadow: int = 0) -> None:
        """Route `share` percent of the requests to the new revision and mirror `shadow` percent of the others to it.

        With `alone`, a revision without a share is removed from the routes. Returns once the gateway uses the new
        routes; raises DeployError if it does not.
        """
        if self.has_entry:
            with self._lock:
                self._give(share, alone, shadow)

    def stats(self) -> RouterStats:
        """Return the gateway's statistics since the shares last changed."""
        return read_router_stats(router_stats_path(self.journal.root / ROUTES))

    def drain(self, record: DeploymentRecord, within_s: float) -> None:
        """Wait until a revision's open requests have ended."""
        if self.has_entry:
            wait_until(lambda: not self.stats().of(record.revision).open, within_s, POLL_S)

    def finalize(self, record: DeploymentRecord) -> None:
        """Make a restarted gateway route to this revision only."""
        if self.has_entry:
            write_config(revision_config(self.journal, record), self.journal.root / GATEWAY_CONFIG_FILE)

    def _give(self, share: int, alone: bool, shadow: int) -> None:
        old, new = (Route(record.revision, 0, revision_config(self.journal, record)) for record in (self.old, self.new))
        new = replace(new, shadow=shadow)
        routes = tuple(route for route in split_shares(old, new, share) if route.share or not alone)
        generation = time.time_ns()
        write_routes(self.journal.root / ROUTES, Routes(generation, routes))
        (url,) = (child.url for child in read_process_specs(self.journal.children))
        if not wait_until(lambda: self.stats().generation == generation or not returns_ok(url), TAKEN_UP_S):
            raise DeployError("the OpenAI gateway did not apply the new shares")
