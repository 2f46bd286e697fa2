# SPDX-License-Identifier: Apache-2.0
"""Foundations of every package: errors, diagnostics, extension discovery, files, processes, ports and GPUs."""
