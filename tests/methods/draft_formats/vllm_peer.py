# SPDX-License-Identifier: Apache-2.0
"""Computes logits of Medusa heads with vLLM's class; run by an interpreter that has vLLM.

vllm_peer.py STATES OUT ROOT...      logits [heads, rows, vocab] of each ROOT, by its name, for hidden states
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator
from vllm.model_executor.models.medusa import Medusa
from vllm.transformers_utils.configs.medusa import MedusaConfig


def load(root: Path) -> Medusa:
    """Load heads with vLLM; uninitialized parameters are NaN."""
    said = MedusaConfig.from_pretrained(root)
    heads = Medusa(
        vllm_config=SimpleNamespace(
            speculative_config=SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=said))
        )
    )
    for parameter in heads.parameters():
        parameter.data.fill_(torch.nan)
    heads.load_weights(safetensors_weights_iterator(sorted(map(str, root.glob("*.safetensors"))), False))
    return heads


@torch.inference_mode()
def main(states: Path, out: Path, roots: list[Path]) -> None:
    """Write the logits of each draft."""
    init_distributed_environment(1, 0, f"file://{out}.group", 0, "gloo")
    initialize_model_parallel()
    hidden, said = load_file(states)["hidden"], {}
    for root in roots:
        heads = load(root)
        matrices = [matrix.weight[: heads.orig_vocab_size] for matrix in heads.lm_heads]
        said[root.name] = torch.stack([state @ matrix.T for state, matrix in zip(heads(hidden), matrices, strict=True)])
    save_file(said, out)


if __name__ == "__main__":
    with set_current_vllm_config(VllmConfig()):
        main(*map(Path, sys.argv[1:3]), [Path(root) for root in sys.argv[3:]])
