# SPDX-License-Identifier: Apache-2.0
"""All repositories of engines on one real tritonserver, a double in the place of TensorRT-LLM's backend.

The configurations are those that are emitted, but for the models' names, each of which is led by its method's: so one
server holds them all. It checks them as strictly as it can, loads the Python models, and runs whole ensembles.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.triton.artifact import make_tokenizer
from tests.triton.golden import REPOSITORIES
from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.errors import DeployError
from trtspec.system import free_ports
from trtspec.triton.client import Client
from trtspec.triton.config import load_config, render_config
from trtspec.triton.engine_repository import emit_engine_repository, relocate
from trtspec.triton.server import (
    Ports,
    Server,
    find_server,
    remove_shared_memory,
    server_command,
    start_server,
)

pytestmark = pytest.mark.triton

DOUBLE = Path(__file__).parents[1] / "doubles" / "tensorrtllm"
SHARED = ("preprocessing", "postprocessing")
SCRIPT = "The target says this, whatever it is asked. "
OTHER_SCRIPT = "The draft says that, whatever it is asked. "
PROMPT = "Hello"
TOKENS = 2 * len(SCRIPT)
LOADING_S = 120.0


@dataclass(frozen=True)
class Served:
    """One server with all repositories."""

    client: Client
    artifact: Path
    log: Path

    def ask(self, method: str, **request: Any) -> dict[str, Any]:
        return self.client.generate({"text_input": PROMPT, "max_tokens": TOKENS, **request}, f"{method}-ensemble")


def make_engines(artifact: Path) -> None:
    """Write what the double has in the place of engines: the ids of what they say."""
    tokenizer = Tokenizer(make_tokenizer(artifact / "tokenizer"))
    (artifact / "tokenizer" / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [0, *tokenizer.encode("~")]})
    )
    for role, text in (("target", SCRIPT), ("draft", OTHER_SCRIPT)):
        engine = artifact / "engines" / role
        engine.mkdir(parents=True)
        (engine / "script.json").write_text(json.dumps(tokenizer.encode(text)))


def add_repository(method: str, artifact: Path, out: Path) -> None:
    """Add a method's models to `out` under names of their own."""
    place = artifact.with_name(f"{method}-artifact") / "model_repository"
    wanted = replace(REPOSITORIES[method], vocab_size=257)
    emit_engine_repository(place, wanted)
    relocate(place, artifact.with_name(f"{method}-served"), str(artifact))
    for source in sorted(artifact.with_name(f"{method}-served").iterdir()):
        renamed = rename(source.name, method)
        shutil.copytree(source, out / renamed, dirs_exist_ok=source.name in SHARED)
        config = load_config(source / "config.pbtxt")
        config.name = renamed
        for step in config.ensemble_scheduling.step:
            step.model_name = rename(step.model_name, method)
        for key in ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name"):
            if key in config.parameters and config.parameters[key].string_value:
                config.parameters[key].string_value = rename(config.parameters[key].string_value, method)
        (out / renamed / "config.pbtxt").write_text(render_config(config))


def rename(model: str, method: str) -> str:
    return model if model in SHARED else f"{method}-{model}"


def with_double(server: Server, backends: Path) -> Server:
    """Return the server with the double beside its Python backend, which may not be a link where another uses it."""
    if server.backends is None:
        pytest.skip("a server whose backends lie elsewhere")
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
    ports, prefix = Ports(*free_ports(3)), f"trtspec-test-{root.name}"
    command = server_command(server, models, ports, model="*", shm_prefix=prefix)
    process = start_server(server, [*command, "--exit-on-error=false"], root / "log", detach=False)
    client = Client(ports.http, timeout_s=60)
    try:
        deadline = time.monotonic() + LOADING_S
        while not client.is_ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        yield Served(client, artifact, root / "log")
    finally:
        process.terminate()
        process.wait()
        remove_shared_memory(prefix)


def script(length: int = TOKENS, text: str = SCRIPT) -> str:
    """Return what follows the prompt."""
    return (text * 4)[len(PROMPT) :][:length]


def test_the_server_takes_every_model(served: Served) -> None:
    models = [rename(model, method) for method in REPOSITORIES for model in models_of(method)]
    refused = [model for model in models if not served.client.is_ready(model)]
    assert not refused, served.log.read_text()


def models_of(method: str) -> list[str]:
    outside = ["tensorrt_llm_bls"] if method in ("draft_target", "ngram") else []
    draft = ["tensorrt_llm_draft"] if method == "draft_target" else []
    return ["ensemble", "preprocessing", "tensorrt_llm", "postprocessing", *outside, *draft]


@pytest.mark.parametrize("method", REPOSITORIES)
def test_an_ensemble_says_what_the_target_says(served: Served, method: str) -> None:
    assert served.ask(method)["text_output"] == script()


@pytest.mark.parametrize("method", [method for method in REPOSITORIES if REPOSITORIES[method].streaming])
def test_a_stream_says_it_piece_by_piece(served: Served, method: str) -> None:
    request = {"text_input": PROMPT, "max_tokens": 20}
    pieces = [event["text_output"] for event in served.client.generate_stream(request, f"{method}-ensemble")]
    assert len(pieces) > 3
    assert "".join(pieces) == script(20)


def test_a_repository_without_streaming_refuses_a_stream(served: Served) -> None:
    with pytest.raises(DeployError, match="decoupled"):
        served.ask("eagle", stream=True)


def test_outputs_come_where_they_are_asked_for(served: Served) -> None:
    plain = served.ask("medusa")
    assert not {"acceptance_rate", "num_input_tokens"} & plain.keys()
    asked = served.ask("medusa", return_perf_metrics=True, return_num_input_tokens=True)
    assert (asked["acceptance_rate"], asked["num_input_tokens"]) == (0.5, len(PROMPT))
    assert asked["text_output"] == plain["text_output"]


def test_a_stop_word_ends_the_text(served: Served) -> None:
    assert served.ask("none", stop_words=["says"])["text_output"] == script()[: script().index("says") + len("says")]


def test_the_prompt_comes_back_where_it_is_asked_for(served: Served) -> None:
    assert served.ask("lookahead", exclude_input_in_output=False)["text_output"] == PROMPT + script()


def test_many_requests_at_once_are_each_their_own(served: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        lengths = range(1, 17)
        answers = pool.map(lambda length: served.ask("redrafter", max_tokens=length)["text_output"], lengths)
        assert list(answers) == [script(length) for length in lengths]
