# SPDX-License-Identifier: Apache-2.0
"""Train a draft on a user's prompts, and test on held-out prompts whether it has improved."""
