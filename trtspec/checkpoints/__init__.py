# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: sources, safetensors, model configuration, tokenizers, conversion, quantization and sharding."""
