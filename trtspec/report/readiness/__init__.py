# SPDX-License-Identifier: Apache-2.0
"""What is done and what is missing before an artifact goes into production: docs/checklist.md has the rows."""
