# SPDX-License-Identifier: Apache-2.0
"""Rollout state machine, run in the supervisor next to the live server until promotion or rollback.

The new server gets no client requests before its gates pass; then the OpenAI gateway splits the requests between the
revisions. On any failure, requests first return to the old revision, and then the new server ends. Unexpected
exceptions also end the rollout and are logged; they never affect the deployment.
"""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from trtspec.bench.artifact import artifact_prompts
from trtspec.bench.gates import active_gates
from trtspec.bench.verify import deploy_load, ensure_served_gates
from trtspec.core.errors import DeployError, StepTimeout, TrtspecError, describe_os_error_at
from trtspec.core.processes import wait_until
from trtspec.deployment.gateway import GATEWAY_CONFIG_FILE, ROUTES, is_gateway_ready, revision_config
from trtspec.deployment.health import is_draft_failure
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.process_group import read_process_specs
from trtspec.deployment.revision import remove_old_revisions, revision_dir, server_url
from trtspec.deployment.rollout import canary
from trtspec.deployment.rollout.canary import CanaryStats, PairedProbes, ProbePair, mirroring_summary
from trtspec.deployment.rollout.state import (
    PROMOTE,
    ROLLBACK,
    RolloutRecord,
    note_rollout,
    save_rollout,
    take_command,
    write_rollout,
)
from trtspec.deployment.server_process import LOOK_EVERY_S, ManagedServer
from trtspec.serving.gateway.command import same_text, write_config
from trtspec.serving.gateway.config import (
    MirrorStats,
    Route,
    RouterStats,
    Routes,
    read_router_stats,
    split_shares,
    write_routes,
)
from trtspec.serving.gateway.router import router_stats_path
from trtspec.serving.triton.client import Client
from trtspec.store.artifact import Artifact, load_artifact, load_manifest

TAKEN_UP_S = 5.0  # time limit for the gateway to load new routes
POLL_S = 0.1


@dataclass
class TrafficSplit:
    """The split of requests between the old and the new revision of a deployment; no effect without a gateway."""

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
        if not self.has_entry:
            return
        with self._lock:
            records = (self.old, self.new)
            old, new = (Route(each.revision, 0, revision_config(self.journal, each)) for each in records)
            routes = split_shares(old, replace(new, shadow=shadow), share)
            generation = time.time_ns()
            used = tuple(route for route in routes if route.share or not alone)
            write_routes(self.journal.root / ROUTES, Routes(generation, used))
            (url,) = (child.url for child in read_process_specs(self.journal.children))
            if not wait_until(lambda: self.stats().generation == generation or not is_gateway_ready(url), TAKEN_UP_S):
                raise DeployError("the OpenAI gateway did not apply the new shares")

    def stats(self) -> RouterStats:
        """Return the gateway's statistics since the shares last changed."""
        return read_router_stats(router_stats_path(self.journal.root / ROUTES))

    def drain(self, record: DeploymentRecord, within_s: float) -> None:
        """Wait up to `within_s` seconds until a revision's open requests have ended."""
        if self.has_entry:
            wait_until(lambda: not self.stats().of(record.revision).open, within_s, POLL_S)

    def finalize(self, record: DeploymentRecord) -> None:
        """Write the gateway's configuration so that a restarted gateway routes to this revision only."""
        if self.has_entry:
            write_config(revision_config(self.journal, record), self.journal.root / GATEWAY_CONFIG_FILE)


GATE_S = 10.0  # time limit for one request of the gates; all are short
NOTE_EVERY_S = 1.0
FAULT_S = 0.1  # interval of fault checks while both servers answer, which takes seconds under load
ENDED_S = 1.0  # time for open requests after a rollback; the old revision resumes most of them
WHY_S = 0.6  # time for the watching thread to find the cause of a failed request
ALONE_S = 2.5  # time for open requests if the drafter is dead: the old revision cannot resume texts of two models
TRIAL_STOPPED_S = 1.0  # half of a live server's limit, because ending the new server costs no requests
UNFIT = "min_speedup"  # a gate that cannot be measured next to a busy server

Replace = Callable[[ManagedServer, DeploymentRecord, str], ManagedServer]


class RolloutAborted(Exception):
    """Raised if the rollout must not continue; the text is the reason."""


class RolloutController(threading.Thread):
    """The thread that carries out one rollout.

    `replace_keeper` makes a server the live one and returns the previous one. `over` is set when the deployment ends.
    `say` writes a line to the log.
    """

    def __init__(
        self,
        journal: DeploymentJournal,
        old: DeploymentRecord,
        rollout: RolloutRecord,
        replace_keeper: Replace,
        over: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(name="rollout", daemon=True)
        self.journal, self.old, self.rollout = journal, old, rollout
        self._replace, self._over, self._say = replace_keeper, over, say
        place = revision_dir(journal, rollout.record.revision)
        self._keeper = ManagedServer(journal.root, place, rollout.record.shm_prefix)
        self._artifact: Artifact  # set at the start of the rollout
        self._comparable = False
        self._fault = self._wanted = ""
        self._watching: threading.Thread | None = None
        self._done = threading.Event()
        self._shares = TrafficSplit(journal, old, rollout.record)
        self._saved_at = 0.0
        self._withdrawing, self._withdrawn = threading.Lock(), False

    def run(self) -> None:
        try:
            self._carry_out()
        except RolloutAborted as reason:
            self._roll_back(str(reason))
        except (DeployError, StepTimeout) as error:
            self._withdraw()
            wait_until(lambda: bool(self._fault), WHY_S)
            self._roll_back(self._fault or error.message)
        except TrtspecError as error:
            self._roll_back(self._fault or error.message)
        except Exception as error:
            self._roll_back(self._reason(error))
        finally:
            self._done.set()

    def _reason(self, error: Exception) -> str:
        """Return the reason for a rollback after an unexpected error; the traceback of a bug is logged."""
        if isinstance(error, OSError) and (refused := describe_os_error_at(error, str(self.journal.root))):
            return refused
        self._say(f"the rollout failed:\n{traceback.format_exc()}")
        return f"{type(error).__name__}: {error}; see the log for the traceback"

    def end(self, drain_s: float) -> None:
        """End the rollout's server with the deployment, at the latest after about `drain_s` seconds."""
        wait_until(self._done.is_set, drain_s + ENDED_S)
        if not self._done.is_set():
            self._keeper.end(0.0)

    def _carry_out(self) -> None:
        self._artifact = load_artifact(revision_dir(self.journal, self.rollout.record.revision) / "artifact")
        before = load_manifest(revision_dir(self.journal, self.old.revision) / "artifact")
        texts = {same_text(before), same_text(self._artifact.manifest)}
        self._comparable = len(texts) == 1 and texts != {""}  # the same target must generate the same texts
        self._note("starting", "the server is starting")
        self._keeper.start()
        self._watching = threading.Thread(target=self._watch, name="rollout-watch", daemon=True)
        self._keeper.until_ready(self._is_over, TRIAL_STOPPED_S)
        self._note("loaded", "the models are loaded")
        self._keeper.until_answered(self._is_over, TRIAL_STOPPED_S)
        self._watching.start()
        self._note("smoke", "a request was answered; evaluating the gates")
        self._judge_gates()
        limits = self.rollout.limits
        for share in (*([0] if limits.shadow else []), *limits.shares):
            if self._wanted != PROMOTE:
                self._canary(share)
        if limits.shares[-1] < 100 and self._wanted != PROMOTE:
            self._note("holding", f"{self.rollout.traffic(limits.shares[-1])}, until it is promoted by command")
            while self._wanted != PROMOTE:  # unbounded: monitors the revision until a command arrives
                self._check(canary.rejection_reason(limits, self._canary_stats(time.monotonic(), [])))
                time.sleep(LOOK_EVERY_S)
        self._promote()

    def _watch(self) -> None:
        """Wait for a failure of the new server; then return its requests to the old revision and end the server.

        Threads that wait for the new server then return.
        """
        if fault := self._keeper.fault(lambda: self._over.is_set() or self._done.is_set(), TRIAL_STOPPED_S):
            self._fault = fault
            self._withdraw()
            self._let_end()
            self._keeper.end(0.0)

    def _check(self, objection: str = "") -> None:
        """Raise RolloutAborted if the rollout must not continue, for example because of `objection`."""
        front = self._keeper.front
        front_fault = f"the {front.running.child.name} {wrong}" if front and (wrong := front.wrong()) else ""
        if fault := self._fault or objection or front_fault:
            raise RolloutAborted(fault)
        if self._over.is_set():
            raise RolloutAborted("the deployment was stopped")
        self._wanted = take_command(self.journal) or self._wanted
        if self._wanted == ROLLBACK:
            raise RolloutAborted("requested by command")

    def _is_over(self) -> bool:
        with suppress(RolloutAborted):
            self._check()
            return False
        return True

    def _note(self, state: str, detail: str, share: int | None = None) -> None:
        self._check()
        share = self.rollout.share if share is None else share
        self.rollout = write_rollout(self.journal, replace(self.rollout, state=state, share=share), detail)
        self._say(f"revision {self.rollout.record.revision} is {state}: {detail}")

    def _judge_gates(self) -> None:
        """Evaluate the recipe's gates on the new server; raises TrtspecError if one fails."""
        root, recipe = self._artifact.root, self._artifact.recipe
        skip = {*self.rollout.skip_gates, UNFIT}
        if recipe.speculation.method == "none" or not active_gates(recipe, skip):
            return
        load = deploy_load(root, skip, lambda what, done, total: self._check())
        client = Client.at(self._keeper.server.url, GATE_S)
        self._run_checked(lambda: ensure_served_gates(client, root, load, undecided=self.rollout.undecided))

    def _canary(self, share: int) -> None:
        """Hold a share of the requests until enough samples exist; share 0 only mirrors. Raises RolloutAborted."""
        self._shares.give(share, shadow=self.rollout.limits.shadow)
        state = "canary" if share else "shadow"
        self._note(state, self.rollout.traffic(share), share if self._shares.has_entry else 0)
        began, limits = time.monotonic(), self.rollout.limits
        texts = [prompt.text for prompt in artifact_prompts(self._artifact.root, None)]
        pairs = PairedProbes(server_url(self.journal, self.old.revision), self._keeper.server.url, texts)
        while self._wanted != PROMOTE:
            due = limits.min_requests * min(1.0, (time.monotonic() - began) / max(limits.hold_s, 1e-9))
            if len(pairs.found) < due:
                self._run_checked(pairs.ask)
            seen = self._canary_stats(began, pairs.found)
            self._check(canary.rejection_reason(limits, seen))
            if canary.has_enough_samples(limits, seen):
                return
            time.sleep(min(LOOK_EVERY_S, limits.hold_s / (2 * limits.min_requests + 1)))

    def _run_checked(self, ask: Callable[[], object]) -> None:
        """Run `ask` in a thread while checking for faults and commands; raises RolloutAborted or the error of `ask`."""
        failed: list[Exception] = []

        def run() -> None:
            try:
                ask()
            except Exception as error:
                failed.append(error)

        asking = threading.Thread(target=run, name="rollout-ask", daemon=True)
        asking.start()
        while asking.is_alive():  # unbounded: each of its requests has one
            self._check()
            asking.join(FAULT_S)
        if failed:
            raise failed[0]

    def _canary_stats(self, began: float, pairs: list[ProbePair]) -> CanaryStats:
        stats = self._shares.stats()
        new, old = stats.of(self.rollout.record.revision), stats.of(self.old.revision)
        self._update_mirroring(stats.shadow)
        return CanaryStats(time.monotonic() - began, old, new, pairs, self._comparable, stats.shadow)

    def _update_mirroring(self, seen: MirrorStats) -> None:
        """Update the mirroring results, and save them at most once per NOTE_EVERY_S."""
        share = self.rollout.limits.shadow
        if not share or (found := mirroring_summary(seen, share)) == self.rollout.shadow:
            return
        self.rollout = replace(self.rollout, shadow=found)
        if time.monotonic() - self._saved_at > NOTE_EVERY_S:
            self._saved_at = time.monotonic()
            save_rollout(self.journal, self.rollout)

    def _promote(self) -> None:
        """Make the new revision live, and end the old one after it has finished its requests."""
        self._shares.give(100)
        self._check()
        record = replace(self.rollout.record, state="live", restarts=0, reason="")
        self.rollout = write_rollout(self.journal, replace(self.rollout, state="promoted", share=100), "it is live")
        before = self._replace(self._keeper, record, f"revision {record.revision} is live")
        self._done.set()  # from here on the supervisor owns the server
        self._say(f"revision {record.revision} is promoted; revision {self.old.revision} is draining")
        with self._logged_errors():
            self._shares.drain(self.old, self.old.drain_s)
        with self._logged_errors():
            before.end(self.old.drain_s + 1)
        with self._logged_errors():
            self._shares.give(100, alone=True)
            self._shares.finalize(record)
        with self._logged_errors():
            remove_old_revisions(self.journal, record.revision, {self.old.revision})

    def _roll_back(self, reason: str) -> None:
        """Return all requests to the old revision and end the new one."""
        self._withdraw()
        self._let_end()
        with self._logged_errors():
            self._keeper.end(0.0)
        self.rollout = replace(self.rollout, state="rolled-back", share=0, reason=reason)
        # before recording the end, so that readers of the record find no files, and to free space on a full disk
        shutil.rmtree(revision_dir(self.journal, self.rollout.record.revision), ignore_errors=True)
        self._note_end()
        self._withdraw()  # again: the first call may have failed on a full disk
        self._say(f"revision {self.rollout.record.revision} is rolled back: {reason}")

    def _withdraw(self) -> None:
        """Return all requests to the old revision, once; both the watching and the rollout thread may call it.

        The new revision is removed from the routes; its remaining requests count as open until they end.
        """
        with self._withdrawing, self._logged_errors():
            if not self._withdrawn:
                self._shares.give(0, alone=True)
                self._withdrawn = True

    def _let_end(self) -> None:
        """Wait briefly for the new revision's open requests, unless its server cannot finish them."""
        if self._over.is_set() or (self._fault and not is_draft_failure(self._fault)):
            return
        self._shares.drain(self.rollout.record, ALONE_S if self._fault else ENDED_S)

    def _note_end(self) -> None:
        """Record the end of the rollout, with retries on a full disk: no other rollout can begin before."""
        left: list[Callable[[DeploymentJournal, RolloutRecord], object]] = [note_rollout, save_rollout]
        while left:  # unbounded: until there is disk space, or the deployment ends
            is_last = self._over.is_set()
            with self._logged_errors():
                left[0](self.journal, self.rollout)
                left.pop(0)
                continue
            if is_last:
                return
            self._over.wait(NOTE_EVERY_S)

    @contextmanager
    def _logged_errors(self) -> Iterator[None]:
        """Context manager that logs exceptions instead of raising them, because the remaining steps must run too."""
        try:
            yield
        except Exception as error:
            self._say(f"error during the rollout: {type(error).__name__}: {error}")
