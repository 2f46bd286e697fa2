# SPDX-License-Identifier: Apache-2.0
"""The type of a text rendered by a chat template."""

from __future__ import annotations


class RenderedText(str):
    """A chat rendered by a template, which includes the special tokens: encoding adds none.

    JSON does not preserve the type, so senders must transmit it separately.
    """

    __slots__ = ()
