# SPDX-License-Identifier: Apache-2.0
"""Calibration against transformers: bit-identical inputs of every linear layer and cache, with one layer in memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from tests._support.tiny import LLAMA3_ROPE, PAIR_VOCAB, make_model, make_tokenizer
from trtspec.backends.common.convert import calibrate_checkpoint
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.safetensors import lay_out, read_header
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import CheckpointError
from trtspec.engine.prompts.prompt import Prompt

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

TEXTS = ("t", "the rest", "in here, where the north wind is", "naïve 北京 " * 20, "0123456789 " * 40)
PROMPTS = [Prompt(text, str(number), "") for number, text in enumerate(TEXTS)]
MAX_LEN = 300

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "llama3": LLAMA3_ROPE,
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128},
}
PART_OF_A_HEAD = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 5.0],
}  # fmt: skip
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-biases-tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "num_hidden_layers": 3}),
    "llama-all-kv-heads": ("llama", {"num_key_value_heads": 4}),
    **{f"llama-{kind}": ("llama", {"rope_parameters": rope}) for kind, rope in ROPES.items()},
    "gemma2": ("gemma2", {"sliding_window": 40}),
    "gemma2-caps": ("gemma2", {"attn_logit_softcapping": 2.0, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "gemma3": ("gemma3", {"sliding_window": 40, "num_hidden_layers": 7}),
    "mistral-head-dim": ("mistral", {"head_dim": 24}),
    "mistral-window": ("mistral", {"sliding_window": 40}),
    "phi3": ("phi3", {}),
    "phi3-part-of-a-head": ("phi3", {"rope_parameters": PART_OF_A_HEAD, "sliding_window": 40}),
    "phi3-longrope": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 400}),
    "qwen2": ("qwen2", {}),
    "qwen3-yarn": ("qwen3", {"rope_parameters": ROPES["yarn"]}),
    "mixtral": ("mixtral", {}),
    "mixtral-top-1": ("mixtral", {"num_experts_per_tok": 1}),
}
MODULES = {
    "q_proj": "attention.qkv", "k_proj": "attention.qkv", "v_proj": "attention.qkv", "o_proj": "attention.dense",
    "qkv_proj": "attention.qkv", "gate_proj": "mlp.fc", "gate_up_proj": "mlp.fc", "up_proj": "mlp.gate",
    "down_proj": "mlp.proj",
}  # fmt: skip


class Listener(TorchFunctionMode):
    """Records the largest input of F.linear by the module of the weight."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inputs: dict[str, float] = {}
        self._modules = {
            parameter.untyped_storage().data_ptr(): self._module(name) for name, parameter in model.named_parameters()
        }

    @staticmethod
    def _module(name: str) -> str | None:
        if name in ("lm_head.weight", "model.embed_tokens.weight"):  # one tensor if they are tied
            return "lm_head"
        found = re.search(r"layers\.(\d+)\..*?(\w+_proj)", name)
        return f"transformer.layers.{found[1]}.{MODULES[found[2]]}" if found else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and (module := self._modules.get(args[1].untyped_storage().data_ptr())):
            self.inputs[module] = max(self.inputs.get(module, 0.0), args[0].abs().max().item())
        return func(*args, **(kwargs or {}))


def make_source(root: Path, family: str = "llama", dtype: str = "bfloat16", **shape: Any) -> Path:
    rows = PAIR_VOCAB + 2  # one is for <unk>, which Gemma's tokenizer class needs
    make_model(root, family, dtype=dtype, **{"vocab_size": rows, "max_position_embeddings": 512, **shape})
    make_tokenizer(root)
    path = root / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["vocab"]["<unk>"] = len(document["model"]["vocab"])
    path.write_text(json.dumps(document))
    return root


def reference(root: Path, max_len: int = MAX_LEN) -> Activations:
    """Return the magnitudes in transformers' model of `root`, in the dtype of its weights."""
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(root, dtype="auto", experts_implementation="eager").eval()
    listener, tokenizer = Listener(model), Tokenizer(root)
    found = Activations(listener.inputs)
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt.text)[:max_len]])
        with torch.inference_mode(), listener:
            # a cache that keeps all entries, unlike the cache of layers with a window
            cache = model(ids, past_key_values=DynamicCache()).past_key_values
        for number, layer in enumerate(cache.layers):
            module = f"transformer.layers.{number}.attention"
            for table, tensor in ((found.keys, layer.keys), (found.values, layer.values)):
                table[module] = max(table.get(module, 0.0), tensor.abs().max().item())
    return found


@pytest.mark.parametrize(("family", "shape"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_activations_equal_transformers(family: str, shape: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    source = make_source(tmp_path, family, dtype, **shape)
    found, expected = calibrate_checkpoint(source, PROMPTS, MAX_LEN), reference(source)
    assert found.inputs.keys() == expected.inputs.keys()
    # transformers stores an expert's two matrices as one, and a float32 product of another width rounds differently
    tolerance = 1e-6 if (family, dtype) == ("mixtral", "float32") else 0.0
    for mine, theirs in zip(vars(found).values(), vars(expected).values(), strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance, abs=0.0)


def test_longrope_texts_are_truncated_where_the_factors_change(tmp_path: Path) -> None:
    rope = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 40}
    source = make_source(tmp_path, "phi3", **rope)
    assert calibrate_checkpoint(source, PROMPTS, MAX_LEN) == calibrate_checkpoint(source, PROMPTS, 40)
    assert calibrate_checkpoint(source, PROMPTS, 40) == reference(source, 40)


def test_number_of_threads_does_not_change_the_result(tmp_path: Path) -> None:
    """A float32 product of seven tokens and 512 columns has other bits on two threads."""
    source = make_source(tmp_path, dtype="float32", hidden_size=512)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        calibrate_checkpoint(source, [Prompt("q" * 7, "", "")], MAX_LEN).save(tmp_path / "activations.json")
        found.append((tmp_path / "activations.json").read_bytes())
        assert torch.get_num_threads() == threads  # the setting is restored
    assert found[1:] == found[:1] * 2


@pytest.mark.parametrize("tied", [True, False])
def test_progress_sums_to_the_size_of_the_source(tied: bool, tmp_path: Path) -> None:
    source = make_source(tmp_path, tie_word_embeddings=tied)
    steps: list[int] = []
    calibrate_checkpoint(source, PROMPTS, MAX_LEN, steps.append)
    assert sum(steps) == load_source(source).nbytes
    assert len(steps) == 1 + 2 * len(PROMPTS) + 1  # a layer is reported prompt by prompt


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        ("model.embed_tokens.weight", "the inputs of transformer.layers.0.attention.qkv are not finite"),
        ("model.layers.1.self_attn.k_proj.weight", "the keys of transformer.layers.1.attention are not finite"),
        ("model.layers.1.self_attn.v_proj.weight", "the values of transformer.layers.1.attention are not finite"),
        ("model.layers.0.mlp.up_proj.weight", "the inputs of transformer.layers.0.mlp.proj are not finite"),
        ("model.layers.1.mlp.down_proj.weight", "the inputs of lm_head are not finite"),
    ],
)
@pytest.mark.parametrize("pattern", [0x7F80, 0x7FC0], ids=["inf", "nan"])
def test_non_finite_activations_are_an_error_with_the_module(
    tensor: str, said: str, pattern: int, tmp_path: Path
) -> None:
    source = make_source(tmp_path)
    damaged = read_header(source / "model.safetensors")[tensor]
    np.memmap(damaged.file, np.uint16, "r+", damaged.offset, (damaged.nbytes // 2,))[:] = pattern
    with pytest.raises(CheckpointError, match=re.escape(said)) as raised:
        calibrate_checkpoint(source, PROMPTS, MAX_LEN)
    assert raised.value.where == str(source)
    assert raised.value.hint == "weights up to this module are corrupt or too large for bfloat16"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_gpu_calibration_is_reproducible_and_close_to_the_cpu(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(tmp_path, family, "float32")
    found = calibrate_checkpoint(source, PROMPTS, MAX_LEN)
    assert calibrate_checkpoint(source, PROMPTS, MAX_LEN) == found
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    expected = calibrate_checkpoint(source, PROMPTS, MAX_LEN)
    for mine, theirs in zip(vars(found).values(), vars(expected).values(), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)


LARGE = {
    "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "vocab_size": 32768, "hidden_size": 1024,
    "intermediate_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 8, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
LAYER_BYTES = 2 * (4 * 1024 * 1024 + 3 * 1024 * 2048)
MEASURE_MEMORY = """
import re, sys
from pathlib import Path
from trtspec.engine.prompts.prompt import Prompt
from trtspec.backends.common.convert import calibrate_checkpoint

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

warm, large = map(Path, sys.argv[1:])
prompts = [Prompt(text, "", "") for text in ("the rest", "in here", "the north wind")]
calibrate_checkpoint(warm, prompts, 64)
before = peak()
calibrate_checkpoint(large, prompts, 64)
print(peak() - before)
"""


def make_large(root: Path) -> Path:
    """Save a Llama of zeros in a sparse file: 24 layers of 21 MB each, and 67 MB for each of the two embeddings."""
    root.mkdir()
    config = LARGE | {"num_key_value_heads": 8}
    (root / "config.json").write_text(json.dumps(config))
    hidden, inter = LARGE["hidden_size"], LARGE["intermediate_size"]
    tensors = {"model.embed_tokens.weight": (32768, hidden), "lm_head.weight": (32768, hidden)}
    tensors["model.norm.weight"] = (hidden,)
    for layer in range(24):
        own = f"model.layers.{layer}"
        tensors |= {f"{own}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        tensors |= {f"{own}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
        tensors |= {f"{own}.mlp.{name}_proj.weight": (inter, hidden) for name in ("gate", "up")}
        tensors[f"{own}.mlp.down_proj.weight"] = (hidden, inter)
    layout = lay_out((name, "BF16", shape) for name, shape in tensors.items())
    with (root / "model.safetensors").open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.nbytes)
    return make_tokenizer(root)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_memory_usage_is_about_one_layer(tmp_path: Path) -> None:
    warm, large = make_source(tmp_path / "warm"), make_large(tmp_path / "large")
    command = [sys.executable, "-c", MEASURE_MEMORY, str(warm), str(large)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path.cwd(), timeout=300)
    assert LAYER_BYTES / 2 < int(done.stdout) < 1.5 * LAYER_BYTES  # of 636 MB
