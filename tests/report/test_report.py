# SPDX-License-Identifier: Apache-2.0
"""Reports of a real artifact, with documents in the formats of the commands."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.conftest import Run
from trtspec.bench.documents import save_document, save_target_document, target_sha256
from trtspec.bench.speedup import BenchComparison, Speedup
from trtspec.store.artifact import load_manifest, manifest_sha256

VOID = {"meta", "line", "rect", "circle", "path", "polyline"}


class Page(HTMLParser):
    """Strict HTML parser: every tag must close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def profile() -> dict[str, Any]:
    means = {"token_weighted": [3.0, 2.5, 3.5], "request_weighted": [3.1, 2.4, 3.6]}
    best = [
        {"batch": batch, "draft_len": 2, "speedup": speedup, "interval": [speedup - 0.1, speedup + 0.1]}
        for batch, speedup in ((1, 2.0), (16, 0.8))
    ]
    speedups = [{**each, "draft_len": length} for each in best for length in (1, 2, 3)]
    kind = {"prompts": 4, "acceptance_rate": 0.7, "mean_accepted_len": means, "by_position": [0.8, 0.6]}
    kinds = [{"kind": name, **kind} for name in ("a<b>", "c")]
    method = {
        "method": "draft_target",
        "draft": "./draft",
        "draft_len": 2,
        "acceptance_rate": 0.7,
        "mean_accepted_len": means,
        "by_position": [0.9, 0.6],
        "by_kind": kinds,
        "verdict": "pays",
        "best": best,
        "speedups": speedups,
    }
    recommendation = {"method": "draft_target", "draft_len": 2, "why": "it pays"}
    return {
        "format_version": 1,
        "name": "tiny",
        "prompts": 8,
        "tokens": 100,
        "methods": [method, {**method, "method": "ngram", "draft": None, "by_position": [0.5]}],
        "recommendation": recommendation,
    }


def bench() -> dict[str, Any]:
    arm = {"tokens_per_s": [10.0, 12.0], "median_tokens_per_s": 11.0, "acceptance_rate": 0.0, "mean_accepted_len": 1.0}
    return {
        "format_version": 1,
        "acceptance": "exact",
        "prompts": 4,
        "max_tokens": 16,
        "baseline": arm,
        "speculative": {**arm, "acceptance_rate": 0.8, "mean_accepted_len": 3.0},
        "speedup": 1.5,
        "speedup_interval": [1.2, 1.8],
        "identical_texts": 4,
    }


def train() -> dict[str, Any]:
    sides = [
        {"mean_accepted_len": mean, "interval": [mean - 0.1, mean + 0.1], "acceptance_rate": 0.5} for mean in (2, 2.75)
    ]
    both = dict(zip(("before", "after"), sides, strict=True))
    kinds = [{"kind": kind, "prompts": 9, "verdict": "better", **both} for kind in ("chat", "a<b>")]
    return {"format_version": 1, "published": False, "refusals": ["a<b>: worse"], "kinds": kinds, **both}


def load() -> dict[str, Any]:
    spread = {"mean": 6.0, "min": 2.0, "p50": 5.0, "p90": 9.0, "p95": 9.5, "p99": 9.9, "max": 1234.5}
    arm = {
        "requests": 32,
        "failed": 0,
        "output_tokens_per_s": 1000.0,
        "acceptance_rate": 0.75,
        "mean_accepted_len": 3.0,
        "rounds": [{"requests": 32, "failed": 0, "output_tokens_per_s": 1000.0, "mean_e2e_ms": 6.0}],
    }
    arm |= {"ttft_ms": spread, "tpot_ms": spread, "e2e_ms": None}
    judged = {"requests_per_round": 32, "judged_by": "output_tokens_per_s"}
    points = [
        {
            **judged,
            "load": {"kind": "closed", "concurrency": concurrency},
            "arms": {"served": arm, "baseline": {**arm, "acceptance_rate": None, "mean_accepted_len": None}},
            "speedup": {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "rounds": 3},
        }
        for concurrency, ratio in ((1, 2.0), (16, 0.8))
    ]
    rate = {"load": {"kind": "poisson", "requests_per_s": 2.5}, "arms": {"served": arm}, "speedup": None}
    points.append({**judged, **rate})
    workload, noise = {"sha256": "aa", "source": "kinds"}, {"median_work_ms": 10.0}
    head = {"format_version": 1, "kind": "load", "driver": "trtspec", "workload": workload, "noise": noise}
    return head | {"points": points}


def baseline() -> dict[str, Any]:
    found: dict[str, Any] = {"format_version": 1, "kind": "baseline", "time": "2026-11-23T01:02:03+00:00"}
    found |= {"engine": {"backend": "embedded", "version": "", "measured_by": "process"}, "prompts": {"count": 4}}
    spread = {"mean": 0.25, "p50": 0.2, "p95": 0.4}
    speeds = [100.0, 140.0, 120.0]
    return found | {
        "max_tokens": 16, "runs": 3, "tokens_per_s": speeds, "median_tokens_per_s": 120.0, "request_s": spread,
        "ms_per_token": spread, "samples": [],
    }  # fmt: skip


def plan() -> dict[str, Any]:
    batches = [
        {"batch": batch, "tokens_per_s": 100.0, "speedup": {"0.8": speed}} for batch, speed in ((1, 3.0), (4, 2))
    ]
    predicted = {"why_not": "", "gpu": "h100", "gpus": 2, "draft_len": 4, "batches": batches}
    return {"format_version": 1, "name": "tiny", "steps": [], "memory": {"gpus": []}, "predicted": predicted}


def build() -> dict[str, Any]:
    step = {"name": "convert-target", "key": "0" * 64, "status": "built", "seconds": 2.5}
    return {"format_version": 1, "artifact": "build/tiny", "steps": [step], "seconds": 2.75}


@pytest.fixture
def saved(artifact: Path) -> list[object]:
    arguments: list[object] = []
    for make in (profile, baseline, bench, build, load, plan, train):
        name, document = make.__name__, make()
        path = artifact.parent / f"{name}.json"
        path.write_text(json.dumps(document))
        arguments += ["--results", path]
    return arguments


@pytest.mark.slow
def test_page_is_complete_and_self_contained(artifact: Path, saved: list[object], trtspec: Run) -> None:
    out = artifact.parent / "report.html"
    assert trtspec("report", artifact, *saved, "-o", out).code == 0
    text = out.read_text()
    page = Page(text)
    assert len(text) < 1 << 20
    tags = [tag for tag, _ in page.seen]
    assert not {"script", "link", "iframe", "img", "a"} & set(tags)
    assert not re.search(r"https?:|url\(|@import| on\w+=", text)
    assert tags.count("h1") == 1
    plots = [attributes for tag, attributes in page.seen if tag == "svg"]
    assert len(plots) == len(re.findall("<title>", text)) - 1 == 13
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in plots)
    assert "a<b>" in page.text
    assert "<b>" not in text
    for said in (
        *(
            "1.50 times as fast",
            "Expected: speed-up by load",
            "Memory",
            "digest",
            "not verified",
            "Total: 2.8 seconds.",
        ),
        *("Acceptance by position and kind", "Comparisons", "greedy text of the target", "1.50×"),
        *("On 2 h100, draft_len 4", "Time per output token", "2.5/s, speculative"),
    ):
        assert said in page.text


@pytest.mark.slow
def test_plotted_numbers_are_also_in_tables(artifact: Path, saved: list[object], trtspec: Run) -> None:
    text = trtspec("report", artifact, *saved, "--format", "markdown").out
    assert "| draft\\_target (./draft) | 2.00 (2) | 0.80 (2) | up to ~10 |" in text
    assert "| concurrency 1 | 1,000 | 1,000 | 2.00 (1.90 to 2.10) | 75.0% |" in text
    assert "| concurrency 16, target alone | 5.0 | 9.0 | 9.5 | 9.9 | 1,234.5 |" in text
    assert "| 0.8 | 3.00 | 2.00 | up to 4+ |" in text
    assert "* **up to ~10** concurrency with a speed-up" in text
    assert "| ngram | 70.0% | 0.50 | - |" in text
    assert "| speculative | 11.0 | 80.0% | 3.00 |" in text
    assert "| chat | 2.00 (1.90 to 2.10) | 2.75 (2.65 to 2.85) | better |" in text
    assert "| convert-target | built | 2.50 |" in text
    assert "| tokens/s | 120.0 | 100.0 | 140.0 |" in text
    assert "| per request, s | 0.200 | 0.400 | 0.250 |" in text
    assert "| c | 70.0% | 0.80 | 0.60 |" in text


@pytest.mark.slow
def test_load_table_shows_failed_requests_and_points_not_compared(artifact: Path, trtspec: Run) -> None:
    document = load()
    first, *_, rate = document["points"]
    for arm in (*first["arms"].values(), *rate["arms"].values()):
        arm |= {"failed": 3, "goodput_share": 0.5}
    rate |= {"unfit": "3 of 35 requests failed (served)"}
    path = artifact.parent / "load.json"
    path.write_text(json.dumps(document | {"points": [first, rate], "ended_by": "x", "warnings": ["the sweep ended"]}))
    text = trtspec("report", artifact, "--results", path, "--format", "markdown").out
    assert "| concurrency 1 | 1,000 | 1,000 | 2.00 (1.90 to 2.10) | 75.0% | 50% | 50% | 3 | 3 |" in text
    assert "| 2.5/s | 1,000 | 75.0% | 50% | 3 |" in text
    assert "2.5/s: not compared, as 3 of 35 requests failed (served)" in text
    assert "Warning: the sweep ended." in text
    assert "* **2.00×** as fast as the target alone (1.90 to 2.10, concurrency 1)" in text


@pytest.mark.slow
def test_document_of_another_artifact_has_a_warning(artifact: Path, trtspec: Run) -> None:
    path = artifact.parent / "theirs.json"
    for told, against in (
        ({"deployment": {"manifest": "0" * 64}}, "of another artifact"),
        ({"target": {"sha256": "0" * 64}}, "of another target"),
        ({"name": "huge"}, "of another recipe, huge"),
        ({"deployment": {"manifest": manifest_sha256(artifact)}}, ""),
        ({"manifest": f"sha256:{manifest_sha256(artifact)}"}, ""),  # as `build --json` writes it
    ):
        path.write_text(json.dumps(load() | told))
        text = trtspec("report", artifact, "--results", path, "--format", "markdown").out
        assert ("Warning: theirs.json is" in text) == bool(against)
        assert not against or f"Warning: theirs.json is {against}" in text


@pytest.mark.slow
def test_checks_become_junit_cases_and_github_annotations(artifact: Path, trtspec: Run) -> None:
    assert "has not been verified" in trtspec("report", artifact, "--format", "github").out
    suite = ElementTree.fromstring(trtspec("report", artifact, "--format", "junit").out)
    assert (suite.get("errors"), suite.get("tests")) == ("1", "1")
    trtspec("verify", artifact, "--max-tokens", 4)
    report = json.loads((artifact / "reports" / "verify.json").read_text())
    suite = ElementTree.fromstring(trtspec("report", artifact, "--format", "junit").out)
    assert {case.get("name") for case in suite} >= {check["name"] for check in report["checks"]}
    failing = [check["name"] for check in report["checks"] if not check["ok"]]
    assert [case.get("name") for case in suite if case.find("failure") is not None] == failing
    said = trtspec("report", artifact, "--format", "github").out
    assert said.startswith("::warning title=tiny::Unknown whether this draft pays: it was not measured; its checks ")
    assert said.count("::error ") == len(failing)
    assert said.count("::notice ") == (not failing)


@pytest.mark.slow
def test_junit_has_times_verdict_and_check_details(artifact: Path, trtspec: Run) -> None:
    trtspec("verify", artifact, "--max-tokens", 4)
    suite = ElementTree.fromstring(trtspec("report", artifact, "--format", "junit").out)
    cases = {str(case.get("name")): case for case in suite.findall("testcase")}
    assert suite.get("tests") == str(len(cases))
    assert all(float(str(case.get("time"))) >= 0 for case in cases.values())
    assert float(str(cases["parity"].get("time"))) > 0
    assert float(str(suite.get("time"))) == pytest.approx(sum(float(str(each.get("time"))) for each in cases.values()))
    assert cases["lossless"].findtext("system-out") == "3 of 3 texts are identical with and without speculation"
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties["verdict"] == suite.findtext("system-out")
    assert properties["decision"] == "unknown"
    assert properties["verification"] == "verified: files, parity, lossless"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fail", "pass"])
def test_undecided_check_fails_or_is_skipped_by_the_policy(
    policy: str, recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BenchComparison, "speedup", Speedup(1.06, 0.97, 1.25, 1.09, samples=12))
    assert trtspec("build", recipe, "--set", "gates.min_speedup=1.05").code == 0
    trtspec("verify", "build/tiny", "--max-tokens", 2, "--runs", 1)
    monkeypatch.setenv("TRTSPEC_UNDECIDED", policy)
    suite = ElementTree.fromstring(trtspec("report", "build/tiny", "--format", "junit").out)
    case = next(case for case in suite.findall("testcase") if case.get("name") == "min_speedup")
    assert [case.find(tag) is not None for tag in ("failure", "skipped")] == [policy == "fail", policy == "pass"]
    said = trtspec("report", "build/tiny", "--format", "github").out
    assert ("::error title=tiny%3A min_speedup::" in said) == (policy == "fail")
    assert ("::warning title=tiny%3A min_speedup::" in said) == (policy == "pass")
    page = Page(trtspec("report", "build/tiny").out).text
    assert "undecided: min_speedup; verified: files, parity, lossless" in page
    assert "Not decided: min_speedup: 1.06 times as fast" in page


SLOWER = {"speedup": 0.97, "speedup_interval": [0.93, 0.99]}
BETTER = "Do not ship this draft: ngram is 2.20 times (2.10 to 2.30) as fast as the target alone here, this draft "


def rated(of_own: float, of_ngram: float) -> dict[str, Any]:
    """Return a profile with these speed-ups of its two methods."""
    found = profile()
    for method, speedup in zip(found["methods"], (of_own, of_ngram), strict=True):
        for each in (*method["best"], *method["speedups"]):
            each |= {"speedup": speedup, "interval": [speedup - 0.1, speedup + 0.1]}
        method["best"] = [{**each} for each in method["best"]]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("documents", "told", "figures"),
    [
        ({}, "Unknown whether this draft pays: it was not measured; run: trtspec bench ", ()),
        (
            {"bench": bench() | SLOWER, "profile": rated(0.82, 2.2)},
            f"{BETTER}0.97 times (0.93 to 0.99).",
            ("0.97× as fast as the target alone",),
        ),
        ({"profile": rated(0.82, 2.2)}, f"{BETTER}0.82 times (0.72 to 0.92).", ("0.82× expected speed-up",)),
        (
            {"bench": bench(), "load": load()},
            "It pays: 1.50 times (1.20 to 1.80) as fast as the target alone at 1 request; it does not pay from "
            "16 concurrent requests; not verified yet, run: trtspec verify ",
            ("up to ~10 concurrency with a speed-up",),
        ),
        (
            {"bench": bench() | SLOWER | {"manifest": "0" * 64}},
            "Unknown whether this draft pays: it was not measured: bench.json is of another artifact; ",
            (),
        ),
    ],
)
def test_every_format_begins_with_the_verdict_and_omits_other_methods_figures(
    documents: dict[str, Any], told: str, figures: tuple[str, ...], artifact: Path, trtspec: Run
) -> None:
    arguments: list[object] = []
    for name, document in documents.items():
        path = artifact.parent / f"{name}.json"
        path.write_text(json.dumps(document))
        arguments += ["--results", path]
    page = Page(trtspec("report", artifact, *arguments).out).text
    assert page.split("At a glance")[0].rpartition("}")[2].startswith(f"tiny{told}")
    markdown = trtspec("report", artifact, *arguments, "--format", "markdown").out
    assert markdown.replace("\\", "").startswith(f"# tiny\n\n**{told}")
    glance = markdown.split("## At a glance")[1].split("\n## ")[0].replace("**", "").replace("\\", "")
    shown = [line.removeprefix("* ") for line in glance.splitlines() if line.startswith("* ")]
    assert all(any(line.startswith(figure) for line in shown) for figure in figures)
    assert not any("ngram" in line or "2.20" in line for line in shown)
    assert trtspec("report", artifact, *arguments, "--format", "github").out.split("::")[2].startswith(told)
    suite = ElementTree.fromstring(trtspec("report", artifact, *arguments, "--format", "junit").out)
    assert str(suite.findtext("system-out")).startswith(told)
    out = artifact.parent / "r.html"
    assert trtspec("report", artifact, *arguments, "-o", out, "--json").document["verdict"].startswith(told)
    assert trtspec("report", artifact, *arguments, "-o", out).err.startswith(told[:60])


@pytest.mark.slow
def test_gate_contradicted_by_bench_is_marked(recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BenchComparison, "speedup", Speedup(1.1, 1.06, 1.15, 1.09, samples=12))
    assert trtspec("build", recipe, "--set", "gates.min_speedup=1.05").code == 0
    assert trtspec("verify", "build/tiny", "--max-tokens", 2, "--runs", 1).code == 0
    (recipe.parent / "bench.json").write_text(json.dumps(bench() | SLOWER))
    text = trtspec("report", "build/tiny", "--results", "bench.json").out
    row = re.search(
        r"<tr class=\"bad\"><th scope=row>min_speedup</th><td>holds, contradicted</td><td>([^<]*)</td>", text
    )
    assert row
    assert row[1].endswith(". But bench measured 0.97 times (0.93 to 0.99) as fast as the target alone")
    assert 'class="badge ok"' not in text
    assert '<p class="verdict bad"><strong>Do not ship this draft: it is 0.97 times' in text
    said = trtspec("report", "build/tiny", "--results", "bench.json", "--format", "github").out
    assert "::warning title=tiny%3A min_speedup::holds, but bench measured 0.97 times" in said


@pytest.mark.slow
def test_saved_documents_of_the_artifact_and_its_target_are_found(artifact: Path, trtspec: Run) -> None:
    assert trtspec("bench", artifact, "--max-tokens", 4, "--runs", 1).code == 0
    target = {"model": "target", "sha256": target_sha256(load_manifest(artifact))}
    save_target_document(target["sha256"], "profile", profile() | {"target": target})
    save_target_document(target["sha256"], "train-draft_target", train() | {"target": target, "method": "draft_target"})
    save_target_document(target["sha256"], "train-eagle3", train() | {"target": target, "method": "eagle3"})
    save_document(artifact, "load", load())
    out = artifact.parent / "report.html"
    done = trtspec("report", artifact, "-o", out, "--json").document
    kept = {each["name"]: each["is_kept"] for each in done["documents"]}
    assert kept == dict.fromkeys(["bench.json", "load.json", "profile.json", "train-draft_target.json"], True)
    assert {"Training", "Draft length", "Speed with and without speculation"} <= {*done["sections"]}
    assert "Includes results saved on this machine: bench.json" in Page(out.read_text()).text
    assert "includes results saved on this machine: bench.json" in trtspec("report", artifact, "-o", out).err
    path = artifact.parent / "mine.json"
    path.write_text(json.dumps(bench() | {"speedup": 9.5}))
    text = trtspec("report", artifact, "--results", path, "--format", "markdown").out
    assert "* **9.50×** as fast as the target alone" in text, "given documents take precedence over saved ones"
    assert "bench.json" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"methods": 1, "format_version": 1}', "{" * 10_000),
        *(json.dumps({**bench(), "speedup": 1e400}), json.dumps({**bench(), "speedup_interval": [1.0, 1e400]})),
        json.dumps({**load(), "points": []}),
    ],
)
def test_invalid_document_is_rejected_with_its_path(text: str, artifact: Path, trtspec: Run) -> None:
    path = artifact.parent / "other.json"
    path.write_text(text)
    outcome = trtspec("report", artifact, "--results", path, "-o", artifact.parent / "r.html")
    assert outcome.code == 1
    assert str(path) in outcome.err
    assert not (artifact.parent / "r.html").exists()


@pytest.mark.slow
def test_json_document_describes_the_written_report(artifact: Path, trtspec: Run) -> None:
    out = artifact.parent / "report.html"
    document = trtspec("report", artifact, "-o", out, "--json").document
    assert document["report"] == str(out)
    assert document["verification"] == "not verified"
    assert document["decision"] == "unknown"
    assert "Gates" in document["sections"]
    assert trtspec("report", artifact, "--json").code == 1
    assert trtspec("report", artifact, "-o", artifact.parent / "none" / "r.html").code == 1
