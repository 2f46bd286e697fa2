# SPDX-License-Identifier: Apache-2.0
"""The training prompts of the quickstart's DSpark net: reproducible, and disjoint from the evaluation prompts."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from trtspec.core.paths import recipes_dir

SCRIPT = recipes_dir() / "models" / "slices.py"
JUDGING = recipes_dir() / "prompts" / "quickstart.jsonl"
TRAINED_ON = "2eaecdc0156e7affd5606125801c59d3ef35aebe9797ac6d675dd59f9c7dc5ba"


def slices(but: Path) -> str:
    command = [sys.executable, str(SCRIPT), "--but", str(but)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_training_prompts_are_reproducible_and_exclude_evaluation_prompts() -> None:
    lines = slices(JUDGING)
    prompts = [json.loads(line) for line in lines.splitlines()]
    assert Counter(prompt["kind"] for prompt in prompts) == {"log": 200, "json": 200, "code": 200}
    judging = [squeezed(json.loads(line)["prompt"]) for line in JUDGING.read_text().splitlines()]
    for prompt in prompts:
        assert not any(squeezed(prompt["prompt"])[:60] == other[:60] for other in judging)
    assert hashlib.sha256(lines.encode()).hexdigest() == TRAINED_ON


def test_prompts_of_the_but_file_are_excluded(tmp_path: Path) -> None:
    first = json.loads(slices(JUDGING).splitlines()[0])
    (tmp_path / "judging.jsonl").write_text(json.dumps(first) + "\n")
    found = [json.loads(line)["prompt"] for line in slices(tmp_path / "judging.jsonl").splitlines()]
    assert len(found) == 600
    assert first["prompt"] not in found
