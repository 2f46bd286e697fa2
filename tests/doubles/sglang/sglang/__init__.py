# SPDX-License-Identifier: Apache-2.0
"""A double of SGLang's Engine with strict arguments; responses come from a table in the model's directory.

Names and errors follow sgl-project/sglang:python/sglang/srt/{server_args.py,entrypoints/engine.py,sampling/
sampling_params.py,managers/tokenizer_manager.py}@v0.5.23. It computes nothing and proves nothing about SGLang.
"""

from sglang.engine import Engine

__all__ = ["Engine"]
