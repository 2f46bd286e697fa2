# SPDX-License-Identifier: Apache-2.0
"""Conversion of draft heads between the file formats of several projects, which are described as data."""
