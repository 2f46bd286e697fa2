# SPDX-License-Identifier: Apache-2.0
"""The built-in load generator, which is the default driver."""

from __future__ import annotations

from pathlib import Path

from trtspec.bench.load.rounds import AskRound, run_round


def _make(tokenizer: Path | None, timeout_s: float) -> AskRound:
    return run_round


DRIVER = _make
