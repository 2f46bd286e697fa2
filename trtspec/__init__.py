# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding for TensorRT-LLM, from checkpoint to served, verified, faster text."""

__version__ = "0.1.0"
