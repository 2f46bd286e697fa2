# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: T201  the builder's output is parsed
"""A strict double of trtllm-build that detects our mistakes; its output is not a real engine.

It accepts exactly the options of the requested version, rejects what upstream rejects with upstream's messages
(NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py and builder.py @008b2b8d and @65f1d153, plugin/plugin.py@c20322ff,
cpp/tensorrt_llm/runtime/gptJsonConfig.cpp for errors of an engine's reader), reads the checkpoint's headers, and writes
a config.json in upstream's format and small files for the ranks.

The environment sets the version (TRTLLM_DOUBLE_VERSION), the GPU's compute capability times ten (TRTLLM_DOUBLE_SM), and
simulated failures (TRTLLM_DOUBLE_TROUBLE; trouble.py).
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

from tests.doubles.required import FP8, FP8_ROWWISE, required_tensors
from tests.doubles.trouble import make_trouble
from trtspec.backends.common.trtllm_versions import VersionSpec, find_version_spec

NEWEST, HOPPER = "1.2.1", 90
ARCHITECTURES = {
    "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "QWenForCausalLM", "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "MedusaForCausalLM", "EagleForCausalLM",
    "ReDrafterForLLaMALM", "ReDrafterForQWenLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "GraniteForCausalLM",
    "Phi3ForCausalLM",
}  # fmt: skip
ALIASES = {"max_seq_len": "max_decoder_seq_len", "max_prompt_embedding_table_size": "max_multimodal_len"}
SUPPRESSED = ("kv_cache_type", "paged_kv_cache")  # known only if given
NOT_ON_BLACKWELL = (
    "gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin",
    "bert_context_fmha_fp32_acc",
)  # fmt: skip
NONE, EXTERNAL, MEDUSA, LOOKAHEAD, EXPLICIT, EAGLE = 1, 2, 4, 8, 16, 32


def log(level: str, text: str) -> None:
    print(f"[{time.strftime('%m/%d/%Y-%H:%M:%S')}] [TRT-LLM] [{level}] {text}", flush=True)


def parse(contract: VersionSpec, argv: list[str]) -> argparse.Namespace:
    """Parse the command line as this version does, but without abbreviations."""
    parser = argparse.ArgumentParser(prog="trtllm-build", allow_abbrev=False)
    for name, option in contract.options.items():
        names = [f"--{each}" for each in (name, ALIASES.get(name)) if each]
        default = argparse.SUPPRESS if name in SUPPRESSED else option.default
        if option.type == "flag":
            parser.add_argument(*names, dest=name, action="store_true")
            continue
        choices = ("enable", "disable") if option.type == "switch" else option.choices or None
        kind = int if option.type == "int" else str
        many: dict[str, Any] = {"nargs": "+"} if option.type == "strings" else {}
        parser.add_argument(*names, dest=name, type=kind, default=default, choices=choices, **many)
    return parser.parse_args(argv)


class Build:
    """One run: the settings, upstream's build_config and plugin_config, and the resulting engine configuration."""

    def __init__(self, args: argparse.Namespace, version: str) -> None:
        contract = find_version_spec(version)
        self.args = args
        self.version = version
        self.minor = contract.minor
        self.sm = int(os.environ.get("TRTLLM_DOUBLE_SM", HOPPER))
        self.plugins = {
            name: _plugin_value(option.type, getattr(args, name, None))
            for name, option in contract.options.items()
            if option.type == "switch" or name.endswith("_plugin") or name == "tokens_per_block"
        }
        path = Path(args.checkpoint_dir)
        self.config: dict[str, Any] = json.loads((path / "config.json").read_text())
        self.mode = contract.modes[args.speculative_decoding_mode] if args.speculative_decoding_mode else NONE
        self.max_draft_len: int = args.max_draft_len
        self.max_seq_len: int = args.max_seq_len or self._deduced_seq_len()
        self.max_input_len: int = min(args.max_input_len, self.max_seq_len)
        self.max_num_tokens: int = args.max_num_tokens
        self.gathers = {
            kind: getattr(args, f"gather_{kind}_logits") or args.gather_all_token_logits
            for kind in ("context", "generation")
        }

    def check_options(self) -> None:
        """Raise the errors of build.py and the plugin configuration before anything is read."""
        if self.gathers["context"] and self.args.max_draft_len > 0:
            raise RuntimeError(
                "Gather context logits is not support with draft len > 0. If want to get the accepted tokens' logits "
                "from target model, please just enable gather_generation_logits"
            )
        if self.sm == 100:
            for name in NOT_ON_BLACKWELL:
                if self.plugins.get(name):
                    raise NotImplementedError(f"{name}={self.plugins[name]} is not supported on SM 100.")
        if self.plugins["multiple_profiles"] and self.args.opt_num_tokens is not None:
            raise RuntimeError(
                "multiple_profiles is enabled, while opt_num_tokens is set. "
                "They are not supposed to be working in the same time for now."
            )

    def check_model(self) -> None:
        """Raise the errors of the model's configuration."""
        architecture, mapping = self.config["architecture"], self.config["mapping"]
        if architecture not in ARCHITECTURES:
            raise KeyError(architecture)
        tp, pp, cp = (mapping[f"{kind}_size"] for kind in ("tp", "pp", "cp"))
        if tp * pp * cp != mapping["world_size"]:
            raise ValueError(
                "world_size must equal to tp_size * pp_size * cp_size, "
                f"but got {mapping['world_size']} != {tp} * {pp} * {cp}."
            )
        assert not self.plugins["streamingllm"] or (self.minor == "1.0" and architecture == "LlamaForCausalLM"), (
            "StreamingLLM is only supported in the llama model."
            if self.minor == "1.0"
            else "StreamingLLM is no longer supported because attention sink cannot work with the non-cyclic kv cache "
            "kernel & runtime changes."
        )
        assert not self.plugins["pp_reduce_scatter"] or architecture == "MixtralForCausalLM", (
            "PP reduce scatter is only supported in the mixtral model."
        )

    def settle(self) -> None:
        """Adjust the settings as upstream does, with its log messages."""
        self._settle_num_tokens()
        self._settle_drafts()
        self._settle_attention()
        self._settle_fusions()
        if 100 <= self.sm < 120 and self.algo == FP8_ROWWISE:
            raise RuntimeError("Per-channel or per-token scaling is not supported on SM>=100.")

    @property
    def algo(self) -> str | None:
        return self.config["quantization"].get("quant_algo")

    @property
    def cache_type(self) -> str:
        """Return the KV cache type as the version writes it: the enumeration's name, from 1.2 on its value."""
        kind: str = getattr(self.args, "kv_cache_type", "paged").lower()
        return kind if self.minor == "1.2" else kind.upper()

    @property
    def has_fp8_cache(self) -> bool:
        return self.config["quantization"].get("kv_cache_quant_algo") == FP8

    def _deduced_seq_len(self) -> int:
        scaling = self.config.get("rotary_scaling") or {}
        kind = scaling.get("type", scaling.get("rope_type"))
        factor = 1 if kind in ("su", "longrope", "llama3") else scaling.get("factor", 1)
        return int(self.config["max_position_embeddings"] * factor)

    def _settle_num_tokens(self) -> None:
        most = self.max_seq_len * self.args.max_batch_size
        if self.max_num_tokens > most:
            log("W", f"max_num_tokens ({self.max_num_tokens}) shouldn't be greater than max_seq_len * max_batch_size "
                f"({most}), specifying to max_seq_len * max_batch_size ({most}).")  # fmt: skip
            self.max_num_tokens = most
        self.max_num_tokens = max(self.max_num_tokens, self.plugins["tokens_per_block"])

    def _settle_drafts(self) -> None:
        if self.max_draft_len == 0:
            self.max_draft_len = self.config.get("max_draft_len", 0)
        if "redrafter_num_beams" in self.config:
            self.max_draft_len = self.config["redrafter_num_beams"] * self.config["redrafter_draft_len_per_beam"]
            if self.mode != EXPLICIT:
                log("W", "speculative_decoding_mode is not EXPLICIT_DRAFT_TOKENS for ReDrafter model. Overwriting "
                    "speculative_decoding_mode")  # fmt: skip
            self.mode = EXPLICIT
        if self.mode == NONE:
            return
        log("I", f"Increasing max_seq_len ({self.max_seq_len}) by max_draft_len ({self.max_draft_len}) to account for "
            "speculative decoding implementation specifics. Maximum number of generated tokens remains the same. "
            f"New max_seq_len is set to {self.max_seq_len + self.max_draft_len}")  # fmt: skip
        self.max_seq_len += self.max_draft_len
        if self.mode == EAGLE:
            assert "num_eagle_layers" in self.config
            assert self.args.max_batch_size <= 512, "Max batch size > 512 is not supported for EAGLE"
            assert self.max_draft_len <= 256, "Max draft len > 256 is not supported for EAGLE"
            self.max_seq_len += self.config["num_eagle_layers"]
        self.max_num_tokens = max(self.max_num_tokens, self.args.max_batch_size * (self.max_draft_len + 1))

    def _settle_attention(self) -> None:
        plugins = self.plugins
        if not plugins["context_fmha"]:
            plugins |= {"use_fp8_context_fmha": False, "use_paged_context_fmha": False}
            log("W", "Context FMHA is disabled, FP8 Context FMHA and Paged Context FMHA are disabled.")
        elif self.algo != FP8 or self.sm < 89:
            if plugins["use_fp8_context_fmha"]:
                why = "it must be used together with the fp8 quantization workflow"
                log("W", f"FP8 Context FMHA is disabled because {why}." if self.algo != FP8 else
                    "FP8 context FMHA is disabled because it is only supported on Ada and Hopper Arch.")  # fmt: skip
            plugins["use_fp8_context_fmha"] = False
            if plugins["use_paged_context_fmha"] and self.has_fp8_cache:
                plugins["use_paged_context_fmha"] = False
                log("W", "FP8 Paged Context FMHA is disabled because FP8 context FMHA is disabled.")
        elif plugins["use_paged_context_fmha"] and plugins["use_fp8_context_fmha"] != self.has_fp8_cache:
            log("W", "FP8 Context FMHA is enabled to support FP8 Paged Context FMHA." if self.has_fp8_cache else
                "FP8 Paged Context FMHA is disabled because it must be used together with fp8 KV Cache.")  # fmt: skip
            plugins["use_fp8_context_fmha"] = self.has_fp8_cache
        if self.mode == EAGLE and not plugins["use_paged_context_fmha"]:
            log("W", "Paged Context FMHA is required for EAGLE. Turning it on")
            plugins["use_paged_context_fmha"] = True

    def _settle_fusions(self) -> None:
        plugins = self.plugins
        fused = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM")
        if plugins["reduce_fusion"] and (
            self.config["mapping"]["tp_size"] == 1 or self.config["architecture"] not in fused
        ):
            log("W", "Overriding reduce_fusion to False")
            plugins["reduce_fusion"] = False
        swiglu = [plugins["gemm_swiglu_plugin"], plugins["low_latency_gemm_swiglu_plugin"]]
        if any(swiglu) and not plugins["use_fused_mlp"]:
            raise RuntimeError("GemmSwiGLU plugin requires --use_fused_mlp flag")

    def check_readable(self) -> None:
        """Raise the errors of the C++ runtime for an engine's config.json."""
        if self.mode == MEDUSA:
            both = "num_medusa_heads" in self.config and self.config.get("max_draft_len", 0) > 0
            assert both, "Both num_medusa_heads and max_draft_len have to be provided for Medusa model"
        who = {LOOKAHEAD: "Lookahead decoding model", EXTERNAL: "decoding with external draft tokens",
               EAGLE: "eagle decoding"}.get(self.mode)  # fmt: skip
        assert not who or self.max_draft_len > 0, f"max_draft_len has to be larger than 0 for {who}"
        if self.mode == EAGLE:
            for key in ("num_eagle_layers", "max_non_leaves_per_layer"):
                assert self.config.get(key, 0) > 0, f"{key} has to be larger than 0 for eagle decoding"

    def load(self, rank: int) -> None:
        """Compare a rank's file with the tensors that the model requires."""
        path = Path(self.args.checkpoint_dir) / f"rank{rank}.safetensors"
        assert path.is_file()
        provided, required = _preprocessed(_read_header(path)), required_tensors(self.config, rank)
        if any(name.endswith("vocab_embedding.weight") for name in provided):
            required = {name: each for name, each in required.items() if name in provided or name != "lm_head.weight"}
        if missing := required.keys() - provided.keys():
            raise RuntimeError(f"Required but not provided tensors:{missing}")
        if surplus := provided.keys() - required.keys():
            log("W", f"Provided but not required tensors: {surplus}")
        for name, (dtype, shape) in required.items():
            found_dtype, found = provided[name]
            if found != shape:
                raise RuntimeError(
                    f"Encounter error 'The value updated is not the same shape as the original. Updated: {found}, "
                    f"original: {shape}' for parameter '{name}'"
                )
            if found_dtype != dtype:  # upstream only warns, but a wrong dtype is always our mistake
                raise RuntimeError(f"Parameter {name} was initialized as {dtype} but set to {found_dtype}")

    def rendered(self) -> dict[str, Any]:
        """Return the engine's config.json."""
        args = self.args
        build_config = {
            "max_input_len": self.max_input_len,
            "max_seq_len": self.max_seq_len,
            "max_batch_size": args.max_batch_size,
            "max_beam_width": args.max_beam_width,
            "max_num_tokens": self.max_num_tokens,
            "opt_num_tokens": args.opt_num_tokens,
            "max_prompt_embedding_table_size": args.max_prompt_embedding_table_size,
            "kv_cache_type": self.cache_type,
            "gather_context_logits": self.gathers["context"],
            "gather_generation_logits": self.gathers["generation"],
            "max_draft_len": self.max_draft_len,
            "speculative_decoding_mode": self.mode,
            "input_timing_cache": args.input_timing_cache,
            "output_timing_cache": args.output_timing_cache,
            "lora_config": {},
            "plugin_config": {"dtype": self.config["dtype"], **self.plugins},
        }
        pretrained = {"rotary_embedding_dim": self.config["head_size"], **self.config}
        if args.logits_dtype:
            pretrained["logits_dtype"] = args.logits_dtype
        return {"version": self.version, "pretrained_config": pretrained, "build_config": build_config}


def _plugin_value(kind: str, value: Any) -> Any:
    if kind == "switch":
        return value == "enable"
    return None if value == "disable" else value


def _read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: (each["dtype"], tuple(each["shape"])) for name, each in header.items()}


def _preprocessed(tensors: dict[str, Any]) -> dict[str, Any]:
    """Join the scales of keys and values, and add their reciprocals (preprocess_weights)."""
    found = dict(tensors)
    for name in tensors:
        if name.endswith(".k_cache_scaling_factor"):
            twin = name.replace("k_cache", "v_cache")
            assert twin in tensors, f"{twin} not found"
            found[name.replace("k_cache", "kv_cache")] = found.pop(name)
            found.pop(twin)
    scales = [name for name in found if name.endswith(".kv_cache_scaling_factor")]
    return found | {name.replace("scaling", "rcp_scaling"): found[name] for name in scales}


def main(argv: list[str]) -> None:
    """Build a fake engine."""
    version = os.environ.get("TRTLLM_DOUBLE_VERSION", NEWEST)
    print(f"[TensorRT-LLM] TensorRT LLM version: {version}", flush=True)
    build = Build(parse(find_version_spec(version), argv), version)
    log("I", f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}")
    build.check_options()
    build.check_model()
    build.settle()
    build.check_readable()
    out = Path(build.args.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    for rank in range(build.config["mapping"]["world_size"]):
        build.load(rank)
        log("I", "Total time of constructing network from module object 0.1 seconds")
        log("I", "Build TensorRT engine Unnamed Network 0")
        make_trouble(out)
        log("I", f"Serializing engine to {out}/rank{rank}.engine...")
        if rank == 0:
            (out / "config.json").write_text(json.dumps(build.rendered(), indent=4))
            Path(build.args.output_timing_cache).write_bytes(b"timings")
        (out / f"rank{rank}.engine").write_bytes(b"no engine")
    log("I", "Total time of building all engines: 00:00:00")
