# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of many kinds, in the format of published checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = ["Hello world, how are you? [INST] def f(x): return 12345", "  naïve café\n\t tabs é"] * 20
TEXTS = [
    "Hello world",
    " Hello  world",
    "<s>[INST] Hello [/INST] world </s>how<s>are",
    "a</s> b</s>\nc",
    "naïve cafe\u0301 12345 1 2\n\n  x",
    "",
    "</s>",
    "<|im_start|>user\nHi<|im_end|>\n",
]
TEMPLATES = {
    "begins": "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }} {{ eos_token }}{% endfor %}",
    "without": "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}",
    "strips": "{%- for m in messages -%} {{ m.content | trim }} {%- endfor -%}",
    "tools": "{% if tools is defined and documents is defined and not tools %}{{ bos_token }}{% endif %}"
    "{{ messages | tojson }}{% generation %}x{% endgeneration %}",
    "odd": "{{ unk_token }}|{{ sep_token }}|{{ image_token }}{% set ns = namespace(a=1) %}{{ ns.a }}"
    "{{ dict(a=1) | tojson(indent=1) }}{{ messages[0].content }}",
}
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hello world"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": " world"},
        {"role": "user", "content": "how"},
    ],
    [{"role": "system", "content": "You"}, {"role": "user", "content": " are </s> tabs\n"}],
]


def pieces(normalizer: Any = "prepend", unk: str = "<unk>") -> Tokenizer:
    """Return a SentencePiece-style BPE."""
    found = Tokenizer(models.BPE(byte_fallback=True, unk_token=unk, fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    steps = {"prepend": [normalizers.Prepend("▁"), replace], "replace": [replace]}[normalizer]
    found.normalizer = normalizers.Sequence(steps)
    specials = [unk, "<s>", "</s>", "<bos>", "<eos>", "<pad>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[*specials, *(f"<0x{i:02X}>" for i in range(256))],
                                  show_progress=False)  # fmt: skip
    found.train_from_iterator(CORPUS, trainer)
    found.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return found


def byte_level(pattern: str | None = None, *, prefix: bool = False, ignore_merges: bool = False) -> Tokenizer:
    """Return a byte-level BPE."""
    found = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pattern is None)
    found.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), last]) if pattern else last
    )
    specials = ["<|endoftext|>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|padding|>", "<BOS_TOKEN>"]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    found.train_from_iterator(CORPUS, trainer)
    found.decoder = decoders.ByteLevel()
    return found


def beginning(tokenizer: Tokenizer, token: str, *, ends: str = "") -> Tokenizer:
    """Add a token to the beginning of every text, and optionally one to its end."""
    last = f" {ends}" if ends else ""
    marks = [(each, tokenizer.token_to_id(each)) for each in {token, ends} if each]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A{last}", pair=f"{token} $A {token} $B", special_tokens=marks
    )
    return tokenizer


def write(root: Path, tokenizer: Tokenizer, config: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> Path:
    """Write a directory for AutoTokenizer; byte tokens are not added tokens, as in published files."""
    root.mkdir(parents=True, exist_ok=True)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [each for each in document["added_tokens"] if not each["content"].startswith("<0x")]
    (root / "tokenizer.json").write_text(json.dumps(document))
    (root / "tokenizer_config.json").write_text(json.dumps(config))
    (root / "config.json").write_text(json.dumps({"model_type": "llama"} if model is None else model))
    return root


SPM = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
DECODER = {"1": {"content": "<s>", "special": True, "normalized": True, "lstrip": False, "rstrip": True,
                 "single_word": False}}  # fmt: skip


def kinds() -> dict[str, tuple[Tokenizer, dict[str, Any], dict[str, Any]]]:
    """Return (tokenizer, tokenizer_config.json, config.json) by name."""
    llama, fast = {"model_type": "llama"}, "LlamaTokenizerFast"
    prepended = beginning(pieces(), "<s>")
    found: dict[str, tuple[Tokenizer, dict[str, Any], dict[str, Any]]] = {}
    for legacy in (None, True, False):
        for prefix in (None, True, False):
            options = {
                key: value for key, value in (("legacy", legacy), ("add_prefix_space", prefix)) if value is not None
            }
            found[f"llama-{legacy}-{prefix}"] = (prepended, {"tokenizer_class": fast, **SPM, **options}, llama)
    found |= {
        "llama-slow": (prepended, {"tokenizer_class": "LlamaTokenizer", **SPM, "add_bos_token": False}, llama),
        "llama-adds-end": (prepended, {"tokenizer_class": fast, **SPM, "add_eos_token": True}, llama),
        "llama-no-tokens": (prepended, {"tokenizer_class": fast}, llama),
        "llama-no-class": (prepended, dict(SPM), llama),
        "llama-no-processor": (pieces(), {"tokenizer_class": fast, **SPM, "add_bos_token": True}, llama),
        "llama-no-config": (prepended, {"tokenizer_class": fast, **SPM}, {}),
        "llama-decoder": (prepended, {"tokenizer_class": fast, **SPM, "added_tokens_decoder": DECODER}, llama),
        "llama-split-special": (prepended, {"tokenizer_class": fast, **SPM, "split_special_tokens": True}, llama),
        "llama-bytes": (beginning(byte_level(), "<s>"), {"tokenizer_class": fast, **BYTES}, llama),
        "mistral": (prepended, {"tokenizer_class": fast, **SPM}, {"model_type": "mistral"}),
        "mixtral-no-class": (prepended, dict(SPM), {"model_type": "mixtral"}),
        "phi3": (prepended, {"tokenizer_class": fast, **SPM}, {"model_type": "phi3"}),
        "fast": (prepended, {"tokenizer_class": "PreTrainedTokenizerFast", **SPM}, llama),
        "backend": (prepended, {"tokenizer_class": "TokenizersBackend", **SPM}, llama),
        "code-llama": (prepended, {"tokenizer_class": "CodeLlamaTokenizerFast", **SPM}, llama),
        "gemma": (
            beginning(pieces("replace"), "<bos>"),
            {
                "tokenizer_class": "GemmaTokenizerFast",
                "bos_token": "<bos>",
                "eos_token": "<eos>",
                "image_token": "<mask>",
            },
            {"model_type": "gemma2"},
        ),
        "gemma-no-class": (beginning(pieces(), "<bos>"), {"bos_token": "<bos>"}, {"model_type": "gemma3_text"}),
        "gemma-declared-llama": (prepended, {"tokenizer_class": fast, **SPM}, {"model_type": "gemma"}),
        "qwen2": (
            byte_level(r"\p{N}{1,3}|\s+|\S+"),
            {"tokenizer_class": "Qwen2Tokenizer", **BYTES},
            {"model_type": "qwen2"},
        ),
        "qwen2-declared-fast": (
            byte_level(r"\p{N}{1,3}|\s+|\S+"),
            {"tokenizer_class": "PreTrainedTokenizerFast"},
            {"model_type": "qwen2"},
        ),
        "qwen3": (byte_level(), {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None}, {"model_type": "qwen3"}),
        "qwen3-other-class": (
            byte_level(r"\S+|\s"),
            {"tokenizer_class": "PreTrainedTokenizerFast"},
            {"model_type": "qwen3"},
        ),
        "qwen3.5": (byte_level(), {"tokenizer_class": "Qwen2Tokenizer"}, {"model_type": "qwen3_5_text"}),
        "gpt2": (
            byte_level(r"\S+|\s"),
            {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True},
            {"model_type": "gpt2"},
        ),
        "gpt2-begins": (beginning(byte_level(), "<s>"), {"tokenizer_class": "GPT2Tokenizer", **BYTES}, llama),
        "neox-begins": (
            beginning(byte_level(), "<s>"),
            {"tokenizer_class": "GPTNeoXTokenizerFast", **BYTES, "add_bos_token": True},
            {"model_type": "gpt_neox"},
        ),
        "cohere": (
            beginning(byte_level(), "<BOS_TOKEN>"),
            {"tokenizer_class": "CohereTokenizerFast", "eos_token": "</s>", "unk_token": "<s>", "sep_token": "</s>"},
            {"model_type": "cohere"},
        ),
        "llama3": (
            beginning(byte_level(r"\p{N}{1,3}|\s+|\S+", ignore_merges=True), "<s>"),
            {"tokenizer_class": "PreTrainedTokenizerFast", **BYTES},
            llama,
        ),
        "begins-and-ends": (
            beginning(byte_level(), "<s>", ends="</s>"),
            {"tokenizer_class": "PreTrainedTokenizerFast", **BYTES},
            llama,
        ),
        "granite": (byte_level(r"\S+|\s"), {"tokenizer_class": "GPT2Tokenizer", **BYTES}, {"model_type": "granite"}),
        "unknown-class": (prepended, {"tokenizer_class": "OurOwnTokenizer", **SPM}, {"model_type": "ours"}),
        "extra-tokens": (
            byte_level(),
            {"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": ["wor"]},
            llama,
        ),
    }
    return found
