# SPDX-License-Identifier: Apache-2.0
"""Artifacts for the rollouts: two valid artifacts of one target, and faulty copies."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.soak.streams import NAME, trtspec
from tests.serving.triton.artifact import records
from tests.serving.triton.two_models import DRAFT_LEN, DRAFT_TIMEOUT_S
from trtspec.core.paths import model_repository_dir, recipes_dir
from trtspec.engine.settings import EngineSettings
from trtspec.serving.triton.names import BLS, DRAFT, ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact import load_manifest
from trtspec.store.artifact_paths import MANIFEST, REPOSITORY, TOKENIZER, checkpoint, from_model

RECIPES = {"draft_target": "quickstart.yaml", "eagle3": "quickstart-eagle3.yaml"}
SETTINGS = (
    f"name={NAME}",
    "engine.max_batch_size=8",
    "serving.rollout.hold_s=0.5",
    "serving.rollout.min_requests=6",  # minimum requests for a latency comparison
    "serving.rollout.shadow=60",
)
LENIENT = "serving.rollout.max_latency_ratio=8"  # the two drafts differ in speed, and the machine is busy
BITS = 2  # mantissa bits of a lossy target's weights; bfloat16 has 7


def build(place: Path, method: str) -> Path:
    """Build a recipe with the command; return the artifact."""
    sets = [word for setting in (*SETTINGS, LENIENT) for word in ("--set", setting)]
    trtspec("build", f"{recipes_dir()}/{RECIPES[method]}", *sets, "--out", f"{place}/{method}")
    return place / method


def corrupted(artifact: Path, chance: random.Random) -> Path:
    """Return a copy with one modified byte in a file that is executed or loaded."""
    copy = copied(artifact, "corrupt")
    manifest = json.loads((copy / MANIFEST).read_text())
    runs = [file["path"] for file in manifest["files"] if file["path"].startswith(f"{REPOSITORY}/")]
    path = copy / chance.choice([each for each in runs if (copy / each).stat().st_size])
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1
    replaced(path, bytes(content))
    return copy


def lossy(artifact: Path) -> Path:
    """Return a copy whose target weights were rounded too coarsely, like a faulty conversion.

    All checks of the copy alone pass: its manifest matches the files and has the same target digest, and speculation
    does not change its texts. Only a comparison with the live revision's texts shows the fault.
    """
    from safetensors.torch import load_file, save_file

    copy = copied(artifact, "lossy")
    for path in sorted((copy / checkpoint("target")).glob("*.safetensors")):
        rough = {name: _rounded(tensor) for name, tensor in load_file(path).items()}
        path.unlink()  # the copy is hard-linked to the store
        save_file(rough, path)
    return vouched(copy)


def _rounded(tensor: Any) -> Any:
    """Return a tensor rounded to BITS mantissa bits."""
    import torch

    mantissa, exponent = torch.frexp(tensor.float())
    scale = float(2 ** (BITS + 1))
    return torch.ldexp(torch.round(mantissa * scale) / scale, exponent).to(tensor.dtype)


def of_two_models(artifact: Path) -> Path:
    """Return a copy whose draft runs in a separate process, in the layout of TensorRT-LLM's engines.

    No recipe of the torch engine builds this layout, so the models are assembled here, as in
    `tests.serving.triton.two_models`.
    """
    copy = copied(artifact, "two-models")
    recipe = load_manifest(copy).recipe
    shutil.rmtree(copy / REPOSITORY)
    models, hand_written = copy / REPOSITORY, model_repository_dir()
    serving = ServingSettings(max_batch_size=recipe.engine.max_batch_size)
    settings = {**json.loads(EngineSettings.from_recipe(recipe).as_json()), "method": "none", "options": {}}
    engine: Parameters = {
        "draft_model_path": "",
        "tokenizer_dir": from_model(TOKENIZER),
        "engine_settings": json.dumps({**settings, "draft_len": 0}),
    }
    for name, role in ((TARGET, "target"), (DRAFT, "draft")):
        path = {"gpt_model_path": from_model(checkpoint(role))}
        emit_model(models, name, serving, {**engine, **path}, source=hand_written / TARGET)
    text: Parameters = {
        "tokenizer_dir": from_model(TOKENIZER),
        "draft_len": DRAFT_LEN,
        "max_seq_len": recipe.engine.max_seq_len,
        "draft_timeout_s": DRAFT_TIMEOUT_S,
    }
    for name in (BLS, ENSEMBLE):
        emit_model(models, name, serving, text, source=hand_written / BLS)
    for name in (PREPROCESSING, POSTPROCESSING):
        emit_model(models, name, serving, text)
    return vouched(copy)


def copied(artifact: Path, what: str) -> Path:
    """Return a hard-linked copy of the artifact."""
    copy = artifact.with_name(f"{artifact.name}-{what}")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(artifact, copy, copy_function=os.link)
    return copy


def replaced(path: Path, content: bytes) -> None:
    """Replace a file of a copy without changing the artifact."""
    path.unlink()
    path.write_bytes(content)


def vouched(copy: Path) -> Path:
    """Return a copy with a manifest that matches its files."""
    manifest = load_manifest(copy).model_copy(update={"files": records(copy)})
    replaced(copy / MANIFEST, manifest.render())
    return copy


def other_than(artifacts: Sequence[Path], serving: str) -> Path:
    """Return the artifact that is not live."""
    return next(path for path in artifacts if str(path) != serving)
