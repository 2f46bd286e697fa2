# SPDX-License-Identifier: Apache-2.0
"""The trainers' own code as oracle: it reads the configuration and the rows, and trtspec imports its output."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from tests.methods.draft_formats.nets import contents
from tests.training.test_trainers import (  # noqa: F401 - fixtures
    TRAINERS,
    asked,
    job_of,
    models,
    recipe,
    rows_of,
    target,
)
from trtspec.training.external.job import render_config

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TIMEOUT_S = 300


def of_specforge(file: str) -> ModuleType:
    """Load a module of SpecForge that does not need the rest of the package."""
    root = os.environ.get("TRTSPEC_SPECFORGE")
    if not root:
        pytest.skip("TRTSPEC_SPECFORGE names no directory that has SpecForge's package")
    spec = importlib.util.spec_from_file_location(Path(file).stem, Path(root) / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # needed to resolve its annotations
    spec.loader.exec_module(module)
    return module


def test_specforge_loads_its_job(asked: Callable[..., Any]) -> None:  # noqa: F811
    schema, prompts = (of_specforge(f"specforge/{name}.py") for name in ("config/schema", "data/prompt_builder"))
    assert asked("--trainer", "specforge", "--out", "job").code == 0
    read = schema.load_config("job/run.yaml", ["model.target_model_path=elsewhere"])
    assert (read.mode, read.training.strategy, read.training.role) == ("online", "eagle3", "auto")
    assert (read.model.target_model_path, read.model.draft_checkpoint_path) == ("elsewhere", "draft")
    tasks = prompts.prepare_prompt_tasks(
        "job/rows.jsonl", None, chat_template="", max_length=read.data.max_length, is_preformatted=False,
        train_only_last_turn=False, cache_dir="cache", cache_key="", num_proc=1,
    )  # fmt: skip
    assert [task["payload"] for task in tasks] == rows_of(Path("job"))
    maps = torch.load("job/vocab_mapping.pt", weights_only=True)
    assert (maps["d2t"].shape, int(maps["t2d"].sum())) == ((256,), 256)


@pytest.mark.parametrize("kind", ["p_eagle", "dflash", "dspark"])
def test_specforge_loads_jobs_of_other_kinds(kind: str, target: Path, tmp_path: Path) -> None:  # noqa: F811
    schema = of_specforge("specforge/config/schema.py")
    job = job_of("specforge", kind, target, tmp_path)
    read = schema.Config.model_validate(yaml.safe_load(render_config(TRAINERS["specforge"], job)))
    assert read.training.strategy == job.kind.name


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_modelopt_starts_from_the_block_net(kind: str, target: Path, tmp_path: Path) -> None:  # noqa: F811
    """ModelOpt's code loads every weight of the net into the configured architecture, and exports it."""
    speculative: Any = pytest.importorskip("modelopt.torch.speculative")
    from modelopt.recipe.config import ModelOptDFlashRecipe
    from transformers import AutoModelForCausalLM

    job = job_of("modelopt", kind, target, tmp_path)
    said = yaml.safe_load(render_config(TRAINERS["modelopt"], job))
    said["dflash"]["dflash_init_checkpoint"] = str(tmp_path / "draft")
    read = ModelOptDFlashRecipe.model_validate(said)
    model = AutoModelForCausalLM.from_pretrained(target, dtype="bfloat16")
    speculative.convert(model, [("dflash", read.dflash.model_dump())])
    model.get_exporter().export(tmp_path / "exported")
    assert contents(tmp_path / "exported") == contents(tmp_path / "draft")


@pytest.fixture
def no_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A placeholder for a name that ModelOpt's collators import but do not use."""
    if importlib.util.find_spec("datasets") is None:
        datasets = ModuleType("datasets")
        datasets.__dict__["load_dataset"] = None
        monkeypatch.setitem(sys.modules, "datasets", datasets)


def test_modelopt_loads_its_job_and_its_export_is_evaluated(
    asked: Callable[..., Any],  # noqa: F811
    no_datasets: None,
) -> None:
    speculative: Any = pytest.importorskip("modelopt.torch.speculative")
    from modelopt.recipe import load_recipe
    from modelopt.torch.export.plugins.hf_spec_export import EagleExporter
    from modelopt.torch.speculative.plugins.hf_eagle import HFEagleModel
    from modelopt.torch.utils.plugins.transformers_dataset import LanguageDataCollator
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert asked("--trainer", "modelopt", "--out", "job").code == 0
    read = load_recipe("job/run.yaml", overrides=["model.model_name_or_path=elsewhere"])
    assert (read.data.mode, read.model.model_name_or_path) == ("online", "elsewhere")
    collate = LanguageDataCollator(
        tokenizer=AutoTokenizer.from_pretrained("target"),
        train_len=read.training.training_seq_len,
        return_labels=True,
        answer_only_loss=read.training.answer_only_loss,
        shift_labels=False,
        chat_template=Path("job", read.data.chat_template).read_text(),
    )
    batch = collate([json.loads(line) for line in Path("job/messages.jsonl").read_text().splitlines()])
    for ids, kept, labels, row in zip(
        batch["input_ids"], batch["attention_mask"], batch["labels"], rows_of(Path("job")), strict=True
    ):
        assert ids[kept.bool()].tolist() == row["input_ids"]
        assert (labels[kept.bool()] != -100).long().tolist() == row["loss_mask"]
    model = AutoModelForCausalLM.from_pretrained("target", dtype="bfloat16")
    speculative.convert(model, [("eagle", read.eagle.model_dump())])
    HFEagleModel.load_draft_vocab_cache(model, "job/d2t.pt")
    EagleExporter(model).export(Path("job/exported"))
    ended = asked("--result", "job", "--json")  # an untrained head
    assert ended.code == 112, ended.err
    assert ended.document["after"]["mean_accepted_len"] < ended.document["before"]["mean_accepted_len"]


def test_speculators_loads_its_job_and_its_checkpoint_is_evaluated(asked: Callable[..., Any]) -> None:  # noqa: F811
    interpreter = os.environ.get("TRTSPEC_SPECULATORS")
    if not interpreter:
        pytest.skip("TRTSPEC_SPECULATORS names no Python that has speculators 0.9")
    assert asked("--trainer", "speculators", "--out", "job").code == 0
    peer = Path(__file__).with_name("speculators_trainer.py")
    ended = subprocess.run(
        [interpreter, str(peer), "job", "target"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    read = json.loads(ended.stdout.splitlines()[-1])
    assert (read["config"]["speculator_type"], read["config"]["ttt_steps"]) == ("eagle3", 4)
    key = str
    assert sorted(read["rows"], key=key) == sorted(rows_of(Path("job")), key=key)
    # The initial draft is the recipe's, and is exported unchanged.
    taken = asked("--result", "job", "--json")
    assert taken.code == 112, taken.err
    assert taken.document["before"] == taken.document["after"]
    saved, started = (contents(Path("job", root)) for root in ("checkpoints/checkpoint_best", "draft"))
    assert saved.keys() - started.keys() == {"embed_tokens.weight"}  # the target's, which it also saves
    assert {name: saved[name] for name in started} == started
