# SPDX-License-Identifier: Apache-2.0
"""Deployment targets, one module or folder each, found by scanning this folder."""
