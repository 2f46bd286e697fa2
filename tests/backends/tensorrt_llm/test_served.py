# SPDX-License-Identifier: Apache-2.0
"""All repositories of engines on one real tritonserver, with a double of TensorRT-LLM's backend.

The configurations are the emitted ones, except that the method is prepended to each model's name, so that one server
can load all of them. It validates them strictly, loads the Python models, and runs complete ensembles.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.backends.tensorrt_llm.golden import REPOSITORIES
from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.serving import start_server
from tests.serving.triton.streams import generate_stream
from trtspec.backends.serving import relocate
from trtspec.backends.tensorrt_llm.artifact import EmitEngineRepository
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import DeployError
from trtspec.core.ports import free_ports
from trtspec.core.processes import start_time, stop_session
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.config import load_config, render_config
from trtspec.serving.triton.server import ServerPorts, TritonServer, find_server, remove_shared_memory, server_command

pytestmark = pytest.mark.triton

DOUBLE = Path(__file__).parents[2] / "doubles" / "tensorrtllm"
SHARED = ("preprocessing", "postprocessing")
SCRIPT = "The target says this, and that is né ✓, whatever it is asked. "
OTHER_SCRIPT = "The draft says that, and that is né ✓, whatever it is asked. "
PROMPT = "Hello"
TOKENS = 2 * len(SCRIPT.encode())  # tokens are bytes
LOADING_S = 120.0
PADDED = 264  # logits of a tokenizer with 257 tokens


@dataclass(frozen=True)
class Served:
    """One server with all repositories."""

    client: Client
    artifact: Path
    log: Path

    def ask(self, method: str, **request: Any) -> dict[str, Any]:
        return self.client.generate({"text_input": PROMPT, "max_tokens": TOKENS, **request}, f"{method}-ensemble")


def make_engines(artifact: Path) -> None:
    """Write the double's replacement of engines: the ids of their output."""
    tokenizer = Tokenizer(make_tokenizer(artifact / "tokenizer"))
    (artifact / "tokenizer" / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [0, *tokenizer.encode("~")]})
    )
    for role, text in (("target", SCRIPT), ("draft", OTHER_SCRIPT)):
        engine = artifact / "engines" / role
        engine.mkdir(parents=True)
        (engine / "script.json").write_text(json.dumps(tokenizer.encode(text)))
        (engine / "config.json").write_text(json.dumps({"pretrained_config": {"vocab_size": PADDED}}))


def add_repository(method: str, artifact: Path, out: Path) -> None:
    """Add a method's models to `out` under separate names."""
    place = artifact.with_name(f"{method}-artifact") / "model_repository"
    wanted = replace(REPOSITORIES[method], vocab_size=PADDED)
    EmitEngineRepository((), wanted).emit(place)
    relocate(place, artifact.with_name(f"{method}-served"), str(artifact))
    for source in sorted(artifact.with_name(f"{method}-served").iterdir()):
        renamed = rename(source.name, method)
        shutil.copytree(source, out / renamed, dirs_exist_ok=source.name in SHARED)
        config = load_config(source / "config.pbtxt")
        config.name = renamed
        for key in ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name"):
            if key in config.parameters and config.parameters[key].string_value:
                config.parameters[key].string_value = rename(config.parameters[key].string_value, method)
        (out / renamed / "config.pbtxt").write_text(render_config(config))


def rename(model: str, method: str) -> str:
    return model if model in SHARED else f"{method}-{model}"


def with_double(server: TritonServer, backends: Path) -> TritonServer:
    """Return the server with the double next to its Python backend, which must be a copy if another test uses it."""
    if server.backends is None:
        pytest.skip("the server's backends are in another directory")
    shutil.copytree(server.backends, backends)
    shutil.copytree(DOUBLE, backends / "tensorrtllm", ignore=shutil.ignore_patterns("__pycache__"))
    return replace(server, backends=backends)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(root / "cache"))
        try:
            server = with_double(find_server(), root / "backends")
        except DeployError as error:
            pytest.skip(str(error))
    artifact, models = root / "artifact", root / "models"
    make_engines(artifact)
    for method in REPOSITORIES:
        add_repository(method, artifact, models)
    ports, prefix = ServerPorts(*free_ports(3)), f"trtspec-test-{secrets.token_hex(8)}"
    command = server_command(server, models, ports, model="*", shm_prefix=prefix)
    process = start_server(server, [*command, "--exit-on-error=false"], root / "log")
    started = start_time(process.pid)  # also identifies the children of a process that exited
    client = Client(f"http://127.0.0.1:{ports.http}")
    try:
        deadline = time.monotonic() + LOADING_S
        while not client.is_ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        yield Served(client, artifact, root / "log")
    finally:
        stop_session(process.pid, started, 0)
        process.wait(30)
        remove_shared_memory(prefix)


def script(length: int = TOKENS, text: str = SCRIPT) -> str:
    """Return the text that follows the prompt."""
    return (text.encode() * 4)[len(PROMPT) :][:length].decode()


def test_server_loads_every_model(served: Served) -> None:
    models = [rename(model, method) for method in REPOSITORIES for model in models_of(method)]
    refused = [model for model in models if not served.client.is_ready(model)]
    assert not refused, served.log.read_text()


def models_of(method: str) -> list[str]:
    draft = ["tensorrt_llm_draft"] if method == "draft_target" else []
    return ["ensemble", "tensorrt_llm_bls", "preprocessing", "tensorrt_llm", "postprocessing", *draft]


def test_engines_are_warmed_up_before_they_are_ready(served: Served) -> None:
    """One text, a full batch, and both with drafts to verify for the target; the draft model gets no drafts."""
    said = served.log.read_text()
    together = {
        model: [f"{rename(model, 'draft_target')}: {size} together" in said for size in (1, 8)]
        for model in ("tensorrt_llm", "tensorrt_llm_draft")
    }
    assert together == {"tensorrt_llm": [True, True], "tensorrt_llm_draft": [True, True]}
    assert f"{rename('tensorrt_llm', 'none')}: 8 together" not in said
    assert "warmup error" not in said


@pytest.mark.parametrize("method", REPOSITORIES)
def test_ensemble_text_equals_the_targets_text(served: Served, method: str) -> None:
    assert served.ask(method)["text_output"] == script()


@pytest.mark.parametrize("method", [method for method in REPOSITORIES if REPOSITORIES[method].streaming])
def test_stream_pieces_are_whole_characters(served: Served, method: str) -> None:
    request = {"text_input": PROMPT, "max_tokens": TOKENS}
    pieces = [event["text_output"] for event in generate_stream(served.client, request, f"{method}-ensemble")]
    assert len(pieces) > 20
    assert "".join(pieces) == script()
    assert not any("\ufffd" in piece for piece in pieces)


def test_repository_without_streaming_rejects_a_stream(served: Served) -> None:
    with pytest.raises(DeployError, match="stream is not supported by this repository"):
        served.ask("eagle", stream=True)


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_internal_drafting_engine_reports_draft_counts(served: Served, method: str) -> None:
    answer = served.ask(method)
    names = ("total_draft_tokens", "total_accepted_draft_tokens", "num_input_tokens", "num_output_tokens")
    assert [answer[name] for name in names] == [2 * TOKENS, TOKENS, len(PROMPT), TOKENS]
    assert answer["acceptance_rate"] == 0.5


def test_lookahead_request_can_reduce_its_sizes(served: Served) -> None:
    sizes = {"lookahead_window_size": 3, "lookahead_ngram_size": 2, "lookahead_verification_set_size": 2}
    assert served.ask("lookahead")["total_draft_tokens"] == 7 * TOKENS
    assert served.ask("lookahead", **sizes)["total_draft_tokens"] == 3 * TOKENS
    with pytest.raises(DeployError, match="its method is not lookahead"):
        served.ask("none", **sizes)


def test_sampling_request_is_rejected_by_a_greedy_only_engine(served: Served) -> None:
    with pytest.raises(DeployError, match="always takes the most probable token and cannot sample"):
        served.ask("medusa", temperature=0.7, top_p=1.0)
    assert served.ask("redrafter", temperature=0.7, top_p=1.0)["text_output"] == script()


@pytest.mark.parametrize("method", REPOSITORIES)
def test_stop_word_ends_the_text(served: Served, method: str) -> None:
    answer = served.ask(method, stop_words=["né ✓"])
    assert answer["text_output"] == script()[: script().index("✓") + 1]


def test_prompt_is_returned_on_request(served: Served) -> None:
    assert served.ask("lookahead", exclude_input_in_output=False)["text_output"] == PROMPT + script()


@pytest.mark.parametrize("method", ["none", "draft_target"])
def test_embedding_bias_has_the_length_of_the_padded_vocabulary(served: Served, method: str) -> None:
    """The double rejects other lengths, like TensorRT-LLM; medusa drafts inside and accepts no bias."""
    biased = {"embedding_bias_words": ["a"], "embedding_bias_weights": [2.0]}
    assert served.ask(method, **biased)["text_output"] == script()
    asked = {"QUERY": PROMPT, "REQUEST_OUTPUT_LEN": 8, **{name.upper(): value for name, value in biased.items()}}
    encoded = served.client.generate(asked, "preprocessing")
    assert (len(encoded["EMBEDDING_BIAS"]), sum(encoded["EMBEDDING_BIAS"])) == (PADDED, 2.0)
    ids = {"input_ids": [1], "input_lengths": 1, "request_output_len": 2, "embedding_bias": [1.0] * 257}
    with pytest.raises(DeployError, match=f"same as vocab size: {PADDED}"):
        served.client.generate(ids, f"{method}-tensorrt_llm")


def test_client_can_call_the_engine_model_directly(served: Served) -> None:
    encoded = served.client.generate({"QUERY": PROMPT, "REQUEST_OUTPUT_LEN": 8}, "preprocessing")
    names = {"input_ids": "INPUT_ID", "input_lengths": "REQUEST_INPUT_LEN", "request_output_len": "REQUEST_OUTPUT_LEN"}
    request = {inner: encoded[outer] for inner, outer in names.items()}
    answer = served.client.generate(request, "none-tensorrt_llm")
    assert Tokenizer(served.artifact / "tokenizer").decode(answer["output_ids"]) == script(8)


def test_concurrent_requests_each_get_their_own_text(served: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        lengths = range(1, 17)
        answers = pool.map(lambda length: served.ask("redrafter", max_tokens=length)["text_output"], lengths)
        assert list(answers) == [script(length) for length in lengths]
