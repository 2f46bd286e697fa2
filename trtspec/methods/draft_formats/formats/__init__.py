# SPDX-License-Identifier: Apache-2.0
"""Dialects, one module each; discovered by scanning this package."""
