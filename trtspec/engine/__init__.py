# SPDX-License-Identifier: Apache-2.0
"""The torch engine: runs converted TensorRT-LLM checkpoints in torch, on a CPU or a GPU.

`engine` batches requests, `speculator` drafts and verifies one step, `model/` is the transformer, `calibration`
measures activations for FP8, and `drafting/` has the code shared by the drafters of `trtspec.methods`. `generation/`
and `prompts/` do not import torch, because every served model uses them.
"""

import os

# The number of spins of OpenMP's workers between operations before they sleep; read when torch is loaded. With the
# default, some milliseconds, a step takes 15 times as long if another process is busy on a two-core machine. With fewer
# spins, workers sleep between the operations of a step, which slows every step
# (benchmarks/experiments/torch-engine-cpu.md).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
