# SPDX-License-Identifier: Apache-2.0
"""The projects' own code as the oracle: it writes drafts that are converted, and speculators reads what we write."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.nets import NETS, contents, make_target
from trtspec.dialects.convert import convert_draft
from trtspec.dialects.dialect import forms_of

KINDS = ("eagle3", "p_eagle", "dflash", "dspark")
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target") / "hf")


@pytest.mark.slow
def test_what_modelopt_exports(target: Path, tmp_path: Path) -> None:
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
def test_what_speculators_writes_comes_back_and_what_we_write_is_read(target: Path, tmp_path: Path) -> None:
    written, where = tmp_path / "written", str(target)
    speculators("write", str(written), where)
    for kind in KINDS:
        for other in {*forms_of(kind)} - {"speculators", "deepspec" * (kind == "eagle3")}:
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
