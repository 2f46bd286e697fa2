# SPDX-License-Identifier: Apache-2.0
"""Shared parts of backends: steps, memory, unconverted checkpoints, migration and the versions of TensorRT-LLM."""
