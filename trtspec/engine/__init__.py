# SPDX-License-Identifier: Apache-2.0
"""The torch engine: runs converted TensorRT-LLM checkpoints in torch, on a CPU or a GPU.

`engine` batches requests, `speculator` drafts and verifies one step, `model/` is the transformer, `calibration/`
measures activations for FP8, and `drafting/` is shared by the drafters of `trtspec.methods`. `generation/` and
`prompts/` need no torch: every served model uses them.
"""

import os

# How long OpenMP's workers spin between operations before they sleep; read when torch is loaded. With the default, some
# milliseconds, a step takes 15 times as long beside one other busy process on two cores. With a shorter time than this,
# workers sleep between the operations of a step, which slows every step (benchmarks/experiments/log.md).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
