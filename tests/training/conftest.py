# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a child process that dies at a failpoint."""

from tests._support.durability import die_at, finish, start  # noqa: F401
