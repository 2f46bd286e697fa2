# SPDX-License-Identifier: Apache-2.0
"""Converts draft heads between the file formats of several projects; names and conventions of each are data."""
