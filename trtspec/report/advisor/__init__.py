# SPDX-License-Identifier: Apache-2.0
"""Whether to speculate, with which method, and which rule says so: docs/advise.md has the rules and their sources."""
