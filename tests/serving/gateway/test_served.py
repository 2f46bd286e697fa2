# SPDX-License-Identifier: Apache-2.0
"""OpenAI's unmodified client against the quickstart on a real tritonserver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.serving.gateway.running import RunningGateway, wait_until
from tests.serving.triton.serving import Served
from trtspec.bench.artifact import open_artifact
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.ports import free_ports
from trtspec.serving.gateway.command import gateway_command, gateway_config, ready_url, write_config

if TYPE_CHECKING:
    import openai  # importing takes a second in every worker

pytestmark = pytest.mark.triton

MODEL = "quickstart"
PROMPTS = ["def add(a, b):", "The", '{"name": "é"', "03:05:00Z INFO", "for i in"]
TOKENS = 40


@pytest.fixture(scope="module")
def client(entry: RunningGateway) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{entry.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def expected(quickstart: Path) -> dict[str, Any]:
    """The text and counts that the engine produces for each prompt in this process."""
    with open_artifact(quickstart) as opened:
        made = [opened.engine.generate([opened.request(prompt, TOKENS)])[0] for prompt in PROMPTS]
        texts = [(opened.tokenizer.decode(result.ids), result.stats) for result in made]
    return dict(zip(PROMPTS, texts, strict=True))


def complete(client: openai.OpenAI, **asked: Any) -> Any:
    return client.completions.create(
        **{"model": MODEL, "prompt": "The", "max_tokens": TOKENS, "temperature": 0, **asked}
    )


def test_completion_text_and_counts_match_the_engine(client: openai.OpenAI, expected: dict[str, Any]) -> None:
    for prompt, (text, stats) in expected.items():
        answer = complete(client, prompt=prompt)
        assert answer.choices[0].text == text
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (stats.prompt_tokens, stats.new_tokens)
        assert answer.choices[0].finish_reason == ("length" if stats.new_tokens == TOKENS else "stop")
        drafts = answer.model_extra["metrics"]["speculative_decoding"]
        assert (drafts["num_draft_tokens"], drafts["num_accepted_draft_tokens"]) == (stats.drafted, stats.accepted)
        histogram = drafts["acceptance_histogram"]
        assert sum(histogram) == drafts["num_spec_steps"] == stats.draft_steps
        assert sum(place * count for place, count in enumerate(histogram)) == stats.accepted
        assert (drafts["num_spec_tokens"], len(histogram)) == (5, 6)


def test_stream_equals_the_whole_response_and_ends_with_usage(client: openai.OpenAI) -> None:
    whole = complete(client)
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert chunks[-1].model_extra["metrics"] == whole.model_extra["metrics"]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert len(chunks) > 5


def test_concurrent_streams_return_the_expected_texts(client: openai.OpenAI, expected: dict[str, Any]) -> None:
    prompts = PROMPTS * 5
    with ThreadPoolExecutor(len(prompts)) as threads:
        streams = threads.map(lambda prompt: list(complete(client, prompt=prompt, stream=True)), prompts)
        texts = ["".join(chunk.choices[0].text for chunk in stream) for stream in streams]
    assert texts == [expected[prompt][0] for prompt in prompts]


def test_chat_equals_completion_of_the_templated_prompt(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "The"}]}]
    asked: Any = {"model": MODEL, "messages": messages, "temperature": 0}
    answer = client.chat.completions.create(**asked, max_completion_tokens=TOKENS)
    plain = complete(client, prompt="system: x\nuser: The\nassistant:")
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", plain.choices[0].text)
    assert answer.usage == plain.usage
    chunks = list(client.chat.completions.create(**asked, max_tokens=TOKENS, stream=True))
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == plain.choices[0].text


def test_token_id_prompts_and_prompt_lists_are_answered_in_order(
    client: openai.OpenAI, expected: dict[str, Any], quickstart: Path
) -> None:
    tokenizer = Tokenizer(quickstart / "tokenizer")
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    texts = [expected[prompt][0] for prompt in PROMPTS]
    for prompts in (PROMPTS, ids):
        answer = complete(client, prompt=prompts)
        assert [choice.text for choice in answer.choices] == texts
        assert answer.usage.prompt_tokens == sum(map(len, ids))
    assert complete(client, prompt=ids[0]).choices[0].text == texts[0]


def test_samples_differ_and_are_reproducible_by_seed(client: openai.OpenAI) -> None:
    def texts(**asked: Any) -> list[str]:
        choices = complete(client, temperature=1.5, n=3, max_tokens=12, **asked).choices
        return [choice.text for choice in choices]

    assert len({*texts(), *texts()}) == 6
    assert texts(seed=5) == texts(seed=5)
    assert len(set(texts(seed=5))) == 3
    assert texts(seed=5)[0] == complete(client, temperature=1.5, max_tokens=12, seed=5).choices[0].text
    answer = complete(client, temperature=1.5, n=3, max_tokens=12)
    assert "metrics" not in answer.model_extra  # metrics are reported for single completions only
    assert answer.usage.prompt_tokens == complete(client).usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_text_before_it(stream: bool, client: openai.OpenAI) -> None:
    whole = complete(client).choices[0].text
    for stop in (whole[11:14], [whole[20:22], "never"]):
        first = stop if isinstance(stop, str) else stop[0]
        answer = complete(client, stop=stop, stream=stream)
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        assert "".join(choice.text for choice in choices) == whole[: whole.index(first)]
        assert choices[-1].finish_reason == "stop"


def test_logit_bias_forbids_or_forces_a_token(client: openai.OpenAI, quickstart: Path) -> None:
    import openai

    tokenizer = Tokenizer(quickstart / "tokenizer")
    only = tokenizer.encode("q")[-1]
    bias = {"logit_bias": {str(only): 100}, "max_tokens": 6}
    assert complete(client, **bias).choices[0].text == tokenizer.decode([only] * 6)
    first = complete(client, max_tokens=1, stop=[], logprobs=0).choices[0]
    forbidden = {str(each): -100 for each in tokenizer.encode(first.text)}
    assert not complete(client, logit_bias=forbidden, max_tokens=1).choices[0].text.startswith(first.text)
    messages: Any = [{"role": "user", "content": "The"}]
    chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **bias)
    assert chat.choices[0].message.content == tokenizer.decode([only] * 6)
    with pytest.raises(openai.BadRequestError, match=f"outside 0 to {tokenizer.vocab_size - 1}") as caught:
        complete(client, logit_bias={str(tokenizer.vocab_size): 1})
    assert caught.value.param == "logit_bias"


def test_zero_draft_tokens_disables_drafting_without_changing_the_text(client: openai.OpenAI) -> None:
    alone = complete(client, extra_body={"num_draft_tokens": 0})
    assert alone.choices[0].text == complete(client).choices[0].text
    assert alone.model_extra["metrics"]["speculative_decoding"]["num_spec_steps"] == 0


def test_client_disconnect_frees_its_slot_promptly(client: openai.OpenAI, entry: RunningGateway) -> None:
    stream = complete(client, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert wait_until(lambda: entry.metric("trtspec_openai_texts_in_flight") == 0) < 5


def test_errors_raise_exceptions_of_the_openai_client(client: openai.OpenAI) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match="does not exist"):
        complete(client, model="other")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens") as caught:
        complete(client, max_tokens=5000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    tool: Any = {"type": "function", "function": {"name": "f"}}
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], tools=[tool])


def test_models_and_version_are_served_and_wrong_paths_rejected(client: openai.OpenAI, entry: RunningGateway) -> None:
    import openai

    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("a/b")
    assert entry.get("/nowhere").json()["error"]["message"] == "no such path"
    wrong = requests.delete(f"{entry.url}/v1/completions", timeout=10)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert "access-control-allow-origin" not in requests.options(f"{entry.url}/v1/completions", timeout=10).headers
    assert entry.get("/version").json()["version"]


def test_curl_receives_a_complete_event_stream(entry: RunningGateway) -> None:
    body = json.dumps({"model": MODEL, "prompt": "The", "max_tokens": 4, "stream": True, "temperature": 0})
    header = "Content-Type: application/json"
    asked = ["curl", "-sSN", f"{entry.url}/v1/completions", "-H", header, "-d", body]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.startswith('data: {"id": "cmpl-')
    assert said.endswith("data: [DONE]\n\n")


def test_text_level_model_serves_text_prompts_only(entry: RunningGateway, expected: dict[str, Any]) -> None:
    from tests.serving.gateway.running import serve_gateway

    config = replace(entry.config, triton_model="ensemble", text_level=True, port=0)
    with serve_gateway(config) as texts:
        for prompt, (text, stats) in expected.items():
            answer = texts.post(prompt=prompt, max_tokens=TOKENS, temperature=0).json()
            assert answer["choices"][0]["text"] == text
            assert answer["usage"]["completion_tokens"] == stats.new_tokens
            assert answer["usage"]["prompt_tokens"] == stats.prompt_tokens
        assert texts.post(prompt=[1, 2]).json()["error"]["param"] == "prompt"
        refused = texts.post(prompt="The", logit_bias={"5": 1}).json()["error"]
        assert (refused["param"], refused["code"]) == ("logit_bias", "unsupported_parameter")


@pytest.fixture(scope="module")
def process(quickstart: Path, served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gateway process, started as by a deployment."""
    root = tmp_path_factory.mktemp("process")
    keys = root / "keys"
    keys.write_text("secret\n")
    keys.chmod(0o600)
    port = free_ports(1)[0]
    config = gateway_config(quickstart, grpc=f"127.0.0.1:{served.grpc}", port=port, keys_file=str(keys), model="named")
    write_config(config, root / "entry.json")
    assert (root / "entry.json").stat().st_mode & 0o777 == 0o600
    process = subprocess.Popen(gateway_command(root / "entry.json"), cwd=root, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: _answers(ready_url(config)), 60)
    yield config, process
    process.kill()
    process.wait(10)


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


def test_gateway_process_requires_a_key_and_drains_on_sigterm(process: Any) -> None:
    config, running = process
    url = f"http://127.0.0.1:{config.port}/v1/completions"
    asked = {"model": "named", "prompt": "The", "max_tokens": 300, "stream": True, "ignore_eos": True}
    assert requests.post(url, json=asked, timeout=10).status_code == 401
    key = {"Authorization": "Bearer secret"}
    with requests.post(url, json=asked, headers=key, stream=True, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(running.pid, signal.SIGTERM)
        time.sleep(0.1)
        said = [line for line in lines if line]
    assert said[-1] == b"data: [DONE]"
    assert json.loads(said[-2].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
    assert running.wait(20) in (0, -signal.SIGTERM)


def test_invalid_configuration_is_reported_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"
    path.write_text('{"port": "x"}')
    ended = subprocess.run(gateway_command(path), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"error: {path}: not a gateway configuration")
