# SPDX-License-Identifier: Apache-2.0
"""`bench --concurrency`, `--rate` and `--compare`: documents, screens, exit codes and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.load.scripted import Script, scripted, steady
from tests.conftest import Run
from trtspec.planning.doctor import install_hint

FEW = ("--requests", 6, "--runs", 3, "--max-rounds", 3, "--max-tokens", 6, "--prompts", "default")
ENOUGH = ("--requests", 4, "--runs", 6, "--max-rounds", 6)  # for results that must hold on a busy machine


def pays(body: dict[str, Any]) -> Script:
    """Simulate a draft that makes generation faster."""
    return steady(0.01, 0.02, 6) if "num_draft_tokens" in body else steady(0.01, 0.001, 6, (8, 4, 2))


def does_not(body: dict[str, Any]) -> Script:
    """Simulate a draft that makes generation slower."""
    return steady(0.01, 0.001 if "num_draft_tokens" in body else 0.02, 6)


@pytest.mark.alone
@pytest.mark.slow  # the server responds in real time
def test_sweep_reports_every_load_in_json_and_text(trtspec: Run, workplace: Path) -> None:
    with scripted(pays) as server:
        asked = ("bench", server.url, "--concurrency", "1,3", "--rate", "20", "--slo", "ttft=5s,tpot=15ms", *FEW)
        done = trtspec(*asked, "--samples-out", "raw.jsonl", "--json")
        shown = trtspec(*asked, "--runs", 1, "--max-rounds", 1)
    assert done.code == 0
    document = done.document
    assert (document["kind"], document["driver"], document["crossover"]) == ("load", "trtspec", None)
    assert [point["load"] for point in document["points"]] == [
        {"kind": "closed", "concurrency": 1},
        {"kind": "closed", "concurrency": 3},
        {"kind": "poisson", "requests_per_s": 20.0},
    ]
    assert document["workload"]["source"] == "default"
    assert document["slo"] == {"ttft_ms": 5000.0, "tpot_ms": 15.0, "e2e_ms": None}
    for point in document["points"]:
        assert point["speedup"]["ratio"] > 1
        assert (point["identical_texts"], point["requests_per_round"]) == ({"same": 18, "compared": 18}, 6)
        served, alone = point["arms"]["served"], point["arms"]["baseline"]
        assert (served["requests"], served["failed"], served["output_tokens"]) == (18, 0, 108)
        assert (served["acceptance_rate"], served["mean_accepted_len"]) == (0.5, 3.0)
        assert alone["acceptance_rate"] is None
        assert served["goodput_share"] > alone["goodput_share"]
        assert len(served["rounds"]) == 3
    assert len((workplace / "raw.jsonl").read_text().splitlines()) == 3 * 2 * 3 * 6
    assert "concurrency 3  as served" in shown.out
    assert "concurrency 1: with speculation" in shown.out
    assert "█" in shown.out
    assert "3.00" in shown.out


@pytest.mark.slow  # the server responds in real time
def test_server_failure_ends_the_sweep_and_retains_measured_loads(trtspec: Run, workplace: Path) -> None:
    def dies(body: dict[str, Any]) -> Script:
        return Script(status=503, refusal="gone") if server.most_at_once > 3 else pays(body)

    with scripted(dies) as server:
        asked = ("bench", server.url, "--concurrency", "1,8,9", *FEW, "--requests", 9, "--json")
        done = trtspec(*asked)
    assert done.code == 1
    document = done.document
    assert [point["load"]["concurrency"] for point in document["points"]] == [1]
    assert document["ended_by"].startswith("concurrency 8: ")
    assert "gone" in document["ended_by"]
    assert document["ended_by"] in document["warnings"][0]
    assert "concurrency 8" in done.err


@pytest.mark.slow  # the server responds in real time
def test_interface_page_documents_every_field(trtspec: Run, workplace: Path) -> None:
    with scripted(pays) as server:
        done = trtspec("bench", server.url, "--concurrency", "1", *FEW, "--runs", 1, "--max-rounds", 1,
                       "--samples-out", "raw.jsonl", "--json")  # fmt: skip
    (workplace / "a.json").write_text(done.out)
    compared = trtspec("bench", "--compare", "a.json", "a.json", "--json").document
    line = json.loads((workplace / "raw.jsonl").read_text().splitlines()[0])
    page = (docs_dir() / "interface.md").read_text()
    by_name = {"served", "baseline", "work_ms", "extra", "errors", "finish_reasons", "num_draft_tokens", "unknown"}
    by_name |= {"machine", "processors", "python", "mean_ttft_ms", "mean_tpot_ms", "mean_e2e_ms"}  # described in prose
    by_name |= done.document["points"][0]["arms"]["served"]["by_kind"].keys()
    missing = [name for name in fields_of([done.document, compared, line]) - by_name if f"`{name}`" not in page]
    assert missing == []


def docs_dir() -> Path:
    return Path(__file__).resolve().parents[3] / "docs"


def fields_of(value: Any) -> set[str]:
    """Return all field names of a document."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    return {*value, *set().union(*map(fields_of, value.values()))} if isinstance(value, dict) else set()


@pytest.mark.alone
@pytest.mark.slow  # the server responds in real time
def test_fail_below_option_gates_the_exit_code(trtspec: Run, workplace: Path) -> None:
    with scripted(pays) as good, scripted(does_not) as bad:
        held = trtspec("bench", good.url, "--concurrency", "2", *FEW, *ENOUGH, "--fail-below", "1.0")
        missed = trtspec("bench", bad.url, "--concurrency", "2", *FEW, *ENOUGH, "--fail-below", "1.0", "--json")
    assert held.code == 0
    assert held.out.rstrip().endswith("minimum ratio 1: reached")
    assert missed.code == 112
    assert missed.document["gate"] == {"min_ratio": 1.0, "ok": False, "is_decided": True, "unfit": []}
    assert missed.document["crossover"]["concurrency"] == 2


@pytest.mark.alone
@pytest.mark.slow  # the server responds in real time
def test_compare_reports_saved_runs_as_equal_slower_or_faster(trtspec: Run, workplace: Path) -> None:
    for name, script in (("a", pays), ("b", pays), ("worse", does_not)):
        with scripted(script) as server:
            done = trtspec("bench", server.url, "--concurrency", "2,4", *FEW, *ENOUGH, "--json")
        (workplace / f"{name}.json").write_text(done.out)
    same = trtspec("bench", "--compare", "a.json", "b.json", "--fail-below", "0.5")
    assert same.code == 0
    assert "no difference shown" in same.out
    worse = trtspec("bench", "--compare", "a.json", "worse.json", "--fail-below", "0.98")
    assert worse.code == 112
    assert "B is SLOWER" in worse.out
    assert worse.out.rstrip().endswith("minimum ratio 0.98: MISSED")
    told = trtspec("bench", "--compare", "a.json", "worse.json", "--fail-below", "0.98", "--json")
    assert told.code == 112
    assert told.document["kind"] == "load_comparison"
    assert [point["verdict"] for point in told.document["points"]] == ["slower", "slower"]
    assert told.document["gate"]["ok"] is False
    better = trtspec("bench", "--compare", "worse.json", "a.json", "--fail-below", "1.1")
    assert better.code == 0
    assert "B is faster at 2 of 2 loads" in better.out


@pytest.mark.slow  # the server responds in real time
def test_documents_with_different_prompts_are_not_comparable(trtspec: Run, workplace: Path) -> None:
    for name, more in (("a", ()), ("b", ("--seed", 3))):
        with scripted(pays) as server:
            done = trtspec("bench", server.url, "--concurrency", "2", *FEW, "--runs", 1, *more, "--json")
        (workplace / f"{name}.json").write_text(done.out)
    refused = trtspec("bench", "--compare", "a.json", "b.json")
    assert refused.code == 1
    assert "the two cannot be compared: prompts, lengths or seeds differ" in refused.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"format_version": 1}', "not a document of a load benchmark"),
        ('{"kind": "load", "format_version": 9}', "format_version"),
        (json.dumps({"kind": "load", "format_version": 1, "points": [[]] * 3}), "driver"),
        ("{" * 10_000, "not valid JSON"),
    ],
)
def test_invalid_load_document_is_rejected_with_its_file(trtspec: Run, workplace: Path, text: str, said: str) -> None:
    (workplace / "a.json").write_text(text)
    refused = trtspec("bench", "--compare", "a.json", "a.json")
    assert refused.code == 1
    assert said in refused.err
    assert "a.json" in refused.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "missing argument URL-or-ARTIFACT"),
        (("x", "--concurrency", "2,1"), "is not a list of increasing numbers"),
        (("x", "--concurrency", "1.5"), "is not a list of increasing numbers"),
        (("x", "--rate", "0"), "is not a list of increasing numbers"),
        (("x", "--concurrency", "99999"), "is not a list of increasing numbers"),
        (("x", "--slo", "ttft=1s"), "--slo requires --concurrency or --rate"),
        (("x", "--concurrency", "1", "--slo", "fast"), "--slo: 'fast' is not a valid limit"),
        (("x", "--concurrency", "1", "--gates"), "--gates cannot be combined with a load"),
        (("x", "--ignore-baseline"), "--ignore-baseline requires --compare"),
        (("x", "--compare", "a", "b"), "--compare cannot be combined with a target"),
        (("./here", "--concurrency", "1"), "a load benchmark requires a server"),
        (("http://127.0.0.1:1", "--concurrency", "1", "--api", "complitions"), "did you mean 'completions'?"),
        (("http://127.0.0.1:1", "--concurrency", "1", "--input-tokens", "8"), "--input-tokens requires a tokenizer"),
        (("http://127.0.0.1:1", "--concurrency", "1", "--runs", "5", "--max-rounds", "2"), "is below --runs 5"),
        (
            ("http://127.0.0.1:1", "--concurrency", "1", "--key-env", "NO_SUCH"),
            "the environment variable NO_SUCH is not set",
        ),
        (("http://127.0.0.1:1", "--concurrency", "1", "--timeout", "soon"), "--timeout: 'soon' is not a duration"),
        (("http://127.0.0.1:1", "--concurrency", "1"), "the server cannot be reached"),
    ],
)
def test_invalid_arguments_are_rejected(trtspec: Run, workplace: Path, arguments: tuple[str, ...], said: str) -> None:
    refused = trtspec("bench", *(server_named(each) for each in arguments))
    assert refused.code == 1
    assert said in refused.err
    assert "Traceback" not in refused.err


def server_named(argument: str) -> str:
    return "http://127.0.0.1:1" if argument == "x" else argument


def test_install_hint_names_the_bench_extra() -> None:
    assert install_hint("aiohttp") == "pip install 'trtspec[bench]'"
