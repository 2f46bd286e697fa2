# SPDX-License-Identifier: Apache-2.0
"""Speculation methods, one module or folder each, with options, checks, head conversion, drafter and training."""
