# SPDX-License-Identifier: Apache-2.0
"""What speculation will bring, said before anything is built: docs/planning.md has the formulas and their sources."""
