# SPDX-License-Identifier: Apache-2.0
"""SGLang's own ServerArgs accept every emitted argument: of the catalogue, and of each method and feature."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support.catalogue import catalogue_contexts, copy_catalogue
from tests.backends.sglang.cases import ADAPTER, CASES, case, write_models
from tests.engines import engine_python
from trtspec.backends.sglang.arguments import adaptive_config, engine_arguments
from trtspec.methods.uno.sglang import max_nodes

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

Ask = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
HELPER = Path(__file__).with_name("ask_server_args.py")
TIMEOUT_S = 300
# Recipes that SGLang can run. The others use unsupported methods, placements or drafter classes.
RUNS = {
    *("quickstart", "quickstart-dspark", "quickstart-eagle3", "quickstart-fp8", "quickstart-ngram"),
    *("deepseek-v3.1-mtp", "deepseek-v3.1-mtp-sglang", "deepseek-v3.1-mtp-vllm"),
    *("gpt-oss-120b-ngram", "gpt-oss-20b-eagle3-vllm", "qwen3.5-27b-dflash-vllm", "qwen3.5-27b-mtp-vllm"),
    "gemma-4-31b-mtp-vllm",
    *("llama-3.1-8b-draft-1b", "llama-3.3-70b-eagle3", "llama-3.3-70b-fp8-tp1"),
    *("mistral-7b-ngram", "mistral-small-24b-ngram-vllm", "mixtral-8x7b-ngram", "phi-4-ngram-vllm"),
    *("qwen3-30b-a3b-eagle3-vllm", "qwen3-30b-a3b-ngram", "qwen3-32b-draft-4b-vllm", "qwen3-32b-eagle3-vllm"),
    *("qwen3-8b-dflash-edge", "qwen3-8b-dflash-sglang", "qwen3-8b-dflash-vllm"),
    *("qwen3-8b-eagle3", "qwen3-8b-eagle3-edge", "qwen3-8b-eagle3-sglang"),
}


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Return a function that validates documents with the real ServerArgs, which are imported once."""
    log, (read, write) = tmp_path_factory.mktemp("asked") / "log", os.pipe()
    command = [engine_python("sglang"), HELPER, str(write)]
    with log.open("w") as said, open(read) as answers:
        helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, text=True, pass_fds=[write])
        os.close(write)

        def answers_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
            assert helper.stdin is not None
            print(json.dumps(documents), file=helper.stdin, flush=True)
            assert select.select([answers], [], [], TIMEOUT_S)[0], log.read_text()[-3000:]
            answer = answers.readline()
            assert answer, log.read_text()[-3000:]
            found: list[dict[str, Any]] = json.loads(answer)
            return found

        yield answers_of
        helper.communicate(timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the contexts, by name, of the catalogue's recipes that SGLang can run."""
    root = tmp_path_factory.mktemp("catalogue")
    copy_catalogue(root)
    return catalogue_contexts(root, "sglang", "0.5.23", "h200")


def test_server_args_accept_every_runnable_recipe_of_the_catalogue(catalogue: dict[str, Any], ask: Ask) -> None:
    documents = []
    for context in catalogue.values():
        roots = {role: str(source.root) for role, source in context.sources.items()}
        documents.append(engine_arguments(context, roots["target"], roots.get("draft")))
    answers = dict(zip(catalogue, ask(documents), strict=True))
    assert {name: answer["problem"] for name, answer in answers.items() if answer["problem"]} == {}
    assert answers.keys() == RUNS
    assert len(answers) == 30


def test_server_args_accept_every_method_and_preserve_its_values(tmp_path: Path, ask: Ask) -> None:
    models = write_models(tmp_path)
    documents = []
    for name in CASES:
        context, target, draft = case(name)
        document = engine_arguments(context, str(models[target]), str(models[draft]) if draft else None)
        if adaptive := adaptive_config(context):
            document["speculative_adaptive_config"] = str(tmp_path / f"{name}.json")
            (tmp_path / f"{name}.json").write_text(json.dumps(adaptive))
        documents.append(document)
    answers = ask(documents)
    assert {name: answer["problem"] for name, answer in zip(CASES, answers, strict=True) if answer["problem"]} == {}
    aliases = {"NEXTN": "EAGLE"}
    for document, answer in zip(documents, answers, strict=True):
        given = {key: value for key, value in document.items() if key in answer["resolved"]}
        given |= {"speculative_algorithm": aliases.get(name := document["speculative_algorithm"], name)}
        assert {key: answer["resolved"][key] for key in given} == given


def test_largest_uno_tree_is_the_largest_that_server_args_accept(tmp_path: Path, ask: Ask) -> None:
    models, answers = write_models(tmp_path), {}
    for top_k, depth in ((2, 1), (2, 2), (4, 4), (64, 8), (4, 32)):
        nodes = max_nodes(top_k, depth)
        options = ADAPTER | {"top_k": top_k, "nodes": nodes}
        context, target, _ = case("uno", speculation__draft_len=depth, speculation__options=options)
        document = engine_arguments(context, str(models[target]), None)
        larger = document | {"speculative_num_draft_tokens": nodes + 2}
        answers[top_k, depth] = [answer["problem"] for answer in ask([document, larger])]
    assert {pair: problem for pair, (problem, _) in answers.items() if problem} == {}
    assert all("UNO tree mode" in problem for _, problem in answers.values())


def test_server_args_reject_invalid_arguments(tmp_path: Path, ask: Ask) -> None:
    """The validation can fail."""
    model = str(write_models(tmp_path)["llama"])
    block = {"speculative_algorithm": "NGRAM", "speculative_use_block_verification": True}
    wrong = [{"max_total": 3}, {"dtype": "fp3"}, block, {"speculative_algorithm": "SUFFIX"}]
    wrong += [{"speculative_algorithm": "UNO", "speculative_num_draft_tokens": 5}]
    problems = [answer["problem"] for answer in ask([{"model_path": model, **each} for each in wrong])]
    for problem, said in zip(
        problems, ("max_total", "SystemExit", "block-verification", "SUFFIX", "uno-lora-path"), strict=True
    ):
        assert said in problem
