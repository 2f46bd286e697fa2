# SPDX-License-Identifier: Apache-2.0
"""Rule-based advice on whether to speculate and with which method; see docs/advise.md."""
