# SPDX-License-Identifier: Apache-2.0
"""`verify` compares an artifact with transformers and the source, and finds faults planted in the artifact."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests._support.manifests import read_manifest, write_manifest
from tests._support.tiny import PAIR_VOCAB, TARGET_SHAPE, make_llama, make_tokenizer
from tests.conftest import Run
from trtspec.bench.parity import Reference
from trtspec.core.hashing import file_segments

pytestmark = pytest.mark.integration
TOKENS = ("--max-tokens", 12)


def _edit(artifact: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file of an artifact's tokenizer, and update its digest in the manifest."""
    path = artifact / "tokenizer" / name
    document = json.loads(path.read_text()) if path.is_file() else {}
    change(document)
    path.unlink(missing_ok=True)  # it may be hard-linked to the store
    path.write_text(json.dumps(document))
    manifest = read_manifest(artifact)
    records = [each for each in manifest["files"] if each["path"] != f"tokenizer/{name}"]
    record = {"path": f"tokenizer/{name}", "size": path.stat().st_size, "segments": file_segments([path])[0]}
    write_manifest(artifact, manifest | {"files": [*records, record]})


def _parity(trtspec: Run, artifact: Path, code: int, *arguments: object) -> dict[str, Any]:
    done = trtspec("verify", artifact, *TOKENS, "--json", *arguments)
    assert done.code == code, done.err
    return next(check for check in done.document["checks"] if check["name"] == "parity")


def _greedy_ids(trtspec: Run, artifact: Path) -> list[int]:
    found: list[int] = trtspec("generate", artifact, "-p", "{", *TOKENS, "--json").document["token_ids"]
    return found


def test_end_ids_that_the_artifact_lacks_fail_parity(recipe: Path, trtspec: Run) -> None:
    assert trtspec("build", recipe).code == 0
    artifact = recipe.parent / "build" / "tiny"
    said = _greedy_ids(trtspec, artifact)
    settings = recipe.parent / "target" / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": [0, said[3]]}))
    parity = _parity(trtspec, artifact, 110)
    assert f"end ids are 0 here, {', '.join(map(str, sorted({0, said[3]})))} in transformers" in parity["detail"]
    assert f"the artifact continues with {said[3]}, but the source ends the text there" in parity["detail"]
    assert trtspec("build", recipe).code == 0
    assert _parity(trtspec, artifact, 0)["ok"]


def test_end_id_that_the_source_lacks_fails_parity(recipe: Path, artifact: Path, trtspec: Run) -> None:
    said = _greedy_ids(trtspec, artifact)
    _edit(artifact, "generation_config.json", lambda document: document.update(eos_token_id=said[2]))
    assert f"end ids are {said[2]} here, 0 in transformers" in _parity(trtspec, artifact, 110)["detail"]
    settings = recipe.parent / "target" / "generation_config.json"
    settings.write_text("{}")
    detail = _parity(trtspec, artifact, 110)["detail"]
    assert f"end ids are {said[2]} here, none in transformers" in detail
    assert "the artifact ends the text, but the source lacks end ids" in detail


@pytest.mark.parametrize("times", [1, 2])
def test_extra_begin_token_fails_parity(times: int, recipe: Path, artifact: Path, trtspec: Run) -> None:
    def begin(document: dict[str, Any], times: int = times) -> None:
        single = [{"SpecialToken": {"id": "<end>", "type_id": 0}}] * times + [{"Sequence": {"id": "A", "type_id": 0}}]
        document["post_processor"] = {
            "type": "TemplateProcessing", "single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<end>": {"id": "<end>", "ids": [0], "tokens": ["<end>"]}},
        }  # fmt: skip

    _edit(artifact, "tokenizer.json", begin)
    if times == 2:  # the source adds one, like most models
        path = recipe.parent / "target" / "tokenizer.json"
        document = json.loads(path.read_text())
        begin(document, 1)
        path.write_text(json.dumps(document))
    parity = _parity(trtspec, artifact, 110)
    assert "tokens differ from transformers'" in parity["detail"]
    assert parity["value"] == 0


def test_messages_are_compared_with_the_source_chat_template(recipe: Path, trtspec: Run) -> None:
    template = "{% for m in messages %}<end>{{ m.content }}{% endfor %}"
    config = recipe.parent / "target" / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": "<end>", "chat_template": template}))
    chat = recipe.parent / "prompts.jsonl"
    chat.write_text(json.dumps({"messages": [{"role": "user", "content": "the rest is in here"}]}) + "\n")
    assert trtspec("build", recipe).code == 0
    artifact = recipe.parent / "build" / "tiny"
    assert _parity(trtspec, artifact, 0)["value"] == 1
    other = template.replace("<end>", "")
    _edit(artifact, "tokenizer_config.json", lambda document: document.update(chat_template=other))
    assert "tokens differ from transformers'" in _parity(trtspec, artifact, 110)["detail"]


def test_tie_within_float16_rounding_is_reported_without_failing_parity(recipe: Path, trtspec: Run) -> None:
    """A float32 source passes if its two best tokens differ by less than float16 can represent."""
    import torch

    target = recipe.parent / "target"
    make_llama(target, vocab_size=PAIR_VOCAB, dtype="float32", **TARGET_SHAPE)
    make_tokenizer(target)
    recipe.write_text(recipe.read_text().replace("model: ./target\n", "model: ./target\n  dtype: float16\n"))
    reference = Reference(target)
    ids = torch.tensor([reference.tokenizer("{").input_ids])
    with torch.inference_mode():
        hidden = reference.model.model(ids).last_hidden_state[0, -1]
    weights = load_file(target / "model.safetensors")
    rows = weights["lm_head.weight"]
    low, high = 5, PAIR_VOCAB - 1
    rows[low] = (rows[int((rows @ hidden).argmax())] * 1.5).half().float()
    step = torch.from_numpy(__import__("numpy").spacing(rows[low].half().abs().numpy())).float()
    rows[high] = rows[low] + 0.45 * step * hidden.sign()  # rounding removes half a step
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    prompts = recipe.parent / "prompts.jsonl"
    prompts.write_text('{"prompt": "{"}\n')
    assert trtspec("build", recipe).code == 0
    artifact = recipe.parent / "build" / "tiny"
    detail = _parity(trtspec, artifact, 0)["detail"]
    assert f"token 0: the source prefers {high}" in detail
    assert "explained by rounding its weights to float16" in detail
    lead = float((rows[high] - rows[low]) @ hidden)
    assert lead > 1e-3, "the lead must exceed the difference of two float32 implementations"
    # the same two tokens, further apart than the rounding error: a difference
    rows[high] = rows[low] + 3 * step * hidden.sign()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    assert "1 differences: prompt 1 token 0" in _parity(trtspec, artifact, 110)["detail"]


def test_differences_of_an_engine_in_bfloat16_are_ties_within_the_source_own_errors(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU; a wrong weight is no tie."""
    import torch

    target = recipe.parent / "target"
    make_llama(target, vocab_size=PAIR_VOCAB, dtype="bfloat16", **{**TARGET_SHAPE, "scale": 0.3})
    make_tokenizer(target)
    assert trtspec("build", recipe).code == 0
    artifact = recipe.parent / "build" / "tiny"
    monkeypatch.setattr("trtspec.engine.speculator.compute_dtype", lambda *_: torch.bfloat16)
    long = ("--max-tokens", 100, "--skip-gate", "lossless")
    done = trtspec("verify", artifact, *long, "--json")
    parity = next(check for check in done.document["checks"] if check["name"] == "parity")
    assert parity["ok"], parity["detail"]
    assert "explained by computing in bfloat16" in parity["detail"]
    changed = load_file(target / "model.safetensors")
    changed["model.norm.weight"][3] *= 4
    save_file(changed, target / "model.safetensors", metadata={"format": "pt"})
    done = trtspec("verify", artifact, *long, "--json")
    parity = next(check for check in done.document["checks"] if check["name"] == "parity")
    assert not parity["ok"]


def test_copied_tokenizer_files_are_compared_with_the_source(recipe: Path, trtspec: Run) -> None:
    built = trtspec("build", recipe, "--set", "engine.backend=vllm", "--set", "engine.gpu=h100")
    assert built.code == 0, built.err
    artifact = recipe.parent / "build" / "tiny"
    assert trtspec("verify", artifact).code == 0
    _edit(artifact, "generation_config.json", lambda document: document.update(eos_token_id=7))
    done = trtspec("verify", artifact, "--json")
    assert done.code == 110
    sources = next(check for check in done.document["checks"] if check["name"] == "sources")
    assert "tokenizer/generation_config.json" in sources["detail"]


def test_model_penalties_are_compared_with_transformers(recipe: Path, trtspec: Run) -> None:
    settings = {"eos_token_id": 0, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 3}
    path = recipe.parent / "target" / "generation_config.json"
    path.write_text(json.dumps(settings))
    with_defaults = ("--set", "serving.defaults=model")
    assert trtspec("build", recipe, *with_defaults).code == 0
    artifact = recipe.parent / "build" / "tiny"
    assert _parity(trtspec, artifact, 0)["value"] == 3
    said = _greedy_ids(trtspec, artifact)
    path.write_text(json.dumps(settings | {"suppress_tokens": said[:3]}))
    assert "the source prefers" in _parity(trtspec, artifact, 110)["detail"]
