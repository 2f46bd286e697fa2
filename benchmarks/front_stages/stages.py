# SPDX-License-Identifier: Apache-2.0
"""The stages of the front end's benchmark: the servers of each one, and its rate, latencies and processor time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import uvloop

from benchmarks.front_stages.clients import BodyFn, Load, Received, read_events, read_responses
from benchmarks.front_stages.null_engine import Steps
from benchmarks.front_stages.repository import null_artifact
from tests.serving.triton.serving import serving
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.ports import LOOPBACK, free_ports
from trtspec.serving.gateway.command import gateway_command, gateway_config, ready_url, write_config

ROOT = Path(__file__).parents[2]
STAGES = ("grpc", "generate_stream", "gateway", "uvicorn", "vllm")
READY_S = 300.0
MODEL = ROOT / "recipes" / "models" / "quickstart-target"
VLLM_VARIABLES = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
Ask = Callable[[Load], Received]


class Processes:
    """The processor seconds of processes and their descendants, by name."""

    def __init__(self) -> None:
        self._before = self._read()

    def since(self) -> dict[str, float]:
        """Return the seconds of each kind of process since the last call."""
        now = self._read()
        spent: dict[str, float] = {}
        for pid, (name, seconds) in now.items():
            more = seconds - self._before.get(pid, (name, 0.0))[1]
            if more > 0:
                spent[name] = spent.get(name, 0.0) + more
        self._before = now
        return spent

    def _read(self) -> dict[int, tuple[str, float]]:
        found, parents = {}, {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
                words = (stat.parent / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            pid = int(stat.parent.name)
            parents[pid] = int(fields[1])
            found[pid] = (_name(words), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        return {pid: each for pid, each in found.items() if _descends(pid, parents)}


def _name(words: list[bytes]) -> str:
    """Return a name for a process with the given command line."""
    line = b" ".join(words).decode(errors="replace")
    if "triton_python_backend_stub" in words[0].decode(errors="replace"):
        return "stub of " + next(
            (name for name in ("preprocessing", "postprocessing", "ensemble") if name in line), "engine"
        )
    known = {
        "tritonserver": "tritonserver",
        "serving.gateway": "gateway",
        "front_stages.bare": "uvicorn",
        "vllm_server": "vllm",
    }
    return next((name for part, name in known.items() if part in line), "clients")


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != os.getpid():
        pid = parents.get(pid, 0)
    return pid == os.getpid()


def measure(name: str, ask: Ask, load: Load) -> dict[str, Any]:
    """Return the rates and latencies of one stage."""
    processes = Processes()
    began = time.monotonic()
    received = ask(load)
    passed = time.monotonic() - began
    spent = processes.since()
    if received.errors:
        raise SystemExit(f"{name}: {len(received.errors)} errors, the first: {received.errors[0]}")
    total = received.tokens * passed / load.seconds  # the whole round's, at the measured rate
    return {
        "tokens_per_s": round(received.tokens / load.seconds),
        "events_per_s": round(received.events / load.seconds),
        "merged_texts": received.merged,
        "first_ms": _quantiles(received.first_s),
        "other_ms": _quantiles(received.other_s),
        "cpu_us_per_token": {who: round(1e6 * seconds / max(total, 1), 1) for who, seconds in sorted(spent.items())},
    }


def _quantiles(seconds: list[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    return {f"p{part}": round(1e3 * float(np.percentile(seconds, part)), 2) for part in (50, 99)}


@contextmanager
def started(command: list[str], url: str, given: str = "", environment: dict[str, str] | None = None) -> Iterator[None]:
    """Run a server until the block ends; raises SystemExit if it does not become ready."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, env={**os.environ, **(environment or {})})
    try:
        assert process.stdin
        process.stdin.write(given.encode())
        process.stdin.close()
        deadline = time.monotonic() + READY_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(command[:5])} did not start")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def completion(model: str, prompt: list[int]) -> BodyFn:
    """Return the function that makes the body of a stream's OpenAI request."""
    fixed = {"model": model, "prompt": prompt, "stream": True, "ignore_eos": True, "temperature": 1.0}
    return lambda seed, tokens: {**fixed, "seed": seed, "max_tokens": tokens}


def measure_stages(
    names: list[str], artifact: Path, steps: Steps, load: Load, root: Path, processes: int = 1
) -> dict[str, dict[str, Any]]:
    """Return the results of the named stages; `processes` is the number of gateway processes."""
    found: dict[str, dict[str, Any]] = {}
    prompt = list(steps.text[:16])
    if {"grpc", "generate_stream", "gateway"} & {*names}:
        null_artifact(artifact, root / "artifact", steps, load.streams)
        with serving(root, root / "artifact" / "model_repository", environment={"PYTHONPATH": str(ROOT)}) as served:
            of_triton(names, root, served, prompt, load, found, processes)
    given = json.dumps(asdict(steps))
    if "uvicorn" in names:
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "benchmarks.front_stages.bare", str(port)]
        with started(command, f"http://{LOOPBACK}:{port}/", given):
            body = completion("null", prompt)
            found["uvicorn"] = measure("uvicorn", lambda load: read_events(port, "/", body, load), load)

    if "vllm" in names and (python := find_vllm()):
        (port,) = free_ports(1)
        script = Path(__file__).with_name("vllm_server.py")
        command = [str(python), str(script), str(MODEL), str(port)]
        with started(command, f"http://{LOOPBACK}:{port}/health", given, VLLM_VARIABLES):
            body = completion("null", prompt)
            found["vllm"] = measure("vllm", lambda load: read_events(port, "/v1/completions", body, load), load)
    return found


def find_vllm() -> Path | None:
    """Return the Python of vLLM's environment if it has vLLM's web server too."""
    python = Path(os.environ.get("ENGINES", ROOT)) / ".venv-vllm" / "bin" / "python"
    code = "import vllm.entrypoints.launchers.api_server.entry, vllm.entrypoints.serve.instrumentator.metrics"
    found = python.exists() and subprocess.run([python, "-c", code], capture_output=True, timeout=READY_S, check=False)
    return python if found and found.returncode == 0 else None


def of_triton(
    names: list[str],
    root: Path,
    served: Any,
    prompt: list[int],
    load: Load,
    found: dict[str, dict[str, Any]],
    processes: int,
) -> None:
    """Measure the stages that are Triton's, or before it."""
    http = int(served.client.where.rsplit(":", 1)[1])
    if "grpc" in names:

        def inputs(seed: int) -> list[Any]:
            return [
                ("input_ids", np.array([prompt], np.int32)),
                ("input_lengths", np.array([[len(prompt)]], np.int32)),
                ("request_output_len", np.array([[load.tokens]], np.int32)),
                ("streaming", np.array([[True]])),
                ("seed", np.array([[seed]], np.uint64)),
                ("end_id", np.array([[-1]], np.int32)),
            ]

        found["grpc"] = measure(
            "grpc", lambda load: uvloop.run(read_responses(served.grpc, "tensorrt_llm", inputs, load)), load
        )
    if "generate_stream" in names:
        text = Tokenizer(root / "artifact" / "tokenizer").decode(prompt)
        path = "/v2/models/ensemble/generate_stream"

        def body(seed: int, tokens: int) -> dict[str, Any]:
            return {"text_input": text, "max_tokens": tokens, "stream": True, "seed": seed, "end_id": -1}

        found["generate_stream"] = measure("generate_stream", lambda load: read_events(http, path, body, load), load)
    if "gateway" in names:
        (port,) = free_ports(1)
        config = gateway_config(root / "artifact", grpc=f"{LOOPBACK}:{served.grpc}", port=port)
        config = replace(config, processes=processes, limits=replace(config.limits, max_texts=2 * load.streams))
        write_config(config, root / "gateway.json")
        with started(gateway_command(root / "gateway.json"), ready_url(config)):
            asked = completion(config.model, prompt)
            found["gateway"] = measure("gateway", lambda load: read_events(port, "/v1/completions", asked, load), load)
