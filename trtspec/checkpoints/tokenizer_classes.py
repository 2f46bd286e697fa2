# SPDX-License-Identifier: Apache-2.0
"""Apply the changes that transformers' tokenizer classes make to tokenizer.json, so that texts get the same ids.

transformers 5 loads most tokenizers as defined in the file. Some classes keep the file's vocabulary, merges and
post-processor but rebuild normalizer, pre-tokenizer and decoder. AutoTokenizer chooses the class by config.json and
tokenizer_config.json (models/auto/tokenization_auto.py). This module follows 5.23 for the classes of models that
generate text. transformers 4 loads all of them as defined in the file.

One difference is intended: a special token that the vocabulary lacks is not added, because no embedding has a row for
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.checkpoints.safe_json import repr_short
from trtspec.checkpoints.source import read_document
from trtspec.core.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
AS_THE_FILE = ""
# Tokenizer class by model_type, from models/auto/tokenization_auto.py@v5.23.0.
_REBUILT_FOR = {
    "LlamaTokenizer": ("idefics", "idefics2"),
    "CodeLlamaTokenizer": ("code_llama",),
    "CohereTokenizer": ("aya_vision", "cohere", "cohere2"),
    "GemmaTokenizer": ("diffusion_gemma", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text",
                       "recurrent_gemma", "shieldgemma2", "t5gemma", "zaya"),
    "GPT2Tokenizer": ("blip-2", "codegen", "dbrx", "emu3", "gpt2", "gpt_neo", "gptj", "hyperclovax_vision_v2",
                      "instructblip", "instructblipvideo", "jais2", "opt", "phi", "starcoder2"),
    "GPTNeoXTokenizer": ("falcon_mamba", "gpt_neox", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv", "xlstm"),
    "Qwen2Tokenizer": ("audioflamingo3", "colqwen2", "cosmos3_omni", "dots3_note", "fun_asr_nano", "hunyuan_vl",
                       "internvl", "lighton_ocr", "moss_transcribe_diarize", "ovis2", "qianfan_ocr", "qwen2",
                       "qwen2_5_omni", "qwen2_5_vl", "qwen2_audio", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_asr",
                       "qwen3_moe", "qwen3_next", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe", "vibevoice"),
    "Qwen3_5Tokenizer": ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen4_exp"),
    AS_THE_FILE: ("aria", "beam", "flex_olmo", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v", "glm4v_moe",
                  "gpt_bigcode", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "kimi_k25",
                  "kimi_linear", "kosmos-2", "mimo_v2_flash", "ministral", "ministral3", "mistral", "mistral3",
                  "mistral_large4", "mixtral", "olmo2", "olmo3", "olmo_hybrid", "persimmon", "pixtral", "stablelm",
                  "voxtral"),
}  # fmt: skip
# Models whose published tokenizer_class is wrong: the class above is used instead, or else the file.
_WRONGLY_PUBLISHED = frozenset((
    "arctic", "chatlm", "ernie4_5", "ernie4_5_moe", "fuyu", "h2ovl_chat", "hyperclovax", "hyperclovax_vlm",
    "hyperclovax_vision_v2", "internlm2", "internlm3", "iquestcoder", "jamba", "llava", "llava_next",
    "minicpm3", "minicpmv", "minimax_m2", "molmo", "molmo2", "nemotron", "nvfp4", "opencua", "openvla",
    "paddleocr_vl", "phi3", "phi3_v", "phimoe", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
    "qwen4_exp", "step3_vl", "vipllava", "smolvlm",
))  # fmt: skip
_CLASS_OF_MODEL = {model: name for name, models in _REBUILT_FOR.items() for model in models}
_CLASS_OF_MODEL |= {model: AS_THE_FILE for model in sorted(_WRONGLY_PUBLISHED) if model not in _CLASS_OF_MODEL}
_MISTRALS = ("ministral", "ministral3", "mistral", "mistral3", "mistral_large4", "mixtral", "pixtral", "voxtral")

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Class:
    """A tokenizer class that rebuilds parts of the tokenizer.

    `build` sets the rebuilt parts, and `tokens` are the default special tokens. `begins` is True if the class's
    post-processor adds a begin token, False if not, and None to keep the file's post-processor.
    """

    build: Callable[[Backend, Mapping[str, Any]], None]
    tokens: Mapping[str, str] = field(default_factory=dict)
    begins: bool | None = None


def special_tokens(root: Path) -> dict[str, str]:
    """Return the named special tokens of a tokenizer for chat templates: {"bos_token": "<s>", ...}."""
    config, found = _documents(root)
    rebuilt = _CLASSES.get(_class_name(root, config, None))
    tokens: dict[str, str] = {**rebuilt.tokens} if rebuilt else {}
    own = [key for key in found if key.endswith("_token") and key not in NAMED and isinstance(found[key], (str, dict))]
    extra = found.get("extra_special_tokens")
    named = {name: found[name] for name in (*NAMED, *own) if name in found}
    for name, value in (named | (extra if isinstance(extra, dict) else {})).items():
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[name] = content
        else:
            tokens.pop(name, None)
    return tokens


def apply_transformers_class(backend: Backend, root: Path) -> Backend:
    """Return the tokenizer that AutoTokenizer would create from `backend`, the directory's tokenizer.json.

    Raises CheckpointError for a configuration that transformers rejects too.
    """
    from tokenizers import AddedToken, models
    from tokenizers import Tokenizer as Fresh

    config, found = _documents(root)
    added = dict(sorted(backend.get_added_tokens_decoder().items()))
    rebuilt = _CLASSES.get(_class_name(root, config, backend))
    if rebuilt and isinstance(backend.model, models.BPE):
        fresh = Fresh(backend.model)
        fresh.post_processor = backend.post_processor
        tokens = special_tokens(root)
        rebuilt.build(fresh, tokens | {key: config.get(key) for key in ("add_prefix_space", "legacy")})
        if rebuilt.begins is not None:
            fresh.post_processor = _begins(fresh, tokens.get("bos_token") if rebuilt.begins else None)
        backend = fresh
        backend.add_tokens([*added.values()])
    wanted = _added(config, root, AddedToken)
    names = {each.content for each in added.values()}
    for content in [*special_tokens(root).values(), *_extra(found)]:
        if content not in names and content not in {each.content for each in wanted}:
            wanted.append(AddedToken(content, special=True))
    if wanted := [
        each for each in wanted if backend.token_to_id(each.content) is not None and each not in added.values()
    ]:
        backend.add_tokens(wanted)
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    return backend


def _documents(root: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return tokenizer_config.json, alone and with the overrides of an older special_tokens_map.json."""
    config = read_document(root / "tokenizer_config.json")
    older = {} if "added_tokens_decoder" in config else read_document(root / "special_tokens_map.json")
    return config, {**config, **older}


def _class_name(root: Path, config: Mapping[str, Any], backend: Backend | None) -> str:
    """Return the name of the class with which AutoTokenizer rebuilds a tokenizer, or AS_THE_FILE."""
    model = read_document(root / "config.json")
    kind = str(model.get("model_type") or "")
    declared = config.get("tokenizer_class") or model.get("tokenizer_class") or ""
    if not isinstance(declared, str):
        raise CheckpointError("tokenizer_class is not text", where=str(root / "tokenizer_config.json"))
    declared, own = declared.removesuffix("Fast"), _CLASS_OF_MODEL.get(kind)
    if (
        declared == "LlamaTokenizer"
        and kind not in _MISTRALS
        and kind not in _WRONGLY_PUBLISHED
        and _has_bytes(root, backend)
    ):
        return AS_THE_FILE
    if not declared:
        return own or AS_THE_FILE
    if own is None or own == declared:
        return declared
    return own if own == AS_THE_FILE or kind in _WRONGLY_PUBLISHED else declared


def _has_bytes(root: Path, backend: Backend | None) -> bool:
    """Return whether a tokenizer's pre-tokenizer or decoder is byte-level."""
    if backend is None:
        path = root / "tokenizer.json"
        return path.is_file() and b'"ByteLevel"' in path.read_bytes()
    return "ByteLevel" in f"{backend.pre_tokenizer!r}{backend.decoder!r}"


def _added(config: Mapping[str, Any], root: Path, added_token: Any) -> list[Any]:
    """Return the added tokens in tokenizer_config.json as `added_token` objects, sorted by id."""
    described = config.get("added_tokens_decoder") or {}
    try:
        ordered = sorted(described.items(), key=lambda item: int(item[0]))
        return [added_token(**{key: value for key, value in each.items() if key != "__type"}) for _, each in ordered]
    except (TypeError, ValueError, AttributeError) as error:
        message = f"added_tokens_decoder cannot be read: {repr_short(str(error))}"
        raise CheckpointError(message, where=str(root / "tokenizer_config.json")) from None


def _extra(found: Mapping[str, Any]) -> list[str]:
    extra = found.get("extra_special_tokens") or found.get("additional_special_tokens") or []
    contents = (
        [each.get("content") if isinstance(each, dict) else each for each in extra] if isinstance(extra, list) else []
    )
    return [content for content in contents if isinstance(content, str)]


def _begins(backend: Backend, token: str | None) -> Any:
    from tokenizers import processors

    number = backend.token_to_id(token) if token else None
    if number is None:
        return processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    single = f"{token}:0 $A:0"
    return processors.TemplateProcessing(
        single=single, pair=f"{single} {token}:1 $B:1", special_tokens=[(token, number)]
    )


def _bpe(backend: Backend, *, fuse_unk: bool, byte_fallback: bool, unk_token: str | None = None) -> None:
    model: Any = backend.model
    model.dropout = model.continuing_subword_prefix = model.end_of_word_suffix = None
    model.unk_token, model.fuse_unk, model.byte_fallback = unk_token, fuse_unk, byte_fallback
    model.ignore_merges = False


def _llama(backend: Backend, options: Mapping[str, Any]) -> None:
    prefix = options["add_prefix_space"] is None or bool(options["add_prefix_space"])
    scheme = ("always" if options["legacy"] else "first") if prefix else "never"
    _metaspace(backend, scheme, strips=prefix)
    _bpe(backend, fuse_unk=True, byte_fallback=True)


def _code_llama(backend: Backend, options: Mapping[str, Any]) -> None:
    prefix = options["add_prefix_space"] is None or bool(options["add_prefix_space"])
    _metaspace(backend, "first" if prefix else "never", strips=True)
    _bpe(backend, fuse_unk=True, byte_fallback=True, unk_token=options.get("unk_token"))


def _metaspace(backend: Backend, scheme: str, *, strips: bool) -> None:
    from tokenizers import decoders, pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if strips else steps)


def _gemma(backend: Backend, options: Mapping[str, Any]) -> None:
    from tokenizers import decoders, normalizers, pre_tokenizers

    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    _bpe(backend, fuse_unk=True, byte_fallback=True, unk_token=options.get("unk_token"))


def _byte_level(
    backend: Backend, options: Mapping[str, Any], *, composed: bool = False, pattern: str = "", digits: bool = False
) -> None:
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    prefix = bool(options["add_prefix_space"])
    if composed:
        backend.normalizer = normalizers.NFC()
    if pattern:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
        last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, last])
    else:
        last = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        first = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
        backend.pre_tokenizer = pre_tokenizers.Sequence([*first, last]) if first else last
    backend.decoder = decoders.ByteLevel()
    _bpe(backend, fuse_unk=False, byte_fallback=False)


_OF_LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_OF_GPT2 = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
_OF_QWEN = dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>")
_CLASSES = {
    "LlamaTokenizer": _Class(_llama, _OF_LLAMA),
    "CodeLlamaTokenizer": _Class(_code_llama, _OF_LLAMA, begins=True),
    "GemmaTokenizer": _Class(_gemma, {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>",
                                      "pad_token": "<pad>", "mask_token": "<mask>"}),
    "GPT2Tokenizer": _Class(_byte_level, _OF_GPT2),
    "GPTNeoXTokenizer": _Class(partial(_byte_level, composed=True), _OF_GPT2 | {"pad_token": "<|padding|>"},
                               begins=False),
    "CohereTokenizer": _Class(partial(_byte_level, composed=True, digits=True),
                              {"unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>",
                               "pad_token": "<PAD>", "cls_token": "<CLS>", "sep_token": "<SEP>",
                               "mask_token": "<MASK_TOKEN>"}),
    "Qwen2Tokenizer": _Class(partial(_byte_level, composed=True, pattern=_QWEN2), _OF_QWEN),
    "Qwen3_5Tokenizer": _Class(partial(_byte_level, composed=True, pattern=_QWEN3_5), _OF_QWEN),
}  # fmt: skip
