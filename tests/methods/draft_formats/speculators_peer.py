# SPDX-License-Identifier: Apache-2.0
"""Writes random drafts with speculators' classes, or reads drafts; run by an interpreter that has speculators.

speculators_peer.py write|read ROOT TARGET      each directory of ROOT is a kind
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None, "dtype": "bfloat16",
}  # fmt: skip
DRAFTED = 40
HEAD = {"eagle_aux_hidden_state_layer_ids": [2, 3, 4], "draft_vocab_size": DRAFTED}
BLOCK = {"aux_hidden_state_layer_ids": [2, 4], "mask_token_id": 5, "block_size": 8, "draft_vocab_size": 64}
KINDS = {
    "eagle3": (Eagle3DraftModel, Eagle3SpeculatorConfig, LlamaConfig, 1, HEAD),
    "p_eagle": (PEagleDraftModel, PEagleSpeculatorConfig, LlamaConfig, 2, {**HEAD, "mask_token_id": 5}),
    "dflash": (DFlashDraftModel, DFlashSpeculatorConfig, Qwen3Config, 2, BLOCK),
    "dspark": (DSparkDraftModel, DSparkSpeculatorConfig, Qwen3Config, 2, {**BLOCK, "markov_rank": 4}),
}


def write(root: Path, target: str) -> None:
    """Save a random draft of each kind."""
    for kind, (model, config, layer, layers, keys) in KINDS.items():
        torch.manual_seed(0)
        said = SpeculatorsConfig(
            algorithm=kind.replace("_", ""),
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=target, architectures=["LlamaForCausalLM"]),
        )
        layer_config = layer(**SHAPE, num_hidden_layers=layers, attn_implementation="eager")
        draft = model(config(transformer_layer_config=layer_config, speculators_config=said, **keys))
        if draft.d2t is not None:
            ids = torch.randperm(64)[:DRAFTED].sort().values
            marks = torch.zeros(64, dtype=torch.bool).index_fill(0, ids, True)
            draft.load_vocab_mappings(marks, ids - torch.arange(DRAFTED))
        draft.load_verifier_weights()
        draft.to(torch.bfloat16).save_pretrained(root / kind)


def read(root: Path) -> None:
    """Load each draft; a tensor that differs from the stored one or was not initialized is an error."""
    for kind in sorted(path.name for path in root.iterdir()):
        draft = KINDS[kind][0].from_pretrained(str(root / kind), dtype="auto")
        state, stored = draft.state_dict(), load_file(root / kind / "model.safetensors")
        assert all(torch.equal(state[name].to(tensor.dtype), tensor) for name, tensor in stored.items()), kind
        assert not any(tensor.isnan().any() for tensor in state.values()), kind


if __name__ == "__main__":
    write(Path(sys.argv[2]), sys.argv[3]) if sys.argv[1] == "write" else read(Path(sys.argv[2]))
