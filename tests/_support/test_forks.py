# SPDX-License-Identifier: Apache-2.0
"""Forks of a test's process do not collect the garbage of earlier tests."""

from __future__ import annotations

import gc
import os


class Connection:
    """An object in a cycle that says when it is collected."""

    def __init__(self, says: int) -> None:
        self.says, self.itself = says, self

    def __del__(self) -> None:
        os.write(self.says, b"collected")


def test_fork_does_not_collect_objects_of_its_parent() -> None:
    receiving, sending = os.pipe()
    gc.disable()
    try:
        Connection(sending)
        if not (child := os.fork()):
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        os.write(sending, b".")
        assert os.read(receiving, 100) == b"."
    finally:
        gc.enable()
        gc.collect()
        os.close(receiving)
        os.close(sending)
