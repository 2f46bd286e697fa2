# SPDX-License-Identifier: Apache-2.0
"""Rule-based advice on whether to speculate and on the method; docs/advise.md describes the rules."""
