# SPDX-License-Identifier: Apache-2.0
"""Adapts a draft to somebody's own prompts, and proves on held-out ones that it has become better."""
