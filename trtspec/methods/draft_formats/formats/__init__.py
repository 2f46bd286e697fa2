# SPDX-License-Identifier: Apache-2.0
"""Draft file formats (dialects), one module each, discovered by scanning this package."""
