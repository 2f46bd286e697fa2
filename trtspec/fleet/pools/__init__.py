# SPDX-License-Identifier: Apache-2.0
"""Kinds of pool, one module each, called after the first part of `--on`: local:4, ray://HOST:PORT."""
