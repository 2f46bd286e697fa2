# SPDX-License-Identifier: Apache-2.0
"""A child process that dies at a named point."""

from tests._support.durability import die_at, finish, start  # noqa: F401
