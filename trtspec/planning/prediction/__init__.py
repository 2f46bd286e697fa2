# SPDX-License-Identifier: Apache-2.0
"""Prediction of the effect of speculation before a build; docs/planning.md has the formulas and their sources."""
