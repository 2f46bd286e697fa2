# SPDX-License-Identifier: Apache-2.0
"""Measurement: verification and gates, load generation, profiles and tuning."""
