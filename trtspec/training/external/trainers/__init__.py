# SPDX-License-Identifier: Apache-2.0
"""One module per project that trains drafts; found by scanning this package."""
