# SPDX-License-Identifier: Apache-2.0
"""Prune the vocabulary of a draft head to the tokens that its target uses."""
