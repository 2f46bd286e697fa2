# SPDX-License-Identifier: Apache-2.0
"""Verification kernels: numpy references, torch implementations and the compiled library."""
