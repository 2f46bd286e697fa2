# SPDX-License-Identifier: Apache-2.0
"""Reduces the vocabulary of a draft head to the tokens that its target uses."""
