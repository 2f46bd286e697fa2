# SPDX-License-Identifier: Apache-2.0
"""DSpark: a block net with a small sequential head, so that each token of a block depends on the previous one.

deepseek-ai/DeepSpec adds two heads to DFlash's net: a low-rank Markov head, and a head that estimates acceptance.
"""

from __future__ import annotations

from trtspec.methods.dflash import block_net_method

METHOD = block_net_method(
    "dspark",
    "a net trained for the target fills a block, each token depending on the one before it",
    "a DSpark net: it has a Markov head",
)
