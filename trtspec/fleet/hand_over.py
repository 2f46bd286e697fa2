# SPDX-License-Identifier: Apache-2.0
"""Hand-over of outputs between machines through the team store, which may fail for some time.

A build on one machine continues without its team store. Machines with separate stores need it: without it, an output
would be built again elsewhere. They wait for it, up to WAIT_S for each output.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trtspec.core.errors import StepError
from trtspec.store.entry import StoreEntry
from trtspec.store.step import Step
from trtspec.store.store import Store

WAIT_S, PAUSE_S = 120.0, 5.0


def fetch_output(step: Step, store: Store, on_wait: Callable[[str], None] = lambda reason: None) -> StoreEntry | None:
    """Return an output that another machine has built, or None if no store has it.

    Wait for a team store that has failed; `on_wait` is called with the reason.
    """
    deadline, reported = time.monotonic() + WAIT_S, ""
    while (entry := store.fetch(step)) is None and step.is_shared and store.remote:
        if not (reason := store.remote.failure()) or time.monotonic() > deadline:
            return None
        reported = _report(reason, reported, on_wait)
        time.sleep(PAUSE_S)
        store.remote.resume()
    return entry


def send_output(step: Step, store: Store, on_wait: Callable[[str], None]) -> None:
    """Make sure that the team store has an output of this machine; raise StepError if it does not accept it."""
    deadline, reported = time.monotonic() + WAIT_S, ""
    while step.is_shared and store.remote and (reason := store.remote.failure()):
        if time.monotonic() > deadline:
            message = f"the output was built, but the team store has not accepted it for {WAIT_S:.0f} s: {reason}"
            raise StepError(message, hint="repair the team store and run the same command again")
        reported = _report(reason, reported, on_wait)
        time.sleep(PAUSE_S)
        store.remote.resume()
        store.obtain(step)


def _report(reason: str, reported: str, on_wait: Callable[[str], None]) -> str:
    """Report a reason unless it was reported already; return it."""
    if reason != reported:
        on_wait(f"waiting for the team store: {reason}")
    return reason
