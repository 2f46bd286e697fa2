# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's AIPerf as load generator: each round is one AIPerf run, whose records are converted to samples.

Tested with AIPerf 0.13. The records (`profile_export.jsonl`) contain the times and chunks of each request, so metrics,
intervals and comparisons are computed as for the built-in client. A run starts about ten processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from trtspec.bench.load.api import BadAnswer, parse_count
from trtspec.bench.load.arrivals import LATENCY, ArrivalProcess
from trtspec.bench.load.client import MAX_WORDS, Endpoint, LoadClient, document
from trtspec.bench.load.rounds import AskRound, LoadWorkload, Round
from trtspec.bench.load.sample import MS, RequestSample
from trtspec.core.errors import StepTimeout, TrtspecError
from trtspec.core.files import read_bounded
from trtspec.core.processes import die_with_parent, start_time, stop_session
from trtspec.engine.prompts.prompt import Prompt

PROGRAM, RECORDS = "aiperf", "profile_export.jsonl"
STARTING_S = 300.0  # time for start-up and shutdown, in which AIPerf loads a tokenizer and waits for its processes
MAX_RECORDS_BYTES = 256 << 20
LAST_WORDS_BYTES = 2000
NS = 1e9
# If one of these variables is set, AIPerf treats a tokenizer's directory as a name on the Hugging Face Hub.
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def _make(tokenizer: Path | None, timeout_s: float) -> AskRound:
    program = shutil.which(PROGRAM)
    if program is None:
        raise TrtspecError("--driver aiperf: aiperf is not on PATH", hint="install it with: pip install aiperf")

    async def ask_round(
        client: LoadClient, endpoint: Endpoint, load: ArrivalProcess, workload: LoadWorkload, number: int, requests: int
    ) -> Round:
        prompts = workload.round_prompts(number, requests)
        with tempfile.TemporaryDirectory(prefix="trtspec-aiperf-") as place:
            root = Path(place)
            (root / "prompts.jsonl").write_text("".join(json.dumps({"text": _text(each)}) + "\n" for each in prompts))
            argv = _command(program, root, endpoint, load, workload, requests, tokenizer)
            await _run([*argv, "--random-seed", str(workload.arrivals_seed(max(0, number)))], root, timeout_s)
            return Round(_samples(root, prompts, load), places=load.slots)

    return ask_round


DRIVER = _make


def _text(prompt: Prompt) -> str:
    """Return the text of a prompt; raises TrtspecError for a prompt with several messages."""
    if len(prompt.messages) > 1:
        message = f"prompt {prompt.name} has several messages, but --driver aiperf supports only one"
        raise TrtspecError(message, hint="omit --driver, or use prompts with one message")
    return prompt.messages[0]["content"] if prompt.messages else prompt.text


def _command(
    program: str,
    root: Path,
    endpoint: Endpoint,
    load: ArrivalProcess,
    workload: LoadWorkload,
    requests: int,
    tokenizer: Path | None,
) -> list[str]:
    """Return the command line of a run; raises TrtspecError for an unsupported API or a server with an API key."""
    if endpoint.api_name not in ("completions", "chat"):
        hint = "use --api completions or --api chat"
        raise TrtspecError("aiperf requires an OpenAI API", where=endpoint.url, hint=hint)
    if endpoint.headers:
        raise TrtspecError("aiperf accepts a key only on its command line, which every user of this machine can read")
    size = load.as_dict()
    at = ["--concurrency", str(size["concurrency"])] if load.judged_by != LATENCY else [
        "--request-rate", str(size["requests_per_s"]), "--arrival-pattern", "poisson"]  # fmt: skip
    return [
        program, "profile", "--model", endpoint.model, "--url", endpoint.url, "--endpoint-type", endpoint.api_name,
        "--streaming", "--input-file", str(root / "prompts.jsonl"), "--custom-dataset-type", "single_turn",
        "--dataset-sampling-strategy", "sequential", "--request-count", str(requests), *at,
        "--extra-inputs", json.dumps(_extra(endpoint, workload)), "--use-server-token-count",
        *(["--tokenizer", str(tokenizer)] if tokenizer else []), "--output-artifact-dir", str(root),
        "--export-level", "records", "--no-gpu-telemetry", "--no-server-metrics", "--ui-type", "none",
    ]  # fmt: skip


def _extra(endpoint: Endpoint, workload: LoadWorkload) -> dict[str, Any]:
    """Return the request fields that AIPerf does not set itself."""
    body = json.loads(endpoint.request(workload.order[0], workload.wanted))
    return {key: value for key, value in body.items()
            if key not in ("model", "prompt", "messages", "stream", "stream_options")}  # fmt: skip


async def _run(argv: list[str], root: Path, timeout_s: float) -> None:
    """Run AIPerf; raises TrtspecError if it fails and StepTimeout if it takes too long."""
    environment = {name: value for name, value in os.environ.items() if name not in OFFLINE}
    log = root / "output.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, cwd=root, env=environment,
            start_new_session=True, preexec_fn=die_with_parent(),
        )  # fmt: skip
        started = start_time(process.pid)
        try:
            code = await asyncio.wait_for(process.wait(), STARTING_S + timeout_s)  # unbounded: wait_for has the timeout
        except asyncio.TimeoutError:
            raise StepTimeout(f"aiperf took longer than {STARTING_S + timeout_s:.0f} s") from None
        finally:
            stop_session(process.pid, started, 5.0)
    if not (root / RECORDS).is_file():  # the exit code is unusable: it is also non-zero for failed requests
        said = log.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        raise TrtspecError(f"aiperf exited with {code} without records; end of its output:\n{said}")


def _samples(root: Path, prompts: list[Prompt], load: ArrivalProcess) -> list[RequestSample]:
    """Return the records of a run as samples, in the order of the requests."""
    path = root / RECORDS
    try:
        found = [document(line) for line in read_bounded(path, MAX_RECORDS_BYTES).splitlines()]
        if len(found) != len(prompts):
            raise TrtspecError(f"aiperf wrote {len(found)} records for {len(prompts)} requests", where=str(path))
        records = sorted(found, key=lambda each: each["metadata"]["session_num"])
        began = min(_due(each, load) for each in records)
        return [_sample(each, prompts, began, load) for each in records]
    except (BadAnswer, KeyError, TypeError, ValueError, IndexError) as error:
        raise TrtspecError(f"a record does not match the format of aiperf 0.13: {error}", where=str(path)) from None


def _due(record: Mapping[str, Any], load: ArrivalProcess) -> float:
    """Return a request's scheduled time in seconds: AIPerf's decision to send it in an open loop, else its start."""
    metadata = record["metadata"]
    return float(metadata["credit_issued_ns" if load.judged_by == LATENCY else "request_start_ns"]) / NS


def _sample(record: Mapping[str, Any], prompts: list[Prompt], began: float, load: ArrivalProcess) -> RequestSample:
    prompt = prompts[int(record["metadata"]["session_num"]) % len(prompts)]
    due, sent = _due(record, load), float(record["metadata"]["request_start_ns"]) / NS
    if error := record.get("error"):
        said = error.get("message") if isinstance(error, dict) else error
        return RequestSample(prompt.name, prompt.kind, due - began, sent - began, error=str(said)[:MAX_WORDS])
    values = {name: metric["value"] for name, metric in record["metrics"].items()}
    drafts = record.get("spec_decode_acceptance") or {}
    tokens = parse_count(values.get("output_sequence_length"))
    gaps_ms = [float(gap) for gap in values.get("inter_chunk_latency") or []]
    arrived_ms = accumulate(gaps_ms, initial=float(values["time_to_first_token"]))
    chunks = tuple(sent - due + ms / MS for ms in arrived_ms)
    return RequestSample(
        prompt.name, prompt.kind, due - began, sent - began, chunks, parse_count(values.get("input_sequence_length")),
        tokens if tokens is not None else len(chunks), tokens is not None,
        parse_count(drafts.get("num_draft_tokens")), parse_count(drafts.get("num_accepted_draft_tokens")),
        parse_count(values.get("spec_decode_steps")), _histogram(drafts.get("acceptance_histogram") or {}),
    )  # fmt: skip


def _histogram(counts: Mapping[str, Any]) -> tuple[int, ...]:
    most = max((int(place) for place in counts), default=-1)
    return tuple(parse_count(counts.get(str(place))) or 0 for place in range(min(most, 1024) + 1))
