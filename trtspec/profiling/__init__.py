# SPDX-License-Identifier: Apache-2.0
"""Builds what may draft for a recipe's target, and has it measured: `trtspec profile` and `trtspec tune`."""
