# SPDX-License-Identifier: Apache-2.0
"""What backends are made of: steps, memory, sources as they are, migration, the versions of TensorRT-LLM."""
