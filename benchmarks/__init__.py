# SPDX-License-Identifier: Apache-2.0
"""Benchmarks; a package, so that no other one of this name on the path is taken for it."""
