# SPDX-License-Identifier: Apache-2.0
"""The type of a text that a chat template wrote."""

from __future__ import annotations


class Rendered(str):
    """The text of a chat by a template, which writes the special tokens itself: encoding adds none.

    JSON keeps no types: whoever sends such a text elsewhere says so beside it.
    """

    __slots__ = ()
