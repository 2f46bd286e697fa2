# SPDX-License-Identifier: Apache-2.0
"""Small random models in Hugging Face's layout, created by transformers, and their conversion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtspec.backends.common.convert import convert_checkpoint
from trtspec.checkpoints.rules import Family
from trtspec.core.hashing import file_segments
from trtspec.core.registry import discover

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


GEMMA = {
    "head_dim": 8, "query_pre_attn_scalar": 12, "sliding_window": 32, "pad_token_id": None,
    "tie_word_embeddings": False,
}  # fmt: skip
# configuration that a family needs beyond SHAPE
OVERRIDES: dict[str, dict[str, Any]] = {
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "granite": {
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.25, "logits_scaling": 8.0,
    },
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": {"pad_token_id": None},
    "phi3": {"pad_token_id": None},
    "qwen3": {"head_dim": 8},
}  # fmt: skip
# every family: its module is enough for it to be compared with transformers
FAMILIES: dict[str, Family] = discover("trtspec.families", "FAMILY")
FAMILY_SHAPES = {name: OVERRIDES.get(name, {}) for name in sorted(FAMILIES)}


def model_type(family: str) -> str:
    """Return transformers' name of a family, by its first architecture."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = {architecture: name for name, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
    return names[FAMILIES[family].architectures[0]]


def make_model(
    root: Path, family: str, seed: int = 0, dtype: str = "bfloat16", scale: float = 0.2, **shape: Any
) -> Path:
    """Save a random model of a family below `root`; a larger `scale` makes its distributions sharper."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    shape = {**SHAPE, **FAMILY_SHAPES[family], **shape}
    config = AutoConfig.for_model(model_type(family), **shape, initializer_range=scale)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            if "norm" in name and family.startswith("gemma"):
                # conversion adds 1 to these; the sum must be a bfloat16 so that rounding does not matter
                parameter.mul_(128).round_().div_(128)
    model.to(getattr(torch, dtype)).save_pretrained(root)
    return root


def make_llama(root: Path, seed: int = 0, dtype: str = "bfloat16", scale: float = 0.2, **shape: Any) -> Path:
    """Save a random Llama below `root`."""
    return make_model(root, "llama", seed, dtype, scale, **shape)


def convert(root: Path, out: Path, dtype: str = "auto", **options: Any) -> Path:
    """Convert the checkpoint at `root` to `out`; the digests that were computed while writing must match."""
    out.mkdir(parents=True, exist_ok=True)
    segments = convert_checkpoint(root, out, dtype, **options)
    assert segments == {path.name: file_segments([path])[0] for path in out.glob("rank*.safetensors")}
    return out


def reference_model(root: Path, dtype: str = "float32") -> Any:
    """Return the transformers model of `root` in float32, the oracle for text and logits."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(root, dtype=dtype).eval()


def greedy(model: Any, prompt: list[int], new_tokens: int) -> list[int]:
    """Return the greedy continuation by transformers."""
    import torch

    ids = torch.tensor([prompt])
    # without an explicit mask, generate() would treat tokens that equal the pad id as padding
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


WORDS = ("th", "the", "he", "in", "re")
MERGES = (("t", "h"), ("th", "e"), ("h", "e"), ("i", "n"), ("r", "e"))


def make_tokenizer(root: Path, merges: tuple[tuple[str, str], ...] = MERGES) -> Path:
    """Save a tokenizer of single bytes, a few longer tokens and `<end>`; `merges` keep or change its splitting."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *WORDS]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    root.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(root / "tokenizer.json"))
    (root / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    settings = root / "generation_config.json"
    if settings.is_file():  # there is a model whose texts end at <end>
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token_id": 0}))
    return root


RECIPE = """\
schema: trtspec.recipe/1
name: tiny
target:
  model: ./target
speculation:
  method: draft_target
  draft_len: 3
  draft:
    model: ./draft
engine:
  max_batch_size: 4
  max_input_len: 128
  max_seq_len: 256
gates:
  prompts: ./prompts.jsonl
"""
PAIR_VOCAB = 1 + 256 + len(WORDS)
TARGET_SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
DRAFT_SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_key_value_heads": 1}


def make_pair(root: Path) -> Path:
    """Create a random target and draft with one tokenizer, and prompts; return the recipe."""
    for seed, (role, shape) in enumerate((("target", TARGET_SHAPE), ("draft", DRAFT_SHAPE))):
        make_llama(root / role, seed=seed, vocab_size=PAIR_VOCAB, **shape)
        make_tokenizer(root / role)
    prompts = ("the rest is in here", "{", "naïve 北京")
    (root / "prompts.jsonl").write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in prompts))
    recipe = root / "recipe.yaml"
    recipe.write_text(RECIPE)
    return recipe
