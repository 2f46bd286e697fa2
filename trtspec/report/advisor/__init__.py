# SPDX-License-Identifier: Apache-2.0
"""Rule-based advice on speculation and on the choice of its method; docs/advise.md describes the rules."""
