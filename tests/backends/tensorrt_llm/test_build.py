# SPDX-License-Identifier: Apache-2.0
"""Engine builds with a double of trtllm-build: from a source to the store, and cleanup after failures."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import make_llama
from tests.doubles.fixtures import H200, Installation
from trtspec.backends.common.build_tools import log_path, rebuild_script
from trtspec.backends.common.convert import ConvertCheckpoint
from trtspec.backends.tensorrt_llm.build import REPRODUCE, TIMING_CACHE, BuildEngine, DescribeEngines
from trtspec.backends.tensorrt_llm.toolchain import probe_toolchain
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import StepError, StepTimeout, TrtspecError
from trtspec.core.processes import is_alive, start_time, wait_until
from trtspec.fleet.worker import run_step
from trtspec.store.digest import DigestCache
from trtspec.store.executor import Observer, Unobserved, execute
from trtspec.store.files import FileReader, Files
from trtspec.store.plan import StepPlan
from trtspec.store.step import Step, StepProgress
from trtspec.store.store import Store

pytestmark = pytest.mark.slow  # complete builds with external programs

ARGUMENTS = ("--max_batch_size", "4", "--max_seq_len", "128", "--max_num_tokens", "512", "--kv_cache_type", "paged")
EXTERNAL = ("--speculative_decoding_mode", "draft_tokens_external", "--max_draft_len", "5")
IMAGE = f"registry.example/tritonserver@sha256:{'0' * 64}"
TIMEOUT_S = 60.0
ONE_RANK = ParallelMapping()
CONVERT = ConvertCheckpoint(
    role="target",
    source=Files(Path(), (), ()),
    family_version="",
    dtype="bfloat16",
    mapping=ONE_RANK,
    scheme=Scheme(),
    calibration=(),
    heads=(),
    allow_nonfinite=False,
    vocab_size=0,
    nbytes=0,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("source"))


@pytest.fixture
def store(workplace: Path) -> Store:
    return Store(workplace / "store")


Make = Callable[..., BuildEngine]


@pytest.fixture
def make(source: Path, workplace: Path, trtllm: Installation) -> Make:
    """Return the step that builds an engine of the tiny source."""
    reader = FileReader(DigestCache(workplace / "digests.json"))

    def make(role: str = "target", mapping: ParallelMapping = ONE_RANK, image: str = "", **changes: Any) -> BuildEngine:
        files = reader.read(source, [source / "config.json", source / "model.safetensors"])
        convert = replace(CONVERT, role=role, source=files, mapping=mapping)
        toolchain = probe_toolchain(image, "1.2.1", "h200")
        step = BuildEngine(role, convert, (*ARGUMENTS, *EXTERNAL), toolchain, (), TIMEOUT_S)
        return replace(step, **changes)

    return make


def build(step: BuildEngine, store: Store, observer: Observer = Unobserved()) -> Path:  # noqa: B008  stateless
    return execute(StepPlan([step]), store, observer)[-1].entry.files_dir


def fail(step: BuildEngine, store: Store, error: type[TrtspecError] = StepError) -> TrtspecError:
    """Run a build that fails; check that it left nothing, and return the error."""
    with pytest.raises(error) as caught:
        build(step, store)
    assert running_in(store.root) == []
    assert {entry.name for entry in store.entries()} == {f"convert-{step.role}"}, "only the checkpoint is stored"
    assert not any((store.root / "tmp").iterdir())
    return caught.value


def running_in(root: Path) -> list[int]:
    """Return the processes whose working directory is below `root`, even if that was deleted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "cwd").startswith(f"{root}{os.sep}"):
                    found.append(int(entry.name))
    return found


class Listener(Unobserved):
    def __init__(self) -> None:
        self.said: list[str] = []

    def step_message(self, step: Step, text: str) -> None:
        self.said.append(text)


def test_two_rank_engine_is_built_and_its_phases_are_reported(make: Make, store: Store) -> None:
    step, listener = make(mapping=ParallelMapping(2)), Listener()
    files = build(step, store, listener)
    assert sorted(path.name for path in files.iterdir()) == ["config.json", "rank0.engine", "rank1.engine"]
    config = json.loads((files / "config.json").read_text())
    assert config["build_config"]["speculative_decoding_mode"] == 2
    assert config["build_config"]["max_seq_len"] == 133
    assert listener.said == [
        f"rank {rank} of 2: {phase}"
        for rank in (1, 2)
        for phase in ("network constructed", "TensorRT is building", "writing the engine")
    ]
    assert "Total time of building all engines" in log_path(step).read_text()
    assert not any((store.root / "tmp").iterdir())


def test_build_command_uses_paths_relative_to_the_artifact(make: Make, store: Store) -> None:
    step = make("draft")
    assert step.command == (
        "trtllm-build", "--checkpoint_dir", "checkpoints/draft", "--output_dir", "engines/draft", *ARGUMENTS, *EXTERNAL
    )  # fmt: skip
    build(step, store)
    head = log_path(step).read_text().splitlines()[0]
    assert head.endswith(" && " + " ".join(step.command))


def test_worker_with_other_tools_than_the_key_refuses_the_step(make: Make, trtllm: Installation, store: Store) -> None:
    step = make()
    step.check_machine()
    trtllm.show_gpus(H200.replace("590.44.01", "580.65.06"))
    for each in (step, replace(step, toolchain=replace(step.toolchain, image=IMAGE, reference=IMAGE, kind="image"))):
        with pytest.raises(StepError, match=r"build-target as it was planned: .*driver is 580\.65\.06 instead of 590"):
            each.check_machine()
    build(replace(step.checkpoint), store)
    outcome = run_step(step, store, "node", lambda total: StepProgress())
    assert outcome.failure
    assert "driver is 580.65.06 instead of 590.44.01" in outcome.failure.message
    assert "fleet.labels" in (outcome.failure.hint or "")
    assert store.get(step.key).entry is None


def test_build_key_depends_on_arguments_toolchain_and_inputs(make: Make, tmp_path: Path) -> None:
    step = make()
    cache = tmp_path / "a.cache"
    cache.write_bytes(b"timings")
    reader = FileReader(DigestCache(tmp_path / "digests.json"))
    others = {
        "arguments": replace(step, arguments=(*ARGUMENTS, "--max_draft_len", "6")),
        "driver": replace(step, toolchain=replace(step.toolchain, driver="591")),
        "gpu": replace(step, toolchain=replace(step.toolchain, sm=89)),
        "tensorrt": replace(step, toolchain=replace(step.toolchain, tensorrt="10.15")),
        "image": make(image=IMAGE),
        "checkpoint": make(mapping=ParallelMapping(2)),
        "timing cache": replace(step, timing_cache=(reader.read(tmp_path, [cache]),)),
    }
    assert len({step.key, *(other.key for other in others.values())}) == len(others) + 1
    assert replace(step, timeout_s=1.0).key == step.key


def test_device_count_equals_the_number_of_workers(make: Make, store: Store) -> None:
    assert make().num_devices == 1
    step = make(arguments=(*ARGUMENTS, "--workers", "2"))
    assert step.num_devices == 2
    execute(StepPlan([step]), store, Unobserved(), devices=("1", "3", "5"))
    assert "CUDA_VISIBLE_DEVICES=1,3\n" in log_path(step).read_text()


def test_timing_cache_is_used_and_left_unchanged(make: Make, store: Store, workplace: Path) -> None:
    cache = workplace / "pinned.cache"
    cache.write_bytes(b"timings")
    files = FileReader(DigestCache(workplace / "digests.json")).read(workplace, [cache])
    step = make(timing_cache=(files,))
    assert step.command[5:7] == ("--input_timing_cache", TIMING_CACHE)
    out = build(step, store)
    assert json.loads((out / "config.json").read_text())["build_config"]["input_timing_cache"] == TIMING_CACHE
    assert cache.read_bytes() == b"timings"
    assert not (out / TIMING_CACHE).exists()
    cache.write_bytes(b"changed")
    with pytest.raises(StepError, match="the file changed during the build"):
        build(replace(step, arguments=ARGUMENTS), store)


def test_build_without_trtllm_build_is_an_error(
    make: Make, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    step = make()
    monkeypatch.setenv("PATH", str(tmp_path))
    step = replace(step, toolchain=probe_toolchain("", "1.2.1", "h200"))
    error = fail(step, store)
    assert error.message == "cannot build engines: trtllm-build is not on PATH"
    assert "pip install tensorrt-llm==1.2.1 on a machine with the GPU" in str(error.hint)


def test_failed_build_reports_the_log_and_can_be_repeated(make: Make, store: Store, trtllm: Installation) -> None:
    trtllm.trouble("exit 3")
    step = make()
    error = fail(step, store)
    assert (error.message, error.exit_code) == ("trtllm-build failed with exit status 3", 100)
    assert str(error.hint).startswith(f"the end of {log_path(step)}:\n")
    assert str(error.hint).endswith("[TRT] [E] Error Code 2: OutOfMemory")
    trtllm.install()
    assert build(step, store), "the next run builds it"


def test_upstream_error_is_included_in_the_hint(make: Make, store: Store) -> None:
    error = fail(make(arguments=(*ARGUMENTS, *EXTERNAL, "--gather_context_logits")), store)
    assert "RuntimeError: Gather context logits is not support with draft len > 0" in str(error.hint)


def test_killed_build_reports_its_signal(make: Make, store: Store, trtllm: Installation) -> None:
    trtllm.trouble("signal 9")
    assert "failed with SIGKILL; the machine may be out of memory" in fail(make(), store).message


def test_build_timeout_is_reported_with_the_log(make: Make, store: Store, trtllm: Installation) -> None:
    trtllm.trouble("sleep 600")
    error = fail(make(timeout_s=2.0), store, StepTimeout)
    assert (error.message, error.exit_code) == ("trtllm-build did not finish within 2 s", 101)
    assert "Build TensorRT engine Unnamed Network 0" in str(error.hint)


def test_build_with_long_output_reports_only_the_last_lines(make: Make, store: Store, trtllm: Installation) -> None:
    trtllm.trouble("lines 50000")
    step = make()
    error = fail(step, store)
    assert str(error.hint).splitlines()[-1] == "line 49999"
    assert len(str(error.hint).splitlines()) == 21
    assert len(log_path(step).read_text().splitlines()) > 50_000


def test_other_running_version_is_rejected(make: Make, store: Store, trtllm: Installation) -> None:
    """As in an image, whose version is unknown before it runs."""
    trtllm.trouble("version 1.1.0")
    error = fail(make(), store)
    assert error.message == "TensorRT-LLM 1.1.0 is running, but the recipe requires 1.2.1"


def test_release_candidate_builds_engines_of_its_release(make: Make, store: Store, trtllm: Installation) -> None:
    """As in the container 26.03, whose release is 1.2.0 and which reports a candidate version."""
    step = make()
    trtllm.install("1.2.0rc8")
    step = replace(step, toolchain=replace(probe_toolchain("", "1.2.0", "h200"), tensorrt_llm="1.2.0"))
    assert json.loads((build(step, store) / "config.json").read_text())["version"] == "1.2.0rc8"


def test_engine_other_than_requested_is_rejected(make: Make, store: Store) -> None:
    error = fail(make(arguments=(*ARGUMENTS, "--use_fp8_context_fmha", "enable")), store)
    key = "build_config.plugin_config.use_fp8_context_fmha"
    assert f"{key} is False, expected True" in error.message


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, check=False, timeout=300
    )
    if mounted.returncode:
        pytest.skip("needs to be allowed to mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True, timeout=300)


def test_build_on_a_full_disk_fails_and_can_be_repeated(
    make: Make, tiny_disk: Path, trtllm: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tiny_disk / "cache"))
    store = Store(tiny_disk / "store")
    trtllm.trouble("fill")
    step = make()
    error = fail(step, store)
    assert error.message == "trtllm-build failed with exit status 1"
    assert "OSError: [Errno 28] No space left on device" in str(error.hint)
    trtllm.install()
    assert build(step, store), "there is space again"


def test_interrupt_ends_the_build_and_removes_temporary_files(make: Make, store: Store, trtllm: Installation) -> None:
    trtllm.trouble("sleep 600")
    step = make()

    class Interrupter(Unobserved):
        def step_message(self, step: Step, text: str) -> None:
            if "building" in text:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        build(step, store, Interrupter())
    assert running_in(store.root) == []
    assert not any((store.root / "tmp").iterdir())


def test_killed_parent_leaves_no_build_process(make: Make, store: Store, trtllm: Installation, workplace: Path) -> None:
    trtllm.trouble("deaf")
    step = make()
    execute(StepPlan([step.checkpoint]), store, Unobserved())
    pid = os.fork()
    if not pid:  # the same step in a process that is killed
        try:
            build(step, store)
        finally:
            os._exit(1)
    assert wait_until(lambda: log_path(step).exists() and "builder " in log_path(step).read_text(), 20)
    family = [
        int(number) for number in re.findall(r"^(?:builder|child) (\d+)$", log_path(step).read_text(), re.MULTILINE)
    ]
    started = {each: start_time(each) for each in family}
    assert len(family) == 3
    assert None not in started.values()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert wait_until(lambda: not any(is_alive(*each) for each in started.items()), 20)
    assert wait_until(lambda: running_in(store.root) == [], 30)
    assert {entry.name for entry in store.entries()} == {"convert-target"}
    trtllm.install()
    assert build(step, store), "the remains of the killed build do not interfere"
    assert not any((store.root / "tmp").iterdir())


def test_two_engines_are_built_concurrently(make: Make, store: Store, trtllm: Installation, workplace: Path) -> None:
    """Each waits until both have started."""
    go = workplace / "go"
    trtllm.trouble(f"wait-for {go}")
    steps = [make("target"), make("draft")]
    begun: set[str] = set()
    both = threading.Lock()

    class Both(Unobserved):
        def step_message(self, step: Step, text: str) -> None:
            with both:
                begun.update({step.name} if "building" in text else ())
                if len(begun) == 2:
                    go.touch()

    results = execute(StepPlan(steps), store, Both(), devices=("0", "1"))
    assert [(each.name, each.status) for each in results] == [
        ("convert-target", "built"), ("build-target", "built"), ("convert-draft", "built"), ("build-draft", "built"),
    ]  # fmt: skip
    seen = {re.search(r"CUDA_VISIBLE_DEVICES=(\S+)", log_path(step).read_text())[1] for step in steps}  # type: ignore[index]
    assert seen == {"0", "1"}


def test_failed_build_ends_the_concurrent_build(make: Make, store: Store, trtllm: Installation) -> None:
    trtllm.trouble("sleep 600")
    target = make("target")
    draft = make("draft", arguments=(*ARGUMENTS, "--gather_context_logits", "--max_draft_len", "2"))
    with pytest.raises(StepError, match="trtllm-build failed with exit status 1"):
        execute(StepPlan([target, draft]), store, Unobserved(), devices=("0", "1"))
    assert running_in(store.root) == []
    assert {entry.name for entry in store.entries()} == {"convert-target", "convert-draft"}


def test_reproduce_script_builds_identical_engines(make: Make, store: Store, workplace: Path) -> None:
    cache = workplace / "pinned.cache"
    cache.write_bytes(b"timings")
    files = FileReader(DigestCache(workplace / "digests.json")).read(workplace, [cache])
    engines = tuple(make(role, timing_cache=(files,)) for role in ("target", "draft"))
    results = {
        each.name: each.entry.files_dir
        for each in execute(StepPlan([DescribeEngines(engines, "{}")]), store, Unobserved())
    }
    artifact = workplace / "artifact"
    (artifact / "checkpoints").mkdir(parents=True)
    for role in ("target", "draft"):
        (artifact / "checkpoints" / role).symlink_to(results[f"convert-{role}"])
    for path in results["describe-engines"].iterdir():
        (artifact / path.name).write_bytes(path.read_bytes())
    text = (artifact / REPRODUCE).read_text()
    assert "# TensorRT-LLM 1.2.1, TensorRT 10.14.1.48, driver 590.44.01\n# GPU h200, compute capability 9.0\n" in text
    assert f"\n{' '.join(engines[0].command)}\n" in text
    subprocess.run(["sh", artifact / REPRODUCE, "again"], cwd=workplace, check=True, capture_output=True, timeout=300)
    for role in ("target", "draft"):
        for path in results[f"build-{role}"].iterdir():
            assert (workplace / "again" / "engines" / role / path.name).read_bytes() == path.read_bytes()
    refused = subprocess.run(
        ["sh", artifact / REPRODUCE], cwd=workplace, check=False, capture_output=True, text=True, timeout=300
    )
    assert refused.returncode != 0
    assert "a new directory for the engines" in refused.stderr


def test_reproduce_script_for_an_image_selects_the_user_when_run(
    make: Make, trtllm: Installation, workplace: Path
) -> None:
    program = trtllm.root / "bin" / "docker"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n")
    program.chmod(0o755)
    engine = make(image=IMAGE)
    script = workplace / "reproduce.sh"
    described = DescribeEngines((engine,), "{}")
    script.write_text(rebuild_script(described._comments(), described._commands()))
    (workplace / "checkpoints").mkdir()
    done = subprocess.run(
        ["sh", script, "again"], cwd=workplace, check=True, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == f"{list(engine.command[1:])}\n"


@pytest.mark.trtllm
def test_real_trtllm_build_writes_an_engine(source: Path, workplace: Path) -> None:
    """An engine of a model that is large enough for TensorRT's kernels, with the installed version."""
    tensorrt_llm = pytest.importorskip("tensorrt_llm", reason="needs an installed tensorrt_llm")
    import torch

    root = make_llama(
        workplace / "source", hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=4
    )
    gpu = os.environ.get("TRTSPEC_TEST_GPU", "h200")
    toolchain = probe_toolchain("", tensorrt_llm.__version__, gpu)
    if toolchain.kind == "absent":
        pytest.skip(f"{toolchain.missing}; TRTSPEC_TEST_GPU names the GPU, here {torch.cuda.get_device_name()}")
    files = FileReader(DigestCache(workplace / "digests.json")).read(
        root, [root / "config.json", root / "model.safetensors"]
    )
    convert = replace(CONVERT, source=files)
    step = BuildEngine("target", convert, (*ARGUMENTS, *EXTERNAL), toolchain, (), 1200.0)
    assert (build(step, Store(workplace / "store")) / "rank0.engine").stat().st_size > 1 << 16
