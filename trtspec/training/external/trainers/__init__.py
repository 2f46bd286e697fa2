# SPDX-License-Identifier: Apache-2.0
"""One file a project that trains drafts; found by scanning this folder."""
