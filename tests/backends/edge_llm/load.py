# SPDX-License-Identifier: Apache-2.0
"""Load a served model's document with the installed Edge-LLM, up to the use of a GPU; runs in its environment.

python load.py MODEL_DIRECTORY CACHE      prints the start arguments of its runtime
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from experimental.server import LLM

from trtspec.backends.edge_llm.runtime import load

LLM._load_runtime = lambda llm: None
loaded = load(Path(sys.argv[1]), 1, Path(sys.argv[2]))
document = {
    "top_k": loaded._draft_top_k,
    "steps": loaded._draft_step,
    "verify": loaded._verify_tree_size,
    "block": loaded._dflash_block_size,
    "bundle": str(Path(loaded.bundle_dir).resolve()),
}
sys.stdout.write(json.dumps(document) + "\n")
