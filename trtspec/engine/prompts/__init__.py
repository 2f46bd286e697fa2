# SPDX-License-Identifier: Apache-2.0
"""Prompt files, chat templates and their rendering."""
