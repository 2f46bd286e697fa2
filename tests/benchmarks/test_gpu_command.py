# SPDX-License-Identifier: Apache-2.0
"""`make gpu` without a GPU: the parts, their order and time limits, and the reported failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import parts as table
from benchmarks.gpu import runner
from benchmarks.gpu.parts import ROOT, Part
from benchmarks.gpu.probe import Machine
from benchmarks.gpu.runner import Place

pytestmark = pytest.mark.slow  # starts pytest, and shells

BOUND_S = 60
FIELDS = {"schema", "part", "status", "reason", "seconds", "limit_s", "exit_code", "command", "log_tail"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "out").mkdir()
    return Place(tmp_path / "out", tmp_path / "work")


def part(name: str, code: str, *, until: float = BOUND_S, needs: tuple[str, ...] = (), group: str = "tests") -> Part:
    """Return a part that runs a few lines of Python, which may use {report}."""
    return Part(name, group, until, (sys.executable, "-c", code, "{report}", "{seconds}"), needs)


def run(one: Part, place: Place, limit: float = BOUND_S) -> dict[str, Any]:
    """Run a part, and check that the returned document equals the written one."""
    document = runner.run(one, limit, os.environ, place)
    assert json.loads((place.out / f"{one.name}.json").read_text()) == document
    return document


def run_all(chosen: list[Part], place: Place, **lacks: str) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = command.run_all(chosen, Machine(lacks=lacks), dict(os.environ), place)
    return documents


def test_parts_are_in_order_within_the_time_limit() -> None:
    """Each group has nine minutes, and deadlines increase."""
    known = table.parts("python")
    assert [one.name for one in known] == [
        "build",
        "kernels",
        "plugin",
        "sanitizer",
        "verify",
        "engine-tests",
        "engine",
        "recipes",
    ]
    assert [one.group for one in known] == ["tests"] * 6 + ["engine", "recipes"]
    ends = [one.until for one in known if one.group == "tests"]
    assert ends == sorted(ends)
    assert max(one.until for one in known) + runner.GRACE_S <= 9 * 60


def test_build_for_another_machine_needs_no_gpu() -> None:
    """Compiling does not need a GPU and has its own time limit."""
    build, *others = table.parts("python", "sm_90a")
    assert (build.group, build.needs, build.command[-1]) == ("build", ("packages", "nvcc"), "sm_90a")
    assert others == table.parts("python")[1:]


def test_every_gpu_test_is_included() -> None:
    """Every GPU test is included, except the one that needs TensorRT."""
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text() and path != Path(__file__)
    }
    assert marked == {*table.KERNEL_TESTS, *table.PLUGIN_TESTS, *table.ENGINE_TESTS, "tests/kernels/test_tensorrt.py"}


def test_parts_name_a_test_that_exists() -> None:
    """-k with another name would run the sanitizer's test beside the kernels', and then none."""
    assert f"def {table.SANITIZER_TEST}(" in (ROOT / table.KERNEL_TESTS[0]).read_text()


def test_tests_run_in_several_processes_and_a_shorter_time(place: Place) -> None:
    by_name = {one.name: one for one in table.parts("python", workers=3)}
    for name in ("kernels", "sanitizer", "engine-tests"):
        options = by_name[name].command
        assert options[options.index("-n") + 1] == "3"
    assert "-n" not in by_name["plugin"].command
    quick = part("quick", "import sys, time; print(sys.argv[2]); time.sleep(20)", until=20)
    (document,) = command.run_all([quick], Machine(), dict(os.environ), place, scale=0.1)
    assert document["limit_s"] <= 2
    assert document["reason"] == "did not end within 2 s"


def test_parts_are_chosen_by_name_or_group() -> None:
    def chosen(*names: str) -> list[str]:
        return [one.name for one in command.choose(table.parts("python"), names)]

    assert chosen() == chosen("recipes", "engine", "tests")
    assert chosen("engine") == ["engine"]
    assert chosen("verify", "build") == ["build", "verify"]
    with pytest.raises(SystemExit, match="unknown part nothing; known: build, engine, engine-tests, kernels, plugin"):
        chosen("nothing")


def test_passing_part_records_its_measurements(place: Place) -> None:
    code = (
        "import sys, json; print('said'); open(sys.argv[1], 'w').write(json.dumps({'table': ['x'], 's': sys.argv[2]}))"
    )
    document = run(part("one", code), place)
    assert document.keys() == FIELDS | {"measured"}
    assert (document["status"], document["reason"], document["exit_code"]) == ("passed", "", 0)
    assert document["measured"] == {"table": ["x"], "s": "50"}, "SIGTERM comes before SIGKILL"
    assert document["log_tail"] == "said\n"


def test_failing_part_records_exit_code_and_log(place: Place) -> None:
    document = run(part("one", "import sys; sys.exit('broken')"), place)
    assert (document["status"], document["reason"]) == ("failed", "exit code 1: broken")
    assert document["log_tail"] == "broken\n"


def test_missing_program_fails_with_127(place: Place) -> None:
    document = run(Part("one", "tests", BOUND_S, ("/nowhere/program",), ()), place)
    assert (document["status"], document["exit_code"]) == ("failed", 127)
    assert "/nowhere/program cannot be run" in document["log_tail"]


STARTS_ANOTHER = """
import signal, subprocess, sys
code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
other = subprocess.Popen([sys.executable, "-c", code])
open(sys.argv[1] + ".pid", "w").write(str(other.pid))
"""


@pytest.mark.parametrize(("ending", "reason"), [("other.wait()", "did not end within 2 s"), ("", "")])
def test_processes_of_a_part_end_with_it(
    ending: str, reason: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 0.2)
    one = part("one", STARTS_ANOTHER + ending)
    assert run(one, place, limit=2)["reason"] == reason
    number = int(Path(f"{place.report(one)}.pid").read_text())
    deadline = time.monotonic() + 10
    while _is_alive(number):
        assert time.monotonic() < deadline, "a process was left"
        time.sleep(0.05)


def _is_alive(number: int) -> bool:
    """Return whether a process exists and is not a zombie, which may remain without a parent to reap it."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_measurements_written_before_a_timeout_are_retained(place: Place) -> None:
    code = """
import sys, time, signal, json
def leave(*_):
    open(sys.argv[1], "w").write('{"table": []}')
    sys.exit(3)
signal.signal(signal.SIGTERM, leave)
time.sleep(60)
"""
    document = run(part("one", code), place, limit=2)
    assert (document["status"], document["measured"]) == ("failed", {"table": []})
    half = run(part("two", "import sys; open(sys.argv[1], 'w').write('{\"tab')"), place)
    assert half["measured"] == {"error": "its document is incomplete"}


def test_parts_run_in_order_despite_failures(place: Place) -> None:
    def noting(name: str, ending: str = "") -> Part:
        return part(name, f"open({str(place.work / 'order')!r}, 'a').write('{name} '); {ending}")

    place.work.mkdir()
    chosen = [noting("one", "raise SystemExit(1)"), noting("two"), part("three", "", needs=("nvcc",)), noting("four")]
    documents = run_all(chosen, place, nvcc="no nvcc")
    assert (place.work / "order").read_text() == "one two four "
    assert [document["status"] for document in documents] == ["failed", "passed", "skipped", "passed"]
    assert documents[2] == json.loads((place.out / "three.json").read_text())
    assert documents[2]["reason"] == "no nvcc"


def test_unused_time_goes_to_the_next_part(place: Place) -> None:
    chosen = [part("one", "", until=100), part("two", "", until=130), part("other", "", until=50, group="engine")]
    limits = [document["limit_s"] for document in run_all(chosen, place)]
    assert limits[0] == pytest.approx(100, abs=1)
    assert limits[1] == pytest.approx(130, abs=1)
    assert limits[2] == pytest.approx(50, abs=1)


TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2
@pytest.mark.gpu
@pytest.mark.skipif(True, reason="no CUDA device")
def test_gpu(): pass
@pytest.mark.skip(reason="another day")
def test_other(): pass
@pytest.fixture
def broken(): raise OSError("no room")
def test_setup(broken): pass
"""


def pytest_part(path: Path, *options: str) -> Part:
    plugins = ("-p", "benchmarks.gpu.pytest_report", "-p", "tests._support.strict_hw", "-p", "no:cacheprovider")
    ini = ("-c", str(path.parent / "pytest.ini"), "-q", "--gpu-report", "{report}")
    words = (sys.executable, "-m", "pytest", *ini, *plugins, *options, str(path))
    return Part("suite", "tests", BOUND_S, words, (), tests=True)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: x\n")
    path = tmp_path / "test_suite.py"
    path.write_text(TESTS)
    return path


def test_pytest_outcomes_are_counted_with_their_messages(suite: Path, place: Place) -> None:
    document = run(pytest_part(suite), place)
    found = document["tests"]
    assert document["reason"] == "exit code 1: 2 of 3 tests failed"
    assert {name: found[name] for name in ("passed", "failed", "skipped")} == {"passed": 1, "failed": 2, "skipped": 2}
    messages = {failure["test"].rpartition("::")[2]: failure["message"] for failure in found["failures"]}
    assert "assert 1 == 2" in messages["test_fails"]
    assert "no room" in messages["test_setup"]
    assert "no CUDA device" in messages["test_gpu"]


def test_strict_hardware_counts_skipped_gpu_tests_as_failures(suite: Path, place: Place) -> None:
    """A skipped GPU test counts as failed; other tests may be skipped."""
    found = run(pytest_part(suite, "--strict-hw"), place)["tests"]
    assert (found["failed"], found["skipped"]) == (3, 1)
    (message,) = [one["message"] for one in found["failures"] if one["test"].endswith("test_gpu")]
    assert message == "under --strict-hw: Skipped: no CUDA device"


def test_part_without_collected_tests_fails(suite: Path, place: Place) -> None:
    assert run(pytest_part(suite, "-k", "nothing"), place)["status"] == "failed"
    suite.write_text("import nothing_of_that_name\n")
    document = run(pytest_part(suite), place)
    assert document["status"] == "failed"
    assert "nothing_of_that_name" in document["tests"]["failures"][0]["message"]


def test_truncated_report_line_is_ignored(place: Place) -> None:
    code = 'import sys; open(sys.argv[1], \'w\').write(\'{"test": "a", "outcome": "passed", "seconds": 1}\\n{"te\')'
    one = part("one", code)
    found = run(Part(**{**vars(one), "tests": True}), place)["tests"]
    assert (found["passed"], found["slowest"]) == (1, [{"test": "a", "seconds": 1}])


@pytest.mark.parametrize(("second", "code"), [("", 0), ("raise SystemExit(1)", 1)])
def test_exit_code_and_summary_reflect_failed_parts(
    second: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = "import sys, json; open(sys.argv[1], 'w').write(json.dumps({'table': ['8 ms a step']}))"
    monkeypatch.setattr(command, "parts", lambda *_: [part("one", write), part("two", second)])
    monkeypatch.setattr(command, "WORK", tmp_path / "work")
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    assert command.main(["--out", str(tmp_path / "out")]) == code
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["passed"] == (code == 0)
    assert [row["part"] for row in summary["parts"]] == ["one", "two"]
    assert "    8 ms a step" in (tmp_path / "out" / "summary.txt").read_text().splitlines()
    assert (tmp_path / "out" / "summary.txt").read_text().strip() in capsys.readouterr().out


def test_machine_without_a_gpu_skips_every_part_with_the_reason(tmp_path: Path) -> None:
    """Run the script as `make gpu` does: every part is recorded as skipped with its reason."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "CUDA_HOME": str(tmp_path)}
    done = subprocess.run(
        [ROOT / "benchmarks" / "gpu" / "run.sh", "--parts", "verify", "engine", "--out", tmp_path / "out"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=BOUND_S,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "lacks gpu: nvidia-smi does not find a GPU" in done.stdout.splitlines()
    for name in ("verify", "engine"):
        document = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert document["status"] == "skipped"
        assert "nvidia-smi does not find a GPU" in document["reason"]
        assert f"{name:<13} skipped in 0 s: {document['reason']}" in done.stdout


def test_missing_python_is_an_error() -> None:
    script = ROOT / "benchmarks" / "gpu" / "run.sh"
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": "/nowhere/python"}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False, timeout=BOUND_S)
    assert (done.returncode, done.stderr) == (
        1,
        "no /nowhere/python on the PATH; set PYTHON to one that has torch\n",
    )
