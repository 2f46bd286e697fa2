# SPDX-License-Identifier: Apache-2.0
"""The tensors that TensorRT-LLM's models require in a checkpoint, rank by rank: name, dtype and shape.

Derived from the models themselves and not from our code, so that errors of the converter are detected:
NVIDIA/TensorRT-LLM:tensorrt_llm/models/{llama,qwen}/model.py, models/medusa/model.py@02499765,
models/eagle/model.py@06255cb7, models/redrafter/{model.py@1d263f15,drafter.py@8fcf9fc2},
models/gemma/model.py@5dedf53b, models/phi3/model.py@1479eaf5, layers/linear.py@03961722, layers/mlp.py,
layers/embedding.py@0f02b7af, quantization/quantize.py@89fd9b74 and models/modeling_utils.py@01ea6d79.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

DTYPES = {"float16": "F16", "bfloat16": "BF16"}
FP8, FP8_ROWWISE = "FP8", "FP8_PER_CHANNEL_PER_TOKEN"
# quantize_layers() skips these if the checkpoint names none
DEFAULT_EXCLUDED = (
    "*lm_head", "*router", "*vocab_embedding", "*position_embedding", "*block_embedding", "*shared_expert_gate",
)  # fmt: skip
ALWAYS_EXCLUDED_ROWWISE = ("*ln_f", "*ln_embed", "*lm_head")

Needed = dict[str, tuple[str, tuple[int, ...]]]


def required_tensors(config: dict[str, Any], rank: int) -> Needed:
    """Return the tensors that the model of a checkpoint's config.json requires in a rank's file."""
    mapping = config["mapping"]
    tp, pp = mapping["tp_size"], mapping["pp_size"]
    stage = rank // tp
    model = _Model(config, tp, config["use_parallel_embedding"])
    is_whole = config["architecture"] == "Phi3ForCausalLM"  # Phi3 does not support stages: each has both ends
    if stage == 0 or is_whole:
        model.embedding("transformer.vocab_embedding", config)
    for number, _ in enumerate(_layers_of(config["num_hidden_layers"], pp, stage)):
        model.layer(f"transformer.layers.{number}", config, first_norm=True)
    if stage == pp - 1 or is_whole:
        model.norm("transformer.ln_f", config["hidden_size"])
        model.head("lm_head", config["hidden_size"], config["vocab_size"])
    architecture = config["architecture"]
    # on every stage, because the model creates its heads regardless of the rank
    if architecture == "MedusaForCausalLM":
        _medusa(model, config)
    if architecture.startswith("ReDrafter"):
        _redrafter(model, config)
    if architecture == "EagleForCausalLM" and stage == pp - 1:
        _eagle(model, config)
    return model.needed


def _layers_of(count: int, stages: int, stage: int) -> range:
    """Return a stage's layers, divided as by torch.tensor_split."""
    sizes = [count // stages + (number < count % stages) for number in range(stages)]
    return range(sum(sizes[:stage]), sum(sizes[: stage + 1]))


@dataclass
class _Model:
    """Collects parameters; size arguments are for one of `tp` ranks unless stated otherwise."""

    config: dict[str, Any]
    tp: int
    shards_embedding: bool
    needed: Needed = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        return DTYPES[self.config["dtype"]]

    @property
    def algo(self) -> str | None:
        return self.config["quantization"].get("quant_algo")

    def add(self, name: str, shape: tuple[int, ...], dtype: str | None = None) -> None:
        self.needed[name] = (dtype or self.dtype, shape)

    def linear(self, name: str, rows: int, columns: int, *, bias: int | None = None, parent: str = "") -> None:
        """Add a linear layer; `bias` is its bias size. Row-wise FP8 replaces whole attentions and MLPs: `parent`."""
        if self.algo == FP8 and not self._excludes(name):
            self.add(f"{name}.weight", (rows, columns), "F8_E4M3")
            self.add(f"{name}.weights_scaling_factor", (1,), "F32")
            self.add(f"{name}.activation_scaling_factor", (1,), "F32")
        elif self.algo == FP8_ROWWISE and parent and not self._excludes(parent):
            self.add(f"{name}.weight", (rows, columns), "F8_E4M3")
            self.add(f"{name}.per_channel_scale", (rows,), "F32")
        else:
            self.add(f"{name}.weight", (rows, columns))
        if bias is not None:
            self.add(f"{name}.bias", (bias,))

    def norm(self, name: str, size: int) -> None:
        self.add(f"{name}.weight", (size,))

    def embedding(self, name: str, config: dict[str, Any]) -> None:
        rows = -(-config["vocab_size"] // self.tp) if self.shards_embedding else config["vocab_size"]
        self.add(f"{name}.weight", (rows, config["hidden_size"]))

    def head(self, name: str, hidden: int, vocab: int) -> None:
        self.linear(name, -(-vocab // self.tp), hidden)

    def layer(self, name: str, config: dict[str, Any], *, first_norm: bool) -> None:
        if first_norm:
            self.norm(f"{name}.input_layernorm", config["hidden_size"])
        self._attention(f"{name}.attention", config)
        self.norm(f"{name}.post_layernorm", config["hidden_size"])
        if config.get("inter_layernorms"):
            self.norm(f"{name}.pre_feedforward_layernorm", config["hidden_size"])
            self.norm(f"{name}.post_feedforward_layernorm", config["hidden_size"])
        if config.get("moe", {}).get("num_experts"):
            self._experts(f"{name}.mlp", config)
        else:
            self._mlp(f"{name}.mlp", config)

    def _attention(self, name: str, config: dict[str, Any]) -> None:
        hidden, size, heads = config["hidden_size"], config["head_size"], config["num_attention_heads"]
        assert heads % self.tp == 0, "num_attention_heads must be divisible by tp_size"
        own, kv = heads // self.tp, -(-config["num_key_value_heads"] // self.tp)
        rows = (own + 2 * kv) * size
        biased = config["attn_bias"]
        self.linear(f"{name}.qkv", rows, hidden, bias=rows if biased else None, parent=name)
        dense_biased = biased and not self._is_qwen
        self.linear(f"{name}.dense", hidden, own * size, bias=hidden if dense_biased else None, parent=name)
        if config.get("qk_layernorm"):
            self.norm(f"{name}.q_layernorm", size)
            self.norm(f"{name}.k_layernorm", size)
        if self.config["quantization"].get("kv_cache_quant_algo"):
            self.add(f"{name}.kv_cache_scaling_factor", (1,), "F32")
            self.add(f"{name}.kv_cache_rcp_scaling_factor", (1,), "F32")

    def _mlp(self, name: str, config: dict[str, Any]) -> None:
        hidden, inter, biased = config["hidden_size"], config["intermediate_size"] // self.tp, config["mlp_bias"]
        branches = {"fc": inter, "gate": inter}
        if config["hidden_act"] == "swiglu":  # MLP instead of GatedMLP: one layer holds the rows of both
            branches = {"fc": 2 * inter}
        for branch, rows in branches.items():
            self.linear(f"{name}.{branch}", rows, hidden, bias=rows if biased else None, parent=name)
        self.linear(f"{name}.proj", hidden, inter, bias=hidden if biased else None, parent=name)

    def _experts(self, name: str, config: dict[str, Any]) -> None:
        hidden, inter, count = (
            config["hidden_size"],
            config["intermediate_size"] // self.tp,
            config["moe"]["num_experts"],
        )
        self.add(f"{name}.router.weight", (count, hidden), "F32")
        is_fp8 = self.algo == FP8 and not self._excludes(name)
        for branch, shape in (("fc", (count, 2 * inter, hidden)), ("proj", (count, hidden, inter))):
            self.add(f"{name}.{branch}.weight", shape, "F8_E4M3" if is_fp8 else None)
            if is_fp8:
                self.add(f"{name}.{branch}.weights_scaling_factor", (count, 1), "F32")
                self.add(f"{name}.{branch}.activation_scaling_factor", (1,), "F32")

    @property
    def _is_qwen(self) -> bool:
        """Return whether the layers are Qwen's, whose output projection lacks a bias."""
        named = f"{self.config['architecture']} {self.config.get('model_type', '')}".lower()
        return "qwen" in named

    def _excludes(self, name: str) -> bool:
        patterns = self.config["quantization"].get("exclude_modules")
        if self.algo == FP8_ROWWISE:
            patterns = [*(patterns or ()), *ALWAYS_EXCLUDED_ROWWISE]
        return any(fnmatchcase(name, pattern) for pattern in (DEFAULT_EXCLUDED if patterns is None else patterns))


def _medusa(model: _Model, config: dict[str, Any]) -> None:
    hidden, rows = config["hidden_size"], config["hidden_size"] // model.tp
    for head in range(config["num_medusa_heads"]):
        for layer in range(config["num_medusa_layers"]):
            model.linear(f"medusa_heads.{head}.medusa_layers.{layer}.linear", rows, hidden, bias=rows)
        model.head(f"medusa_heads.{head}.lm_head", hidden, config["vocab_size"])


def _redrafter(model: _Model, config: dict[str, Any]) -> None:
    hidden, exit_dim, tp = config["redrafter_hidden_size"], config["redrafter_exit_dim"], model.tp
    if 2 * hidden != exit_dim:
        model.linear("drafter.input_proj", exit_dim // tp, 2 * hidden, bias=exit_dim // tp)
    for layer in range(config["redrafter_num_layers"]):
        model.linear(f"drafter.layers.{layer}.linear", exit_dim // tp, exit_dim, bias=exit_dim // tp)
    model.head("drafter.lm_head", exit_dim, config["vocab_size"])
    if config["redrafter_is_rnn"]:
        model.linear("drafter.rnn_u", hidden // tp, hidden, bias=hidden // tp)
        model.linear("drafter.rnn_w", hidden // tp, hidden)


def _eagle(model: _Model, config: dict[str, Any]) -> None:
    """Add the EAGLE nets, each divided over all ranks, without norms before the first layer and after the last."""
    net = config["eagle_net_config"]
    rows = net["hidden_size"] // config["mapping"]["world_size"]
    for number in range(config["num_eagle_layers"]):
        prefix = f"eagle_nets.{number}"
        model.embedding(f"{prefix}.drafter.vocab_embedding", net)
        model.linear(f"{prefix}.drafter.fc", rows, 2 * net["hidden_size"], bias=rows)
        for layer in range(net["num_hidden_layers"]):
            model.layer(f"{prefix}.drafter.layers.{layer}", net, first_norm=layer > 0)
        model.head(f"{prefix}.lm_head", net["hidden_size"], net["vocab_size"])
