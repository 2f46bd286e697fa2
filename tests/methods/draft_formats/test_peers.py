# SPDX-License-Identifier: Apache-2.0
"""The projects' code as the oracle: it writes drafts that are converted, and speculators reads the results."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engines import engine_python
from tests.methods.draft_formats.medusa_nets import HEADS, blocks_alone, vllm
from tests.methods.draft_formats.nets import NETS, config_of, contents, make_target
from tests.methods.heads import HIDDEN, logits_of, random_heads
from trtspec.methods.draft_formats.base import schemas_for
from trtspec.methods.draft_formats.convert import convert_draft

KINDS = ("eagle3", "p_eagle", "dflash", "dspark")
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target") / "hf")


@pytest.mark.slow
def test_modelopt_eagle3_export_round_trips_through_other_formats(target: Path, tmp_path: Path) -> None:
    speculative: Any = pytest.importorskip("modelopt.torch.speculative")
    from modelopt.torch.export.plugins.hf_spec_export import EagleExporter
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype="bfloat16")
    head = {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "num_hidden_layers": 1, "vocab_size": 64, "draft_vocab_size": 64, "max_position_embeddings": 256,
        "use_aux_hidden_state": True, "use_last_layernorm": True, "use_input_layernorm_in_first_layer": True,
        "has_lm_head": True, "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "rope_scaling": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    speculative.convert(model, [("eagle", {"eagle_architecture_config": head, "eagle_decoder_type": "llama"})])
    EagleExporter(model).export(tmp_path / "modelopt")
    for other in ("specforge", "speculators"):
        there = convert_draft(tmp_path / "modelopt", other, tmp_path / other, str(target))
        assert there.draft.dialect == "modelopt"
        assert there.draft.facts["aux_layers"] == (2, 4, 5)
        convert_draft(tmp_path / other, "modelopt", tmp_path / f"from-{other}", str(target))
        assert contents(tmp_path / f"from-{other}") == contents(tmp_path / "modelopt")


def speculators(*arguments: str) -> None:
    """Run the peer with the interpreter that has speculators."""
    interpreter = os.environ.get("TRTSPEC_SPECULATORS")
    if not interpreter:
        pytest.skip("TRTSPEC_SPECULATORS names no Python that has speculators 0.9")
    peer = Path(__file__).with_name("speculators_peer.py")
    ended = subprocess.run(
        [interpreter, str(peer), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.slow
def test_speculators_output_round_trips_and_conversions_load_in_speculators(target: Path, tmp_path: Path) -> None:
    written, where = tmp_path / "written", str(target)
    speculators("write", str(written), where)
    for kind in KINDS:
        for other in {*schemas_for(kind)} - {"speculators", "deepspec" * (kind == "eagle3")}:
            there = tmp_path / f"{kind}-{other}"
            convert_draft(written / kind, other, there, where)
            convert_draft(there, "speculators", tmp_path / other / kind, where)
            assert contents(tmp_path / other / kind) == contents(written / kind)
    for (kind, dialect), save in NETS.items():
        if dialect != "speculators":
            source = save(tmp_path / "ours" / dialect / kind)
            convert_draft(source, "speculators", tmp_path / f"of-{dialect}" / kind, where)
    for root in sorted(tmp_path.glob("of-*")):
        speculators("read", str(root), where)


@pytest.mark.slow
def test_modelopt_medusa_heads_round_trip_through_other_formats(target: Path, tmp_path: Path) -> None:
    """ModelOpt's heads are converted and converted back; ModelOpt's class loads the result, tensor by tensor."""
    speculative: Any = pytest.importorskip("modelopt.torch.speculative")
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype="bfloat16")
    speculative.convert(model, [("medusa", {"medusa_num_heads": 3, "medusa_num_layers": 2})])
    for name, parameter in model.named_parameters():
        if "medusa_heads" in name:
            parameter.data.normal_()
    export_hf_checkpoint(model, export_dir=tmp_path / "modelopt")
    for other in ("fasterdecoding", "vllm"):
        there = convert_draft(tmp_path / "modelopt", other, tmp_path / other, str(target))
        assert there.draft.dialect == "modelopt"
        convert_draft(tmp_path / other, "modelopt", tmp_path / f"from-{other}", str(target))
        assert contents(tmp_path / f"from-{other}") == contents(tmp_path / "modelopt")
    config_there, config_back = (config_of(tmp_path / name) for name in ("modelopt", "from-vllm"))
    assert config_back["medusa"] == config_there["medusa"]


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_logits_equal_the_converted_medusa_heads(target: Path, tmp_path: Path) -> None:
    """vLLM's class computes heads converted from each dialect; an uninitialized tensor would be detected."""
    sources = {"fasterdecoding": HEADS["medusa", "fasterdecoding"], "modelopt": HEADS["medusa", "modelopt"],
               "vllm": vllm(), "unbiased": vllm(bias=False), "blocks": blocks_alone}  # fmt: skip
    for name, save in sources.items():
        convert_draft(save(tmp_path / "sources" / name), "vllm", tmp_path / name, str(target))
    hidden = torch.randn(3, HIDDEN)
    save_file({"hidden": hidden}, tmp_path / "states")
    told = run_vllm(tmp_path / "states", tmp_path / "told", *(tmp_path / name for name in sources))
    lm_head = load_file(target / "model.safetensors")["lm_head.weight"]
    for name, logits in told.items():
        layers = 2 if name == "modelopt" else 1
        heads = random_heads(4, layers)
        if name == "unbiased":
            heads |= {each: torch.zeros_like(heads[each]) for each in heads if each.endswith("bias")}
        if name == "blocks":
            heads |= {f"{head}.1.weight": lm_head for head in range(4)}
        expected = torch.stack([logits_of(heads, head, hidden) for head in range(4)])
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def run_vllm(states: Path, out: Path, *roots: Path) -> dict[str, torch.Tensor]:
    """Return vLLM's logits of heads, by the directory's name."""
    peer = Path(__file__).with_name("vllm_peer.py")
    command = [engine_python("vllm"), peer, states, out, *roots]
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return load_file(out)
