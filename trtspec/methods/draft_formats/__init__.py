# SPDX-License-Identifier: Apache-2.0
"""Draft heads from the files of one project to those of another: what each calls and counts how, as data."""
