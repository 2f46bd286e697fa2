# SPDX-License-Identifier: Apache-2.0
"""A family from another package: the example of docs/extending.md, installed as its author would install it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests._support import forked
from tests._support.tiny import convert, make_llama
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import UnsupportedArchitecture

pytestmark = pytest.mark.slow  # starts an interpreter that finds another package

EXTENDING = Path(__file__).parents[2] / "docs" / "extending.md"
NAMES = {
    "model.embed_tokens": "wte",
    "model.norm": "norm",
    "model.layers": "h",
    "self_attn.": "",
    "mlp.": "",
    "_proj": "",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
}
CONVERT = """
import sys
from pathlib import Path
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import UnsupportedArchitecture
from trtspec.checkpoints.source_model import load_model
from trtspec.backends.common.convert import convert_checkpoint
convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), mapping=ParallelMapping(2, 2))
"""


def code_block(language: str) -> str:
    """Return the first block of a language in the documentation."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", EXTENDING.read_text(), re.MULTILINE | re.DOTALL)
    return blocks[0]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), tie_word_embeddings=True)


@pytest.fixture(scope="module")
def toy(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with Toy's tensor names, and a tensor that Toy skips."""
    root = tmp_path_factory.mktemp("toy")
    config = json.loads((llama / "config.json").read_text())
    (root / "config.json").write_text(json.dumps(config | {"architectures": ["ToyForCausalLM"]}))
    tensors = {"h.0.mask": torch.ones(4, 4)}
    for name, tensor in load_file(llama / "model.safetensors").items():
        for old, new in NAMES.items():
            name = name.replace(old, new)  # noqa: PLW2901
        tensors[name] = tensor
    save_file(tensors, root / "model.safetensors")
    return root


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which Toy is installed."""
    site = tmp_path_factory.mktemp("site")
    (site / "toy.py").write_text(code_block("python"))
    group, entry = code_block("toml").splitlines()
    name = re.fullmatch(r'\[project\.entry-points\."(.*)"\]', group).group(1)
    metadata = site / "toy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{name}]\n{entry.replace(chr(34), '')}\n")
    return {**os.environ, "PYTHONPATH": str(site)}


def run(environment: dict[str, str], *argv: object) -> str:
    """Run Python and return its output; it must succeed."""
    done = forked.run([sys.executable, *argv], 300, env=environment, kind=forked.Computing)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_inspect_reports_the_external_family(toy: Path, installed: dict[str, str]) -> None:
    document = json.loads(run(installed, "-m", "trtspec", "inspect", toy, "--json"))
    assert (document["family"], document["architecture"]) == ("toy", "LlamaForCausalLM")
    assert document["skipped"] == {"h.0.mask": "engines make causal masks themselves"}


def test_external_family_converts_to_the_same_checkpoint_as_llama(
    llama: Path, toy: Path, installed: dict[str, str], tmp_path: Path
) -> None:
    expected = convert(llama, tmp_path / "llama", mapping=ParallelMapping(2, 2))
    (tmp_path / "toy").mkdir()
    run(installed, "-c", CONVERT, toy, tmp_path / "toy")
    for path in sorted(expected.iterdir()):
        ours = tmp_path / "toy" / path.name
        if path.suffix == ".json":
            assert json.loads(ours.read_text()) == json.loads(path.read_text())
        else:
            theirs, tensors = load_file(path), load_file(ours)
            assert tensors.keys() == theirs.keys()
            assert all(torch.equal(tensor, theirs[name]) for name, tensor in tensors.items())


def test_architecture_without_its_package_is_unsupported(toy: Path) -> None:
    argv = [sys.executable, "-m", "trtspec", "inspect", str(toy), "--json"]
    done = forked.run(argv, 300)
    assert (json.loads(done.stdout)["family"], done.returncode) == ("none", 0)
    with pytest.raises(
        UnsupportedArchitecture, match="'ToyForCausalLM' is not supported; supported: Gemma2ForCausalLM, "
    ):
        load_model(toy, "auto")


VERSION = """
import sys
from pathlib import Path
from trtspec.checkpoints.source_model import load_model
print(load_model(Path(sys.argv[1]), "auto").family_version)
"""


def test_source_model_has_the_version_of_an_external_family(toy: Path, llama: Path, installed: dict[str, str]) -> None:
    assert run(installed, "-c", VERSION, toy).strip() == "toy 1.0"
    assert run(installed, "-c", VERSION, llama).strip() == ""
