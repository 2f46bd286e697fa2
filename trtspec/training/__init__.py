# SPDX-License-Identifier: Apache-2.0
"""Training of a draft on a user's prompts, and its evaluation on held-out prompts."""
