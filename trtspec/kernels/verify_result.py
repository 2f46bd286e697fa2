# SPDX-License-Identifier: Apache-2.0
"""The result of verification for one row of a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VerifyResult:
    """`path`: the accepted nodes from the root down, without the root (1, 2, ... for a chain); `token` comes next."""

    path: list[int]
    token: int
