# SPDX-License-Identifier: Apache-2.0
"""Compare what is known of engine versions with their newest wheels: `make upstream` (docs/extending.md)."""
