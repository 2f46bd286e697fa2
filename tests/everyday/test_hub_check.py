# SPDX-License-Identifier: Apache-2.0
"""`check`, `plan` and `inspect` of hub models without local weights, and `build`, which downloads them."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._support.hub import COMMIT, Hub, asked_in_process, serving
from tests._support.shapes import make_checkpoint, shapes
from tests._support.tiny import DRAFT_SHAPE, make_llama, make_tokenizer
from tests.conftest import Run
from tests.test_startup import CODE
from trtspec.checkpoints import previews
from trtspec.core.paths import recipes_dir

MODELS = recipes_dir() / "models"
WEIGHTS = (MODELS / "quickstart-target" / "model.safetensors").stat().st_size


@pytest.fixture
def hub(tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that serves the quickstart's models as org/NAME, with tokenizers that count as large files."""
    for name in ("target", "draft", "eagle3"):
        shutil.copytree(MODELS / f"quickstart-{name}", tmp_path / "served" / "org" / name)
    monkeypatch.setattr(previews, "SMALL_BYTES", 5000)
    with serving(tmp_path / "served") as hub, asked_in_process(hub):
        yield hub


@pytest.fixture
def pair(hub: Hub, workplace: Path) -> Path:
    """A recipe of the pair on the hub."""
    path = workplace / "pair.yaml"
    path.write_text(
        f"""schema: trtspec.recipe/1
name: pair
target: {{model: org/target, revision: {COMMIT}}}
speculation:
  method: draft_target
  draft: {{model: org/draft, revision: {COMMIT}}}
engine: {{backend: embedded}}
"""
    )
    return path


@pytest.mark.slow
def test_hub_pair_is_checked_from_headers_and_again_without_requests(pair: Path, hub: Hub, trtspec: Run) -> None:
    assert trtspec("check", pair).out == "end ids: 0 (generation_config.json)\npair: valid\n"
    assert hub.sent < 150_000
    hub.asked.clear()
    hub.refusals["info"] = 500, ""
    assert trtspec("check", pair).code == 0
    assert hub.asked == []


@pytest.mark.slow
def test_draft_of_another_vocabulary_is_compared_by_its_whole_tokenizer(pair: Path, hub: Hub, trtspec: Run) -> None:
    draft = hub.root / "org" / "draft"
    shutil.rmtree(draft)
    make_llama(draft, vocab_size=1200, **DRAFT_SHAPE)
    make_tokenizer(draft)
    (found,) = (each for each in trtspec("check", pair, "--json").document["problems"] if each["code"] == "vocabulary")
    assert found["severity"] == "warning"
    assert "258 of the target's 768 tokens" in found["message"]


@pytest.mark.slow
@pytest.mark.alone
def test_pair_of_190_shards_is_checked_in_under_2_cpu_seconds(hub: Hub, tmp_path: Path) -> None:
    """The shipped 405B recipe in a process requests each file once and imports only the required client modules."""
    for name in ("llama-3.1-405b-instruct", "llama-3.2-3b-instruct"):
        shape = next(shape for shape in shapes() if shape.name == name)
        make_checkpoint(shape, hub.root / shape.model)

    def check(cache: str, **more: str) -> tuple[float, str]:
        variables = {"TRTSPEC_CACHE": str(tmp_path / cache), "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"), **more}
        command = [sys.executable, "-c", CODE, "check", "llama-3.1-405b-fp8-tp8"]
        pins = [f"--set={path}.revision={COMMIT}" for path in ("target", "speculation.draft")]
        before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        done = subprocess.run(
            [*command, *pins],
            env=hub.environment(**variables),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        )
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before, done.stdout

    _, shown = check("first")  # includes compilation
    assert hub.sent < 2_000_000
    documents = [each for each in hub.asked if not each.what.endswith(".safetensors")]
    assert (len(documents), len(hub.asked) - len(documents)) == (10, 193)
    assert not {"huggingface_hub.hf_api", "huggingface_hub.utils._headers"} & set(shown.split())
    assert min(check("second")[0], check("third")[0]) < 2
    hub.asked.clear()
    assert ": valid" in check("first", HF_HUB_OFFLINE="1")[1]
    assert hub.asked == []


@pytest.mark.slow
def test_plan_of_a_hub_pair_lists_downloads_and_provisional_keys(pair: Path, hub: Hub, trtspec: Run) -> None:
    shown = trtspec("plan", pair)
    assert "download of org/target: 19.6 MiB" in shown.out
    assert "disk for the hub cache: " in shown.out
    assert "the key is provisional because the source is not hashed yet" in " ".join(shown.out.split())
    plan = trtspec("plan", pair, "--json").document
    tokenizer = (MODELS / "quickstart-target" / "tokenizer.json").stat().st_size
    assert plan["downloads"][0] == {"model": "org/target", "revision": COMMIT, "bytes": WEIGHTS + tokenizer}
    assert plan["keys_are_final"] is False
    local = trtspec("plan", recipes_dir() / "quickstart.yaml", "--set", "name=pair", "--json").document
    assert local["downloads"] == []
    assert {step["key"] for step in plan["steps"]}.isdisjoint(step["key"] for step in local["steps"])


@pytest.mark.slow
def test_incompatible_pair_is_reported_by_its_hub_ids(pair: Path, hub: Hub, trtspec: Run) -> None:
    config = hub.root / "org" / "draft" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 3}))
    checked = trtspec("check", pair)
    assert checked.code == 1
    assert "org/draft" in checked.out
    assert "previews" not in checked.out


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403])
def test_gated_model_error_explains_how_to_get_access(status: int, pair: Path, hub: Hub, trtspec: Run) -> None:
    hub.refusals["config.json"] = status, "GatedRepo"
    shown = " ".join(trtspec("check", pair).out.split())
    assert "access to the model is gated" in shown
    assert "request access on the model's page, then set HF_TOKEN to a token with read access" in shown


@pytest.mark.slow
def test_uncached_model_in_offline_mode_is_reported_without_requests(pair: Path, hub: Hub, trtspec: Run) -> None:
    with pytest.MonkeyPatch.context() as patch:  # undone before the hub's fixture
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        shown = " ".join(trtspec("check", pair).out.split())
    assert "not in the hub cache, and HF_HUB_OFFLINE is set" in shown
    assert hub.asked == []


@pytest.mark.slow
def test_build_downloads_only_after_its_check_passes(pair: Path, hub: Hub, trtspec: Run) -> None:
    refused = trtspec("build", pair, "--set", "engine.max_seq_len=100000")
    assert refused.code == 1
    assert "max_seq_len 100000 is more than the target's" in " ".join(refused.err.split())
    assert not any(asked.method == "GET" and asked.range is None for asked in hub.got("model.safetensors"))
    assert trtspec("build", pair).code == 0
    assert trtspec("plan", pair, "--json").document["keys_are_final"] is True
    assert trtspec("verify", "build/pair", "--max-tokens", 4).code == 0


@pytest.mark.slow
def test_build_succeeds_if_the_hub_ignores_range_requests(pair: Path, hub: Hub, trtspec: Run) -> None:
    hub.ranges = False
    assert trtspec("build", pair).code == 0


@pytest.mark.slow
def test_model_is_inspected_by_its_hub_id(hub: Hub, trtspec: Run) -> None:
    told = trtspec("inspect", "org/target", "--json").document
    whole = trtspec("inspect", MODELS / "quickstart-target", "--json").document
    assert told["revision"] == COMMIT
    assert told["download_bytes"] > WEIGHTS
    assert {key: told[key] for key in whole} == whole
    assert trtspec("inspect", f"org/target@{COMMIT}", "--json").document == told
    assert "a commit has 40 hexadecimal digits" in trtspec("inspect", "org/target@main").err
    assert "there is no directory ./org/nosuch either" in trtspec("inspect", "org/nosuch").err


@pytest.mark.slow
def test_model_of_unknown_family_is_inspected_from_its_headers(hub: Hub, trtspec: Run) -> None:
    config = hub.root / "org" / "target" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["NewForCausalLM"]}))
    told = trtspec("inspect", "org/target", "--json").document
    assert (told["family"], told["architecture"], told["converts_to"]) == ("none", "NewForCausalLM", {})
    assert told["parameters"] == 10_228_608
