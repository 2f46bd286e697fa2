# SPDX-License-Identifier: Apache-2.0
"""Verification kernels: a numpy reference, torch implementations and bindings to the compiled library."""
