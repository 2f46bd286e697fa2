# SPDX-License-Identifier: Apache-2.0
"""Dialects of draft files, one module each, discovered by scanning this package."""
