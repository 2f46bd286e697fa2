# SPDX-License-Identifier: Apache-2.0
"""Deployment of an artifact: supervision, journal, revisions and rollouts."""
