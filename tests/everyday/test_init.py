# SPDX-License-Identifier: Apache-2.0
"""`trtspec init`: proposals for directories and machines, and errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests._support.shapes import make_checkpoint, shapes
from tests.conftest import Outcome, Run
from trtspec.core.paths import recipes_dir
from trtspec.planning.completion import editor_schema

MODELS = recipes_dir() / "models"
TARGET = MODELS / "quickstart-target"
HEADS = {"medusa": "4 Medusa heads", "eagle": "an EAGLE head", "eagle3": "an EAGLE-3 head", "redrafter": "a recurrent"}
IMPORTS = """
import sys
from trtspec.cli.app import main
try:
    main(sys.argv[1:])
finally:
    print(*sys.modules)
"""


@pytest.fixture(autouse=True)
def _no_gpu(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine without nvidia-smi."""
    monkeypatch.setenv("PATH", str(workplace))


def show_gpus(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Simulate an nvidia-smi that lists these GPUs."""
    doubles = Path(__file__).resolve().parents[1] / "doubles"
    monkeypatch.setenv("PATH", os.pathsep.join([str(doubles), str(Path(sys.executable).parent), "/usr/bin", "/bin"]))
    monkeypatch.setenv("NVIDIA_SMI_DOUBLE", "\n".join(lines))


def flat_output(outcome: Outcome) -> str:
    """Return the output with runs of white space collapsed."""
    return " ".join((outcome.out + outcome.err).split())


def written_recipe(outcome: Outcome) -> dict[str, Any]:
    """Return the recipe of a document, after checking that it equals its file."""
    recipe: dict[str, Any] = outcome.document["recipe"]
    assert yaml.safe_load(Path(outcome.document["path"]).read_text()) == recipe
    return recipe


def whys(outcome: Outcome) -> dict[str, str]:
    """Return the reasons of the choices by path."""
    return {choice["path"]: choice["why"] for choice in outcome.document["choices"]}


def shape(name: str, root: Path) -> Path:
    """Create the headers of a published checkpoint."""
    (found,) = (each for each in shapes() if each.name == name)
    make_checkpoint(found, root / name)
    return root / name


class TestTheQuickstart:
    def test_pair_writes_the_expected_recipe(self, trtspec: Run, workplace: Path) -> None:
        made = trtspec("init", TARGET, MODELS / "quickstart-draft", "--json")
        assert (made.code, made.err) == (0, "")
        assert set(made.document) == {"format_version", "ok", "path", "recipe", "choices", "problems"}
        assert (made.document["ok"], made.document["path"]) == (True, "quickstart-target.yaml")
        recipe = written_recipe(made)
        assert recipe["speculation"].pop("draft") == {"model": os.path.relpath(MODELS / "quickstart-draft")}
        assert recipe == {
            "schema": "trtspec.recipe/1",
            "name": "quickstart-target",
            "target": {"model": os.path.relpath(TARGET)},
            "speculation": {"method": "draft_target", "draft_len": 5},
            "engine": {"backend": "embedded", "max_batch_size": 8, "max_input_len": 512, "max_seq_len": 1024},
            "gates": {"lossless": True},
        }
        assert whys(made)["engine.backend"] == "TensorRT-LLM is not installed here"
        assert "17.3 times smaller than the target" in whys(made)["speculation.draft.model"]

    def test_size_of_a_draft_is_relative_to_its_target(self, trtspec: Run, workplace: Path) -> None:
        exchanged = trtspec("init", MODELS / "quickstart-draft", TARGET, "--json")
        assert "17.3 times larger than the target" in whys(exchanged)["speculation.draft.model"]
        same = trtspec("init", TARGET, TARGET, "--json", "--name", "same")
        assert "as large as the target" in whys(same)["speculation.draft.model"]

    @pytest.mark.slow
    def test_written_recipe_is_checked_planned_and_built(self, trtspec: Run, workplace: Path) -> None:
        made = trtspec("init", TARGET, MODELS / "quickstart-draft", "--name", "mine")
        assert made.code == 0
        assert flat_output(made).endswith("mine.yaml: written and valid; next: trtspec build mine.yaml")
        for command in ("check", "plan", "build"):
            done = trtspec(command, "mine.yaml")
            assert done.code == 0, done.err
        assert (workplace / "build" / "mine" / "manifest.json").is_file()

    @pytest.mark.slow
    @pytest.mark.parametrize("method", HEADS)
    def test_head_of_each_kind_sets_its_method(self, method: str, trtspec: Run, workplace: Path) -> None:
        made = trtspec("init", TARGET, MODELS / f"quickstart-{method}", "-o", "head.yaml", "--json")
        assert made.code == 0, made.out
        assert written_recipe(made)["speculation"]["method"] == method
        assert HEADS[method] in whys(made)["speculation.method"]
        assert trtspec("plan", "head.yaml").code == 0

    def test_missing_draft_selects_ngram(self, trtspec: Run, workplace: Path) -> None:
        made = trtspec("init", TARGET, "--json")
        assert made.code == 0
        assert written_recipe(made)["speculation"] == {"method": "ngram", "draft_len": 8}
        assert "works without a draft" in whys(made)["speculation.method"]

    def test_options_override_the_defaults(self, trtspec: Run, workplace: Path) -> None:
        arguments = ("--method", "lookahead", "--backend", "embedded", "--gpu", "a100-80gb", "--name", "other")
        made = trtspec("init", TARGET, *arguments, "--json")
        recipe = written_recipe(made)
        assert (recipe["speculation"], recipe["engine"]["gpu"]) == ({"method": "lookahead"}, "a100-80gb")
        assert made.document["path"] == "other.yaml"
        for path, option in (("speculation.method", "method"), ("engine.backend", "backend"), ("name", "name")):
            assert whys(made)[path] == f"set by --{option}"

    @pytest.mark.slow
    def test_init_imports_no_heavy_packages(self, workplace: Path) -> None:
        argv = [sys.executable, "-c", IMPORTS, "init", str(TARGET), str(MODELS / "quickstart-eagle3"), "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
        imported = set(done.stdout.split())
        assert "trtspec.planning.init.write" in imported
        assert not imported & {"torch", "numpy", "transformers", "tokenizers", "huggingface_hub"}


class TestTheFile:
    def test_each_value_has_a_comment_with_its_reason(self, trtspec: Run, workplace: Path) -> None:
        trtspec("init", TARGET, MODELS / "quickstart-draft")
        lines = (workplace / "quickstart-target.yaml").read_text().splitlines()
        assert lines[0] == "# yaml-language-server: $schema=trtspec-recipe.schema.json"
        assert max(map(len, lines)) <= 120
        for before, line in pairwise(lines):
            has_value = re.match(r" *[a-z_]+: .", line) and not line.startswith("schema:")
            assert not has_value or "  # " in line or before.lstrip().startswith("#"), line
        assert "  # no quantization: no GPU is known that supports FP8" in lines
        assert "  # no gpu: nvidia-smi shows none here; name one with --gpu, as h100" in lines

    def test_schema_file_is_written_beside_it_and_updated_if_outdated(self, trtspec: Run, workplace: Path) -> None:
        trtspec("init", TARGET, "--name", "one")
        schema = workplace / "trtspec-recipe.schema.json"
        assert json.loads(schema.read_text()) == editor_schema()
        os.utime(schema, (1, 1))
        trtspec("init", TARGET, "--name", "two")
        assert schema.stat().st_mtime == 1, "the existing file is not overwritten"
        schema.write_text("{}")
        trtspec("init", TARGET, "--name", "three")
        assert json.loads(schema.read_text()) == editor_schema()

    def test_existing_file_is_not_replaced_without_force(self, trtspec: Run, workplace: Path) -> None:
        (workplace / "mine.yaml").write_text("precious")
        refused = trtspec("init", TARGET, "-o", "mine.yaml")
        assert (refused.code, flat_output(refused)) == (
            1,
            "error: mine.yaml: the file exists hint: choose another file with --out, or replace it with --force",
        )
        assert (workplace / "mine.yaml").read_text() == "precious"
        assert trtspec("init", TARGET, "-o", "mine.yaml", "--force").code == 0
        assert trtspec("check", "mine.yaml").code == 0

    def test_unwritable_path_is_an_error(self, trtspec: Run, workplace: Path) -> None:
        refused = trtspec("init", TARGET, "-o", "nosuch/mine.yaml")
        assert (refused.code, flat_output(refused)) == (
            1,
            "error: nosuch/mine.yaml: cannot be written: No such file or directory hint: choose another file with -o",
        )
        (workplace / "folder").mkdir()
        refused = trtspec("init", TARGET, "-o", "folder", "--force")
        assert (
            flat_output(refused) == "error: folder: cannot be written: Is a directory hint: choose another file with -o"
        )
        assert {path.name for path in workplace.iterdir()} == {"cache", "folder"}

    def test_name_is_derived_from_an_odd_directory_name(self, trtspec: Run, workplace: Path) -> None:
        odd = workplace / "# My Model: 1"
        shutil.copytree(TARGET, odd)
        made = trtspec("init", odd, "--json")
        assert made.code == 0, made.err
        assert made.document["recipe"]["name"] == "my-model-1"
        assert written_recipe(made)["target"]["model"] == "./# My Model: 1"


class TestTheMachine:
    def test_gpu_is_detected_with_nvidia_smi(
        self, trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        show_gpus(monkeypatch, "NVIDIA L4, 8.9, 1, 23034", "NVIDIA L4, 8.9, 1, 23034")
        made = trtspec("init", TARGET, "--json")
        assert written_recipe(made)["engine"]["gpu"] == "l4"
        assert whys(made)["engine.gpu"] == "nvidia-smi shows 2 of them here"

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ("NVIDIA X1, 8.9, 1, 23034", "the NVIDIA X1 here is unknown; name another with --gpu"),
            ("broken", "nvidia-smi printed unexpected output ['broken']; name one with --gpu"),
        ],
    )
    def test_unrecognized_gpu_is_reported_as_the_reason(
        self, line: str, why: str, trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        show_gpus(monkeypatch, line)
        made = trtspec("init", TARGET, "--json")
        assert (made.code, whys(made)["engine.gpu"]) == (0, why)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("gpu", "tensor", "weights"), [("h100", 2, "fp8"), ("h200", 1, "fp8"), ("a100-80gb", 4, None)]
    )
    def test_large_model_is_sharded_and_quantized_for_the_gpu(
        self, gpu: str, tensor: int, weights: str | None, trtspec: Run, workplace: Path
    ) -> None:
        pair = (shape("llama-3.3-70b-instruct", workplace), shape("llama-3.2-1b-instruct", workplace))
        made = trtspec("init", *pair, "--backend", "tensorrt_llm", "--gpu", gpu, "--json")
        assert made.code == 0, made.out
        target = written_recipe(made)["target"]
        assert target["parallel"] == {"tensor": tensor}
        assert target.get("quantization", {}).get("weights") == weights
        if weights is None:
            assert "a100-80gb lacks FP8, which needs compute capability 8.9" in whys(made)["target.quantization"]
        assert trtspec("plan", made.document["path"]).code == 0

    def test_max_seq_len_is_reduced_to_fit_the_gpu(
        self, trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        show_gpus(monkeypatch, "NVIDIA L4, 8.9, 1, 23034")
        made = trtspec("init", shape("qwen3-8b", workplace), "--backend", "vllm", "--json")
        recipe = written_recipe(made)
        assert (recipe["target"]["parallel"], recipe["engine"]["max_seq_len"]) == ({"tensor": 1}, 2048)
        assert "8192 would be too much" in whys(made)["engine.max_seq_len"]

    def test_model_too_large_for_the_gpus_is_reported(
        self, trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        show_gpus(monkeypatch, "NVIDIA L4, 8.9, 1, 23034", "NVIDIA L4, 8.9, 1, 23034")
        made = trtspec("init", shape("llama-3.3-70b-instruct", workplace), "--backend", "vllm", "--json")
        recipe = written_recipe(made)
        assert (recipe["target"]["parallel"], recipe["engine"]["max_seq_len"]) == ({"tensor": 2}, 8192)
        assert whys(made)["target.parallel.tensor"] == "it does not fit even these"
        assert whys(made)["engine.max_batch_size"].endswith(" of 19.8 GiB used: too much")

    def test_fp8_is_omitted_if_the_method_does_not_support_it(self, trtspec: Run, workplace: Path) -> None:
        pair = (shape("llama-2-7b-chat", workplace), shape("eagle-llama2-chat-7b", workplace))
        made = trtspec("init", *pair, "--backend", "tensorrt_llm", "--gpu", "h100", "--json")
        assert made.code == 0
        assert "quantization" not in written_recipe(made)["target"]
        assert "EAGLE engines require float16 or bfloat16" in whys(made)["target.quantization"]

    def test_mtp_layers_are_used_if_the_backend_supports_them(self, trtspec: Run, workplace: Path) -> None:
        root = workplace / "target"
        shutil.copytree(TARGET, root)
        config = json.loads((root / "config.json").read_text())
        unknown = {
            "num_nextn_predict_layers": 1,
            "model_type": "deepseek_v3",
            "architectures": ["DeepseekV3ForCausalLM"],
        }
        (root / "config.json").write_text(json.dumps(config | unknown))
        made = trtspec("init", root, "--backend", "llmapi", "--gpu", "h200", "--json")
        assert made.code == 0, made.out
        assert written_recipe(made)["speculation"] == {"method": "mtp", "draft_len": 1}
        refused = trtspec("init", root, "--name", "other")
        assert refused.code == 1
        assert "architecture 'DeepseekV3ForCausalLM' is not supported; supported: " in flat_output(refused)

    def test_medusa_choices_are_limited_to_the_number_of_heads(self, trtspec: Run, workplace: Path) -> None:
        import numpy as np
        from safetensors.numpy import save_file

        from trtspec.checkpoints.safetensors import read_header

        heads = workplace / "heads"
        shutil.copytree(MODELS / "quickstart-medusa", heads)
        config = json.loads((heads / "config.json").read_text())
        (heads / "config.json").write_text(json.dumps(config | {"medusa_num_heads": 2}))
        file = heads / "medusa_lm_head.safetensors"
        kept = [tensor for name, tensor in read_header(file).items() if name[0] in "01"]
        save_file({tensor.name: np.zeros(tensor.shape, np.float16) for tensor in kept}, file)
        made = trtspec("init", TARGET, heads, "--json")
        assert made.code == 0, made.out
        choices = written_recipe(made)["speculation"]["options"]["choices"]
        assert {len(path) for path in choices} == {1, 2}


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("arguments", "message", "hint"),
        [
            (("./nosuch",), "no such directory: {here}/nosuch", "a checkpoint is a directory with config.json and"),
            (("a/b/c",), "no such directory: {here}/a/b/c", "a checkpoint is a directory"),
            ((TARGET / "config.json",), "is a file, not a directory: ", "a checkpoint is a directory"),
            (("./empty",), "{here}/empty: no config.json", "a checkpoint is a directory with config.json"),
            ((TARGET, "./empty"), "{here}/empty: no config.json", "a checkpoint is a directory with config.json"),
            ((TARGET, "--gpu", "h10"), "unknown GPU 'h10'", "did you mean 'h100'?"),
            ((TARGET, "--method", "ngrm"), "unknown speculation method 'ngrm'", "did you mean 'ngram'?"),
            ((TARGET, "--backend", "vlm"), "unknown backend 'vlm'", "did you mean 'vllm'?"),
            ((TARGET, "--name", "A b"), "--name: 'A b' is not a name: lower-case letters", ""),
            ((TARGET, "--method", "medusa"), "medusa needs a head", "name it: trtspec init TARGET DRAFT"),
            ((TARGET, TARGET, "--method", "ngram"), "ngram does not use a draft", "remove DRAFT"),
        ],
    )
    def test_invalid_arguments_are_rejected_and_nothing_is_written(
        self, arguments: tuple[object, ...], message: str, hint: str, trtspec: Run, workplace: Path
    ) -> None:
        (workplace / "empty").mkdir()
        refused = trtspec("init", *arguments)
        assert refused.code == 1
        assert f"error: {message.format(here=workplace)}" in flat_output(refused)
        assert hint in flat_output(refused)
        assert [path.name for path in workplace.iterdir()] == ["empty"]

    def test_unknown_architecture_is_rejected(self, trtspec: Run, workplace: Path) -> None:
        for role in ("target", "draft"):
            shutil.copytree(MODELS / f"quickstart-{role}", workplace / role)
            config = json.loads((workplace / role / "config.json").read_text())
            (workplace / role / "config.json").write_text(json.dumps(config | {"architectures": ["Odd"]}))
        for pair in ((workplace / "target",), (TARGET, workplace / "draft")):
            refused = trtspec("init", *pair)
            assert refused.code == 1
            assert "architecture 'Odd' is not supported; supported: " in flat_output(refused)
            assert not list(workplace.glob("*.yaml"))

    def test_draft_with_unknown_token_bytes_is_reported_by_the_check(
        self, recipe: Path, workplace: Path, trtspec: Run
    ) -> None:
        draft = Path(shutil.copytree(MODELS / "quickstart-draft", workplace / "odd"))
        tokenizer = draft / "tokenizer.json"
        tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"decoder": None}))
        made = trtspec("init", recipe.parent / "target", draft, "-o", "odd.yaml", "--json")
        assert (made.code, made.document["ok"]) == (1, False)
        (problem,) = (each for each in made.document["problems"] if each["severity"] == "error")
        assert (problem["path"], problem["code"]) == ("speculation.draft.model", "vocabulary")
        assert problem["line"]
        assert Path("odd.yaml").is_file(), "the file is kept for editing"
        shown = trtspec("init", recipe.parent / "target", draft, "-o", "odd.yaml", "--force")
        assert flat_output(shown).endswith("odd.yaml: written, but invalid; see the errors above")

    def test_hub_id_in_offline_mode_is_an_error(self, trtspec: Run, workplace: Path) -> None:
        refused = trtspec("init", "org/model")
        assert (refused.code, flat_output(refused)) == (
            1,
            "error: org/model: not in the hub cache, and HF_HUB_OFFLINE is set "
            "hint: unset HF_HUB_OFFLINE and try again; there is no directory ./org/model either",
        )
