# SPDX-License-Identifier: Apache-2.0
"""`verify`: empty parity comparisons fail, and checks of other engines are left to their server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from trtspec.bench import parity
from trtspec.core.hashing import file_digests
from trtspec.core.paths import cache_dir
from trtspec.engine.generation.request import EngineResult, Stats
from trtspec.store.artifact import load_manifest
from trtspec.store.artifact_cache import verify_changed
from trtspec.store.digest import DigestCache

TOKENS = ("--max-tokens", 8)


def disagreement(lead: float = 1.0) -> Any:
    return parity._Disagreement(0, 1, 2, lead, 0.0)


def quantized(limit: float, *answers: tuple[EngineResult, int]) -> Any:
    compared = [
        parity._Compared(
            str(number), len(result.ids) + (result.finish_reason == "end_id"), [disagreement()] * differing
        )
        for number, (result, differing) in enumerate(answers)
    ]
    return parity._quantized_parity("FP8", compared, limit)


def answer(tokens: int, reason: str) -> EngineResult:
    return EngineResult((5,) * tokens, reason, Stats())


def test_quantized_parity_without_tokens_fails() -> None:
    check = quantized(0.0, (answer(0, "cancelled"), 0))
    assert (check.ok, check.value) == (False, 0.0)
    assert check.detail == "not compared: the FP8 target generated no token for any of 1 prompts"


def test_end_token_counts_as_a_compared_position() -> None:
    """Sixty-four texts end immediately where the source continues: none agrees, and the count is not negative."""
    check = quantized(0.9, *[(answer(0, "end_id"), 1)] * 64)
    assert (check.ok, check.value) == (False, 0.0)
    assert check.detail.startswith("0.0% of 64 tokens")
    check = quantized(0.75, (answer(3, "end_id"), 1), (answer(4, "length"), 1))
    assert (check.ok, check.value) == (True, 0.75)
    assert check.detail.endswith("; required: 75.0%")
    assert not quantized(0.76, (answer(3, "end_id"), 1), (answer(4, "length"), 1)).ok


def test_exact_parity_fails_for_an_empty_response_and_a_nan_lead() -> None:
    check = parity._exact_parity([parity._Compared("a", 3, []), parity._Compared("b", 0, [])])
    assert (check.ok, check.value, check.limit) == (False, 1, 2)
    assert check.detail.endswith("; 1 empty responses: prompt b")
    assert not parity._exact_parity([parity._Compared("a", 3, [disagreement(float("nan"))])]).ok


FP8 = (
    *("--set", "target.quantization.weights=fp8"),
    *("--set", "target.quantization.calibration.prompts=prompts.jsonl"),
)


@pytest.mark.integration
def test_quantized_parity_limit_comes_from_the_recipe(recipe: Path, trtspec: Run) -> None:
    built = trtspec("build", recipe, *FP8, "--set", "gates.quantized_parity=1.0", "--set", "gates.lossless=false")
    assert built.code == 0, built.err
    done = trtspec("verify", "build/tiny", *TOKENS, "--json")
    parity_check = {check["name"]: check for check in done.document["checks"]}["parity"]
    assert parity_check["limit"] == load_manifest(Path("build/tiny")).recipe.gates.quantized_parity == 1.0
    assert parity_check["gate"] == "quantized_parity"
    assert done.code == (0 if parity_check["value"] == 1.0 else 110)
    skipped = trtspec("verify", "build/tiny", *TOKENS, "--json", "--skip-gate", "quantized_parity")
    assert skipped.code == 0
    assert [check["name"] for check in skipped.document["checks"]] == ["files"]
    assert [(each["name"], each["reason"]) for each in skipped.document["left_out"]] == [("parity", "request")]


@pytest.mark.parametrize("value", ["1.5", "-0.1"])
def test_quantized_parity_limit_outside_zero_to_one_is_rejected(value: str, recipe: Path, trtspec: Run) -> None:
    refused = trtspec("check", recipe, "--set", f"gates.quantized_parity={value}")
    assert refused.code == 1
    assert "gates.quantized_parity" in refused.out


@pytest.fixture
def copied(recipe: Path, trtspec: Run) -> Path:
    """The artifact of an engine that uses the sources unchanged, with its own limit."""
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: vllm\n  gpu: h100\n"))
    assert trtspec("build", recipe, "--set", "gates.min_speedup=99").code == 0
    return recipe.parent / "build" / "tiny"


@pytest.mark.slow
def test_verify_without_an_engine_checks_files_and_defers_gates(copied: Path, trtspec: Run) -> None:
    done = trtspec("verify", copied, "--json")
    assert done.code == 0
    checks = {check["name"]: check["ok"] for check in done.document["checks"]}
    assert checks == {"files": True, "sources": True}
    waiting = {each["name"]: each for each in done.document["left_out"]}
    assert list(waiting) == ["parity", "lossless", "min_speedup"]
    assert [each["reason"] for each in waiting.values()] == ["engine", "server", "server"]
    assert (
        "trtspec bench NAME --gates (exit code 110 if texts differ, 112 if a limit is missed)"
        in waiting["lossless"]["why"]
    )
    kept = json.loads((copied / "reports" / "verify.json").read_text())
    assert kept == done.document
    shown = trtspec("verify", copied)
    assert f"lossless, min_speedup: {waiting['lossless']['why']}\n" in shown.out + shown.err


@pytest.mark.slow
def test_changed_source_fails_and_missing_source_is_skipped(copied: Path, trtspec: Run) -> None:
    config = copied.parents[1] / "target" / "config.json"
    config.write_text(config.read_text() + "\n")
    done = trtspec("verify", copied)
    assert done.code == 110
    assert "checkpoints/target/config.json: " in done.out
    config.parent.rename(copied.parents[1] / "moved")
    gone = trtspec("verify", copied, "--json")
    assert gone.code == 0
    assert gone.document["left_out"][0]["reason"] == "source"
    assert trtspec("verify", copied, "--source", copied.parents[1] / "moved").code == 110
    assert trtspec("verify", copied, "--source", "nosuch").code == 1


@pytest.mark.slow
def test_report_option_writes_the_report_elsewhere(copied: Path, trtspec: Run, workplace: Path) -> None:
    done = trtspec("verify", copied, "--report", workplace / "here" / "report.json", "--json")
    assert json.loads((workplace / "here" / "report.json").read_text()) == done.document
    assert not (copied / "reports").exists()


@pytest.mark.slow
def test_unwritable_report_does_not_change_the_verdict(copied: Path, trtspec: Run) -> None:
    (copied / "reports").write_text("in the way, as on a read-only disk")
    done = trtspec("verify", copied, "--json")
    assert (done.code, done.document["ok"]) == (0, True)
    assert "warning: " in done.err
    assert "the report cannot be written" in done.err
    (copied / "checkpoints" / "target" / "config.json").unlink()
    assert trtspec("verify", copied).code == 110


@pytest.mark.slow
def test_unknown_gate_is_rejected_with_a_suggestion(copied: Path, trtspec: Run) -> None:
    refused = trtspec("verify", copied, "--skip-gate", "min_speedpu")
    assert refused.code == 1
    assert "unknown gate 'min_speedpu'" in refused.err
    assert "did you mean 'min_speedup'?" in refused.err


@pytest.mark.slow
def test_damage_missed_by_the_digest_cache_is_found_by_rehash(artifact: Path, trtspec: Run) -> None:
    damaged = artifact / "checkpoints" / "target" / "rank0.safetensors"
    [recorded] = file_digests([damaged])
    damaged.chmod(0o644)
    with damaged.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    DigestCache(cache_dir() / "artifacts.json").add_written({damaged: recorded})  # pretend that the file is unchanged
    assert verify_changed(artifact, load_manifest(artifact))[0] == []
    found = trtspec("verify", artifact, "--rehash")
    assert found.code == 110
    assert "FAILS  checkpoints/target/rank0.safetensors: bytes 0 to " in found.out
