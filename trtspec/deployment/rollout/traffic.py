# SPDX-License-Identifier: Apache-2.0
"""The requests of OpenAI's clients, shared out between two revisions by the entry, and what that saw of each."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

from trtspec.core.errors import DeployError
from trtspec.core.processes import wait_until
from trtspec.deployment.gateway import ENTRY_FILE, ROUTES, answers, revision_config
from trtspec.deployment.journal import DeploymentJournal, Record
from trtspec.deployment.process_specs import read_children
from trtspec.serving.gateway.command import write_config
from trtspec.serving.gateway.router import sight_of
from trtspec.serving.gateway.routing_state import Route, Routes, Sight, read_sight, shares_of, write_routes

TAKEN_UP_S = 5.0  # until the entry has read new routes
POLL_S = 0.1


@dataclass
class Shares:
    """Of an old and a new revision of one deployment; where it has no entry, all of this does nothing."""

    journal: DeploymentJournal
    old: Record
    new: Record
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_entry(self) -> bool:
        return bool(self.old.openai)

    def give(self, share: int, *, alone: bool = False, shadow: int = 0) -> None:
        """Give the new revision a percent of the requests; returns when the entry has taken that up.

        It gets `shadow` percent of the others as well. With `alone` the revision that gets nothing is not even named.
        Raises DeployError where the entry does not take that up.
        """
        if self.has_entry:
            with self._lock:
                self._give(share, alone, shadow)

    def sight(self) -> Sight:
        """Return what the entry saw since the shares were changed."""
        return read_sight(sight_of(self.journal.root / ROUTES))

    def drain(self, record: Record, within_s: float) -> None:
        """Wait until a revision has no open request."""
        if self.has_entry:
            wait_until(lambda: not self.sight().of(record.revision).open, within_s, POLL_S)

    def settle(self, record: Record) -> None:
        """Let an entry that is started again know a revision alone."""
        if self.has_entry:
            write_config(revision_config(self.journal, record), self.journal.root / ENTRY_FILE)

    def _give(self, share: int, alone: bool, shadow: int) -> None:
        old, new = (Route(record.revision, 0, revision_config(self.journal, record)) for record in (self.old, self.new))
        new = replace(new, shadow=shadow)
        routes = tuple(route for route in shares_of(old, new, share) if route.share or not alone)
        generation = time.time_ns()
        write_routes(self.journal.root / ROUTES, Routes(generation, routes))
        (url,) = (child.url for child in read_children(self.journal.children))
        if not wait_until(lambda: self.sight().generation == generation or not answers(url), TAKEN_UP_S):
            raise DeployError("the entry for OpenAI's clients did not take up the new shares")
