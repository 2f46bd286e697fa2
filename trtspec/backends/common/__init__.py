# SPDX-License-Identifier: Apache-2.0
"""Code shared by several backends: steps, memory plans, unconverted sources, facts about TensorRT-LLM's versions."""
