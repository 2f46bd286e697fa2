# SPDX-License-Identifier: Apache-2.0
"""Measurements: verification and gates, load tests, profiles and tuning."""
