# SPDX-License-Identifier: Apache-2.0
"""`trtspec convert-draft`: output, rejected drafts, and no files after an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.methods.draft_formats.nets import config_of, contents

MODELS = Path(__file__).parents[3] / "recipes" / "models"
HEAD, TARGET = MODELS / "quickstart-eagle3", MODELS / "quickstart-target"
MEDUSA, MEDUSA_FILE = MODELS / "quickstart-medusa", "medusa_lm_head.safetensors"


def test_eagle3_head_round_trips_through_speculators(trtspec: Run, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    shown = trtspec("convert-draft", HEAD, "--to", "speculators", "-o", there, "--target", TARGET, "--json")
    assert shown.code == 0
    document = json.loads(shown.out)
    assert {key: document[key] for key in ("kind", "from", "to", "tensors")} == {
        "kind": "eagle3", "from": "specforge", "to": "speculators", "tensors": 15,
    }  # fmt: skip
    assert config_of(there)["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    shown = trtspec("convert-draft", there, "--to", "specforge", "-o", back)
    assert shown.out.endswith("eagle3 from speculators to specforge, 15 tensors, 3,545,088 bytes\n")
    assert contents(back) == contents(HEAD)
    assert config_of(back)["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]


def test_medusa_heads_round_trip_through_vllm(trtspec: Run, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    shown = trtspec("convert-draft", MEDUSA, "--to", "vllm", "-o", there)
    assert shown.out.endswith("medusa from fasterdecoding to vllm, 12 tensors, 4,328,448 bytes\n")
    assert trtspec("convert-draft", there, "--to", "fasterdecoding", "-o", back).code == 0
    assert (back / MEDUSA_FILE).read_bytes() == (MEDUSA / MEDUSA_FILE).read_bytes()
    shown = trtspec("convert-draft", there, "--to", "speculators", "-o", tmp_path / "out")
    assert "speculators does not support medusa drafts\nhint: supported by: fasterdecoding, modelopt, vllm" in shown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--to", "speculators"), "requires the name of the target\nhint: give --target"),
        (("--to", "zlab"), "z-lab does not support eagle3 drafts\nhint: supported by: deepspec, modelopt, specforge"),
        (("--to", "specforg"), "did you mean 'specforge'?"),
        (("--to", "deepspec", "--target", str(TARGET)), "has no layers.0.self_attn.q_norm.weight"),
    ],
)
def test_unsupported_conversion_is_rejected_without_output(
    arguments: tuple[str, ...], words: str, trtspec: Run, tmp_path: Path
) -> None:
    shown = trtspec("convert-draft", HEAD, *arguments, "-o", tmp_path / "out")
    assert (shown.code, shown.out) == (1, "")
    assert words in shown.err
    assert list(tmp_path.iterdir()) == []


def test_existing_output_is_not_overwritten(trtspec: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("text")
    shown = trtspec("convert-draft", HEAD, "--to", "modelopt", "-o", tmp_path / "mine")
    assert (shown.code, (tmp_path / "mine").read_text()) == (1, "text")
    assert "already exists" in shown.err


def test_unknown_config_key_is_rejected_unless_dropped(trtspec: Run, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes((HEAD / "model.safetensors").read_bytes())
    (source / "config.json").write_text(json.dumps({**config_of(HEAD), "logit_scale": 2.0}))
    asked = ("convert-draft", source, "--to", "modelopt", "-o", tmp_path / "out")
    shown = trtspec(*asked)
    assert "unknown to all dialects of eagle3: logit_scale\nhint: if it does not affect computation" in shown.err
    assert trtspec(*asked, "--drop", "logit_scale").code == 0
    assert "logit_scale" not in config_of(tmp_path / "out")
