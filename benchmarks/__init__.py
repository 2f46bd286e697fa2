# SPDX-License-Identifier: Apache-2.0
"""Benchmarks; a package, so that another module of this name on the path cannot shadow it."""
