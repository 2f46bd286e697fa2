# SPDX-License-Identifier: Apache-2.0
"""A stand-in for SGLang's Engine: strict about what it is told, answers from a table in the model's directory.

Names and refusals are those of sgl-project/sglang:python/sglang/srt/{server_args.py,entrypoints/engine.py,sampling/
sampling_params.py,managers/tokenizer_manager.py}@v0.5.23. It computes nothing and proves nothing about SGLang.
"""

from sglang.engine import Engine

__all__ = ["Engine"]
