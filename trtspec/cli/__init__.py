# SPDX-License-Identifier: Apache-2.0
"""Command-line interface: one module per command or group of commands."""
