# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding for TensorRT-LLM: build, verify, serve and benchmark artifacts."""

__version__ = "0.1.0"
