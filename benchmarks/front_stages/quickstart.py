# SPDX-License-Identifier: Apache-2.0
"""Measure the quickstart at 16 streams, in this process and behind the gateway, in turns.

    python -m benchmarks.front_stages.quickstart --seconds 15 --rounds 3 --json

Requests are greedy, of 64 tokens each, and streamed if served. A ratio of rates needs a machine without other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.front_stages.clients import LAST_CHUNK, post_request
from benchmarks.front_stages.stages import ROOT, Processes, started
from benchmarks.machine import commit, environment
from tests.serving.triton.serving import serving
from trtspec.bench.artifact import open_artifact
from trtspec.core.ports import LOOPBACK, free_ports
from trtspec.engine.generation.request import Update
from trtspec.serving.gateway.command import gateway_command, gateway_config, ready_url, write_config

PROMPTS = ROOT / "recipes" / "prompts" / "quickstart.jsonl"
TOKENS = 64  # of each text
WARMUP_S = 3.0
DRAFTS = {"drafts": None, "no drafts": 0}
MADE = re.compile(rb'"completion_tokens": (\d+)')

Result = dict[str, Any]


def result(tokens: int, seconds: float, spent: dict[str, float]) -> Result:
    return {
        "tokens_per_s": round(tokens / seconds),
        "cpu_us_per_token": {who: round(1e6 * each / max(tokens, 1), 1) for who, each in sorted(spent.items())},
    }


def in_process(artifact: Path, texts: list[str], streams: int, seconds: float, draft_len: int | None) -> Result:
    """Measure the engine in this process with `streams` requests at all times."""
    with open_artifact(artifact) as opened:
        requests = [opened.request(text, TOKENS, draft_len=draft_len) for text in texts]
        asked, made, over = 0, 0, False

        def submit() -> None:
            nonlocal asked
            asked += 1
            opened.engine.submit(requests[asked % len(requests)], on_update)

        def on_update(update: Update) -> None:
            nonlocal made
            made += len(update.new_ids)
            if update.finish_reason and not over:
                submit()

        for _ in range(streams):
            submit()
        time.sleep(WARMUP_S)
        processes, before, began = Processes(), made, time.monotonic()
        time.sleep(seconds)
        found = result(made - before, time.monotonic() - began, processes.since())
        over = True
    return found


async def ask(port: int, bodies: list[dict[str, Any]], until: float, ends: list[tuple[float, int]]) -> None:
    """Send requests on one connection until a time of the monotonic clock; add the end and tokens of each response."""
    opening = asyncio.open_connection(LOOPBACK, port)
    reader, writer = await asyncio.wait_for(opening, 10)
    place = 0
    while time.monotonic() < until:
        writer.write(post_request(port, "/v1/completions", bodies[place % len(bodies)]))
        place += 1
        data = b""
        while not data.endswith(LAST_CHUNK):
            part = await asyncio.wait_for(reader.read(1 << 16), 60)
            if not part:
                raise SystemExit(f"the gateway closed a connection: {data[-300:].decode(errors='replace')}")
            data += part
        ends.append((time.monotonic(), int(MADE.findall(data)[-1])))
    writer.close()


def through_gateway(port: int, model: str, texts: list[str], streams: int, seconds: float, draft: int | None) -> Result:
    """Measure the gateway at a port with `streams` connections that always have a request."""
    fixed = {"model": model, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    fixed |= {"stream_options": {"include_usage": True}} | ({} if draft is None else {"num_draft_tokens": draft})
    bodies = [{**fixed, "prompt": text} for text in texts]

    async def run() -> Result:
        ends: list[tuple[float, int]] = []
        until = time.monotonic() + WARMUP_S + seconds
        asking = [asyncio.ensure_future(ask(port, bodies[n:] + bodies[:n], until, ends)) for n in range(streams)]
        await asyncio.sleep(WARMUP_S)
        processes, began = Processes(), time.monotonic()
        await asyncio.sleep(seconds)
        spent, passed = processes.since(), time.monotonic() - began
        await asyncio.gather(*asking)
        return result(sum(made for at, made in ends if began <= at < began + passed), passed, spent)

    return uvloop.run(run())


def measure(artifact: Path, texts: list[str], streams: int, seconds: float, rounds: int) -> list[Result]:
    """Return the results of all rounds; a round measures both sides, with drafts and without."""
    found: list[Result] = []
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for number in range(rounds):
            for name, draft_len in DRAFTS.items():
                one = in_process(artifact, texts, streams, seconds, draft_len)
                found.append({"side": "in process", "mode": name, **one})
            (root / str(number)).mkdir()
            with serving(root / str(number), artifact / "model_repository") as served:
                (port,) = free_ports(1)
                config = gateway_config(artifact, grpc=f"{LOOPBACK}:{served.grpc}", port=port)
                write_config(config, root / "gateway.json")
                with started(gateway_command(root / "gateway.json"), ready_url(config)):
                    for name, draft_len in DRAFTS.items():
                        one = through_gateway(port, config.model, texts, streams, seconds, draft_len)
                        found.append({"side": "served", "mode": name, **one})
    return found


def ratios(results: list[Result]) -> dict[str, float]:
    """Return the rate behind the gateway by the rate in process, of medians, for each mode."""

    def median(side: str, mode: str) -> float:
        rates = [each["tokens_per_s"] for each in results if (each["side"], each["mode"]) == (side, mode)]
        return float(statistics.median(rates))

    return {mode: round(median("served", mode) / median("in process", mode), 2) for mode in DRAFTS}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.front_stages.quickstart", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--artifact", type=Path, default=ROOT / "build" / "quickstart")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if not (asked.artifact / "manifest.json").exists():
        parser.error(f"{asked.artifact} is not an artifact; run: trtspec build recipes/quickstart.yaml")
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    results = measure(asked.artifact, texts, asked.streams, asked.seconds, asked.rounds)
    document = {"streams": asked.streams, "ratios": ratios(results), "results": results}
    document |= {"commit": commit(), "machine": environment()}
    lines = [f"{each['mode']:<10} {each['side']:<11} {each['tokens_per_s']:>6} tokens/s" for each in results]
    print(
        json.dumps(document, indent=2) if asked.json else "\n".join([*lines, f"served / in process: {ratios(results)}"])
    )
    if asked.out:
        asked.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
