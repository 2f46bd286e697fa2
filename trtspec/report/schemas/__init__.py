# SPDX-License-Identifier: Apache-2.0
"""Schemas of saved documents, limited to the fields of reports; values out of bounds are rejected."""
