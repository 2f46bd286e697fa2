# SPDX-License-Identifier: Apache-2.0
"""The result of verification for one row of a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VerifyResult:
    """`path`: the accepted nodes from the root down, without the root (a chain's are 1, 2, ...); `token` comes next."""

    path: list[int]
    token: int
