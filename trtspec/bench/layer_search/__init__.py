# SPDX-License-Identifier: Apache-2.0
"""Search for the layers that a target can skip when it drafts for itself."""
