# SPDX-License-Identifier: Apache-2.0
"""AIPerf as load generator, with a fake that writes records like AIPerf 0.13; one test needs the real one."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.bench.load.scripted import Script, scripted, steady
from tests.conftest import Run
from trtspec.core.paths import recipes_dir

# A request is due 20 ms before it is sent; its chunks come after 100, 110 and 130 ms, with 9 tokens.
DOUBLE = """#!PYTHON
import json, pathlib, sys
asked = dict(zip(sys.argv[2:], sys.argv[3:]))
out = pathlib.Path(asked["--output-artifact-dir"])
prompts = [json.loads(line)["text"] for line in open(asked["--input-file"])]
pathlib.Path("SEEN").open("a").write(json.dumps({"argv": sys.argv[1:], "prompts": prompts}) + "\\n")
drafts = {"num_draft_tokens": 10, "num_accepted_draft_tokens": 6, "acceptance_histogram": {"0": 1, "3": 2}}
def record(number):
    sent = 10**18 + number * 50_000_000
    return {
        "metadata": {"session_num": number, "credit_issued_ns": sent - 20_000_000, "request_start_ns": sent},
        "metrics": {name: {"value": value, "unit": "ms"} for name, value in {
            "time_to_first_token": 100.0, "inter_chunk_latency": [10.0, 20.0], "request_latency": 130.0,
            "output_sequence_length": 9, "input_sequence_length": 5, "spec_decode_steps": 3}.items()},
        "spec_decode_acceptance": drafts,
    }
records = [record(number) for number in reversed(range(len(prompts)))]
FAULT
(out / "profile_export.jsonl").write_text("".join(json.dumps(each) + "\\n" for each in records))
"""
ASKED = ("--driver", "aiperf", "--requests", 4, "--runs", 1, "--max-rounds", 1, "--prompts", "default")


def put_double(root: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "") -> Path:
    """Put a fake aiperf on PATH; return the file where it logs its arguments."""
    program = root / "bin" / "aiperf"
    program.parent.mkdir()
    seen = root / "seen.jsonl"
    program.write_text(DOUBLE.replace("PYTHON", sys.executable).replace("SEEN", str(seen)).replace("FAULT", fault))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return seen


@pytest.mark.slow
def test_aiperf_records_are_converted_to_samples(
    trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = put_double(workplace, monkeypatch)
    with scripted(lambda body: Script()) as server:
        done = trtspec("bench", server.url, "--concurrency", "2", *ASKED, "--samples-out", "raw.jsonl", "--json")
    assert done.code == 0, done.err
    document = done.document
    assert document["driver"] == "aiperf"
    arm = document["points"][0]["arms"]["served"]
    assert (arm["requests"], arm["output_tokens"], arm["prompt_tokens"], arm["client_cpu_share"]) == (4, 36, 20, None)
    assert (arm["ttft_ms"]["p50"], arm["e2e_ms"]["p50"], arm["tpot_ms"]["p50"]) == (100.0, 130.0, 3.75)
    assert (arm["itl_ms"]["mean"], arm["seconds"]) == (15.0, 0.28)
    assert arm["output_tokens_per_s"] == pytest.approx(
        60, rel=0.01
    )  # tokens of the first request until the last is sent
    assert (arm["acceptance_rate"], arm["mean_accepted_len"]) == (0.6, 3.0)
    assert arm["acceptance_histogram"] == [4, 0, 0, 8]
    assert document["points"][0]["identical_texts"] is None
    words = seen.read_text()
    assert words.count('"argv"') == 4  # warm-up and measurement of both arms
    assert words.count("num_draft_tokens") == 2
    assert '"--concurrency", "2"' in words


@pytest.mark.slow
def test_open_loop_latencies_count_from_the_credit_issue_time(
    trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = put_double(workplace, monkeypatch)
    with scripted(lambda body: Script()) as server:
        done = trtspec("bench", server.url, "--rate", "2", *ASKED, "--json")
    arm = done.document["points"][0]["arms"]["served"]
    assert (arm["ttft_ms"]["p50"], arm["e2e_ms"]["p50"], arm["sent_late_ms"]["p50"]) == (120.0, 150.0, 20.0)
    assert '"--request-rate", "2.0", "--arrival-pattern", "poisson"' in seen.read_text()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ('sys.exit("no tokenizer")', "no tokenizer"),
        ("records = [7] * len(records)", "a record does not match the format of aiperf 0.13: "),
        ('records[0]["metrics"] = {}', "a record does not match the format of aiperf 0.13: "),
        ("del records[0]", "aiperf wrote 3 records for 4 requests"),
        ("sys.exit(0)", "aiperf exited with 0 without records"),
        ('for each in records: each["error"] = {"message": "refused"}', "all 4 requests failed: refused"),
    ],
)
def test_aiperf_failure_is_reported(
    trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    put_double(workplace, monkeypatch, fault)
    with scripted(lambda body: Script()) as server:
        failed = trtspec("bench", server.url, "--concurrency", "2", *ASKED)
    assert failed.code == 1
    assert said in failed.err
    assert "Traceback" not in failed.err


def test_requests_that_aiperf_cannot_send_are_rejected(
    trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_double(workplace, monkeypatch)
    (workplace / "two.jsonl").write_text(
        '{"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}'
    )
    with scripted(lambda body: Script()) as server:
        asked = ("bench", server.url, "--concurrency", "2", *ASKED)
        assert "aiperf requires an OpenAI API" in trtspec(*asked, "--api", "triton").err
        assert "several messages" in trtspec(*asked, "--prompts", "two.jsonl").err
        monkeypatch.setenv("TRTSPEC_OPENAI_KEY", "sk-1")
        assert "every user of this machine can read" in trtspec(*asked).err
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "aiperf is not on PATH" in trtspec(*asked).err


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(shutil.which("aiperf") is None, reason="aiperf is not on PATH")
def test_real_aiperf_and_our_driver_agree_within_five_percent(trtspec: Run, workplace: Path) -> None:
    """On a server with known timings, both drivers' median TTFT and TPOT agree within 5 %, and match the schedule."""
    found = {}
    tokenizer = ("--tokenizer", recipes_dir() / "models" / "quickstart-target")
    with scripted(lambda body: steady(0.8, 0.08, 12), ours=False) as server:
        for driver in ("aiperf", "trtspec"):
            asked = ("--requests", 8, "--runs", 1, "--max-rounds", 1, "--prompts", "default", *tokenizer)
            done = trtspec("bench", server.url, "--concurrency", 2, "--driver", driver, *asked, "--json")
            assert done.code == 0, done.err
            found[driver] = done.document["points"][0]["arms"]["served"]
    for key, known in (("ttft_ms", 800.0), ("tpot_ms", 80.0), ("e2e_ms", 800 + 11 * 80)):
        ours, theirs = (found[driver][key]["p50"] for driver in ("trtspec", "aiperf"))
        assert ours == pytest.approx(theirs, rel=0.05)
        assert ours == pytest.approx(known, rel=0.05)
