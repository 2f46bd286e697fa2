# SPDX-License-Identifier: Apache-2.0
"""Give mutated inputs to every reader of foreign data: each is read, or rejected with an error of trtspec.

    python benchmarks/fuzz.py [--inputs 2500000] [--processes 2] [--seed 0] [--out FILE.json]

Any other exception would end a command with exit code 70 ("this is a bug in trtspec"), or a request with status 500. It
is reported with the input that caused it. Readers that run in a child process (tokenizers, chat templates, parquet,
pickles) are covered by the tests, which need milliseconds per input.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from machine import environment

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests._support.mutations import mutated  # noqa: E402
from tests.checkpoints.corpus import CONFIG, GOOD_CONFIG, SHAPES, WEIGHTS, good_header, make_good, pack  # noqa: E402

Read = Callable[[bytes], object]
MOST_BYTES = 2 << 30
MAX_FAILURES = 20
BATCH = 2000


@dataclass(frozen=True)
class Target:
    """A reader: the share of all inputs that it gets, valid inputs to start from, and a function that makes it.

    `make` gets an empty directory and returns the function that reads one input; `rejections` are the errors that it
    may raise.
    """

    share: float
    seeds: tuple[bytes, ...]
    make: Callable[[Path], Read]
    rejections: tuple[type[Exception], ...]


def dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


def file_reader(name: str, read: Callable[[Path], object]) -> Callable[[Path], Read]:
    """Return the `make` of a function that reads a file."""

    def make(directory: Path) -> Read:
        path = directory / name

        def read_bytes(data: bytes) -> object:
            path.write_bytes(data)
            return read(path)

        return read_bytes

    return make


def recipes(directory: Path) -> Read:
    from trtspec.recipe.load import load_matrix, load_recipe

    path = directory / "recipe.yaml"

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return load_matrix(path) if b"matrix" in data else load_recipe(path)

    return read


def checkpoints(name: str) -> Callable[[Path], Read]:
    """Return the reader of a valid checkpoint of which one file is replaced."""

    def make(directory: Path) -> Read:
        from trtspec.checkpoints.generation_config import read_generation_config
        from trtspec.planning.inspection import inspect_path

        root = make_good(directory / "model")

        def read(data: bytes) -> object:
            (root / name).write_bytes(data)
            return read_generation_config(root), inspect_path(root)

        return read

    return make


def manifests(directory: Path) -> Read:
    from tests._support.manifests import write_manifest
    from trtspec.store.artifact import load_manifest

    path = directory / "manifest.json"

    def read(data: bytes) -> object:
        try:
            document = json.loads(data)
        except ValueError:
            document = None
        path.write_bytes(data)
        if isinstance(document, dict) and document.pop("digest", None):  # recomputed, as an attacker would
            write_manifest(directory, document)
        return load_manifest(directory)

    return read


def deployments(name: str) -> Callable[[Path], Read]:
    """Return the reader of a deployment's directory of which one file is replaced."""

    def make(directory: Path) -> Read:
        from trtspec.deployment.journal import DeploymentJournal
        from trtspec.deployment.rollout.state import read_rollout

        os.environ["TRTSPEC_STATE"] = str(directory / "state")
        journal = DeploymentJournal("fuzz")
        journal.root.mkdir(parents=True)

        def read(data: bytes) -> object:
            (journal.root / name).write_bytes(data)
            found = journal.read(), journal.entries()
            return found, read_rollout(journal)

        return read

    return make


def state_documents() -> tuple[bytes, bytes]:
    """Return the documents of a deployment and of a rollout."""
    from trtspec.deployment.journal import DeploymentRecord
    from trtspec.deployment.rollout.state import RolloutRecord

    record = DeploymentRecord("fuzz", "live", "build/fuzz", 1, None, 1, 2, 3, "trtspec_fuzz_", True)
    rollout = RolloutRecord(record, state="canary", share=5, shadow={"verdict": "well", "sent": 3})
    return dumped(asdict(record)), dumped(asdict(rollout))


def completions(chat: bool) -> Callable[[Path], Read]:
    def make(directory: Path) -> Read:
        from trtspec.engine.prompts.prompt import read_messages
        from trtspec.serving.gateway.parameters import read_parameters

        def read(data: bytes) -> object:
            try:
                body = json.loads(data)
            except (ValueError, RecursionError):
                return None  # the gateway's parser rejects these
            if not isinstance(body, dict):
                return None
            if chat:
                read_messages(body.get("messages"))
            return read_parameters(body, chat=chat)

        return read

    return make


def heads(directory: Path) -> Read:
    from trtspec.core.http_hosts import HostRules
    from trtspec.serving.front.http_messages import check_body, check_incomplete_head, parse_head

    rules = HostRules(frozenset({"localhost", "127.0.0.1"}))

    def read(data: bytes) -> object:
        head, _, body = data.partition(b"\r\n\r\n")
        check_incomplete_head(head, 0)
        return check_body(parse_head(head, rules), bytearray(body))

    return read


def chunks(directory: Path) -> Read:
    from trtspec.serving.front.http_messages import ChunkedBody

    def read(data: bytes) -> object:
        body, buffer = ChunkedBody(), bytearray()
        for at in range(0, len(data), 7):
            buffer += data[at : at + 7]
            if body.take(buffer):
                return body.body
        return None

    return read


def responses(directory: Path) -> Read:
    from trtspec.serving.front.http_messages import UpstreamResponse

    def read(data: bytes) -> object:
        response, at = UpstreamResponse(), 0
        while at < len(data) and not response.is_over:
            response.follow(data[at : at + 11])
            at += 11
        return response.ends()

    return read


def targets() -> dict[str, Target]:
    """Return all readers; their shares add up to 1."""
    from trtspec.bench.documents import read_document
    from trtspec.checkpoints.safetensors import read_header
    from trtspec.core.errors import TrtspecError
    from trtspec.core.prometheus_text import parse_metrics
    from trtspec.engine.prompts.load import read_prompts
    from trtspec.planning.compare import load_document
    from trtspec.serving.front.http_messages import MalformedResponse, RequestRejected
    from trtspec.serving.gateway.errors import ApiError

    ours, state = (TrtspecError,), state_documents()
    generation = (ROOT / "recipes" / "models" / "quickstart-target" / "generation_config.json").read_bytes()
    weights = pack(good_header(), sum(2 * prod(shape) for shape in SHAPES.values()))
    yaml = tuple(path.read_bytes() for path in sorted((ROOT / "recipes").glob("*.yaml")))
    yaml = tuple(recipe for recipe in yaml if b"\nextends:" not in recipe)  # their bases are elsewhere
    prompts = (
        b"".join(dumped({"prompt": f"text {number}", "category": "qa"}) + b"\n" for number in range(4)),
        dumped([{"id": "1", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]),
        dumped({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}) + b"\n",
    )
    sampling = {"max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["a"], "logit_bias": {"5": 1.0}}
    chat = dumped({"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True, **sampling})
    text = dumped({"model": "m", "prompt": ["a", "b"], "logprobs": 2, "n": 1, "echo": False, **sampling})
    request = b"POST /v2/models/ensemble/generate HTTP/1.1\r\nHost: localhost:8000\r\nContent-Length: 18\r\n"
    request += b'Content-Type: application/json\r\nX-Request-Id: a\r\n\r\n{"text_input": "a"}'
    chunked = b"5\r\nhello\r\n1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunked
    sized = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 11\r\n\r\n{"error":1}'
    metrics = b'# HELP a b\n# TYPE a counter\na{model="m",v="1\\n"} 5 1700000000\nb_bucket{le="+Inf"} 1e5\nc NaN\n'
    common = {"format_version": 1, "name": "x", "time": "2026-01-01T00:00:00+00:00", "target": {"sha256": "0" * 64}}
    arm = {"tokens_per_s": [1.0, 2.0], "median_tokens_per_s": 1.5, "acceptance_rate": 0.5, "mean_accepted_len": 2.0}
    bench = {
        **common,
        "prompts": 3,
        "max_tokens": 4,
        "baseline": arm,
        "speculative": arm,
        "speedup": 1.5,
        "speedup_interval": [1.2, 1.8],
        "identical_texts": 3,
    }
    saved = dumped(bench), dumped({**common, "methods": [{"method": "ngram"}], "by_position": []})
    check = {"name": "lossless", "ok": True, "detail": "x", "value": 3, "limit": 3}
    compared = dumped({**bench, "acceptance": "exact"}), dumped({**common, "acceptance": "exact", "checks": [check]})
    config = dumped(GOOD_CONFIG | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "eos_token_id": [1, 2]})
    return {
        "recipe": Target(0.016, yaml, recipes, ours),
        "config.json": Target(0.03, (config,), checkpoints(CONFIG), ours),
        "generation_config.json": Target(0.01, (generation,), checkpoints("generation_config.json"), ours),
        "safetensors": Target(0.12, (weights,), file_reader(WEIGHTS, read_header), ours),
        "manifest.json": Target(0.06, manifest_seeds(), manifests, ours),
        "state.json": Target(0.04, state[:1], deployments("state.json"), ours),
        "rollout.json": Target(0.04, state[1:], deployments("rollout.json"), ours),
        "saved document": Target(0.06, saved, file_reader("saved.json", read_document), ours),
        "compared document": Target(0.04, compared, file_reader("compared.json", load_document), ours),
        "prompts": Target(0.06, prompts, file_reader("prompts.jsonl", read_prompts), ours),
        "metrics": Target(0.06, (metrics,), lambda directory: parse_metrics, ours),
        "chat completion": Target(0.11, (chat,), completions(True), (ApiError, TrtspecError)),
        "completion": Target(0.11, (text,), completions(False), (ApiError, TrtspecError)),
        "request head": Target(0.12, (request,), heads, (RequestRejected,)),
        "chunked body": Target(0.06, (chunked,), chunks, (RequestRejected,)),
        "response": Target(0.064, (answer, sized), responses, (MalformedResponse,)),
    }


def manifest_seeds() -> tuple[bytes, ...]:
    """Return the manifest of the quickstart's artifact if it is built at its default place."""
    path = ROOT / "build" / "quickstart" / "manifest.json"
    if not path.exists():
        raise SystemExit("the quickstart's artifact is missing: trtspec build recipes/quickstart.yaml")
    return (path.read_bytes(),)


def run(name: str, count: int, seed: int) -> dict[str, Any]:
    """Give `count` mutated inputs to one reader; return the numbers of read and rejected ones, and failures."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))  # an input that asks for more is a failure
    target, dice = targets()[name], random.Random(f"{name} {seed}")
    ended: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as directory:
        read = target.make(Path(directory))
        for seed_input in target.seeds:  # of a rejected seed, only the rejection would be tested
            try:
                read(seed_input)
            except target.rejections as error:
                raise RuntimeError(f"a seed of {name} is rejected: {error}") from None
        for _ in range(count):
            data = dice.choice(target.seeds)
            for _ in range(dice.choice((1, 1, 2, 5))):
                data = mutated(data, dice)
            try:
                read(data)
                ended["read"] += 1
            except target.rejections as error:
                str(error).encode()
                ended["rejected"] += 1
            except Exception:
                ended["failed"] += 1
                if len(failures) < MAX_FAILURES:
                    failures.append({"input": repr(data[:2000]), "error": traceback.format_exc(limit=-4)})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"target": name, "inputs": count, **ended, "peak_mib": peak, "failures": failures}


def batches(inputs: int, readers: Collection[str]) -> Iterator[tuple[str, int]]:
    """Split all inputs into calls of `run`, so that processes end at about the same time."""
    for name, target in targets().items():
        if name not in readers:
            continue
        left = round(inputs * target.share)
        while left > 0:
            yield name, min(left, BATCH * 10)
            left -= BATCH * 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2_500_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", nargs="+", choices=targets(), default=list(targets()))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    total: dict[str, Counter[str]] = {}
    failures, started = [], time.monotonic()
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        calls = [
            pool.submit(run, name, count, arguments.seed * 1_000_000 + number)
            for number, (name, count) in enumerate(batches(arguments.inputs, arguments.readers))
        ]
        for number, call in enumerate(as_completed(calls), 1):
            done = call.result()
            counts = total.setdefault(done["target"], Counter())
            counts.update({key: done.get(key, 0) for key in ("inputs", "read", "rejected", "failed")})
            counts["peak_mib"] = max(counts["peak_mib"], done["peak_mib"])
            for failure in done["failures"]:
                failures.append({"target": done["target"], **failure})
                print(f"{done['target']}: {failure['error']}{failure['input']}\n")
            if sys.stderr.isatty() or number % 20 == 0:
                print(f"{number} of {len(calls)} parts, {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(f"{'reader':24}{'inputs':>10}{'read':>10}{'rejected':>10}{'failed':>8}{'MiB':>6}")
    for name, counts in sorted(total.items()):
        numbers = (counts["inputs"], counts["read"], counts["rejected"], counts["failed"], counts["peak_mib"])
        print(f"{name:24}{numbers[0]:10,}{numbers[1]:10,}{numbers[2]:10,}{numbers[3]:8,}{numbers[4]:6,}")
    everything = sum(counts["inputs"] for counts in total.values())
    failed = sum(counts["failed"] for counts in total.values())
    print(f"{everything:,} inputs, {failed} failures, {time.monotonic() - started:.0f} s")
    if arguments.out:
        document = {"environment": environment(), "seed": arguments.seed, "seconds": time.monotonic() - started}
        document |= {"readers": {name: dict(counts) for name, counts in sorted(total.items())}, "failures": failures}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
