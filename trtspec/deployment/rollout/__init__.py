# SPDX-License-Identifier: Apache-2.0
"""Rollouts: state, controller, canary analysis and traffic split between two revisions."""
