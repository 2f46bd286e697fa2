# SPDX-License-Identifier: Apache-2.0
"""Every document for the LLM API has only published fields, with published types and values, for every release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from benchmarks.upstream.engines import ENGINES, fields_by_type
from benchmarks.upstream.published import TYPE, document_problems, published_releases, releases_near
from tests._support.catalogue import contexts_of_releases, copy_catalogue
from tests.backends.llmapi.test_llmapi import MTP, SCHEDULE, case
from trtspec.backends.common.trtllm_versions import find_version_spec
from trtspec.backends.llmapi import BACKEND

# The releases on PyPI since 1.3.0rc22, and the newest one that NVIDIA documents.
CANDIDATES = [
    *("1.3.0rc22", "1.3.0rc22.post1", "1.3.0rc23", "1.3.0rc23.post1", "1.3.0rc24", "1.3.0rc25", "1.3.0rc26"),
    *("1.3.0rc27", "1.3.0rc28", "1.3.0rc29", "1.4.0rc0", "1.4.0rc1", "1.4.0rc4"),
]
VERSIONS = list(dict.fromkeys([*(each for each in BACKEND.versions() if "rc" not in each), *CANDIDATES]))
# Recipes of the catalogue that a version and later ones can run; it lacks the methods or target classes of the others.
RECIPES = {"1.0": 21, "1.3.0rc22": 36, "1.3.0rc27": 37}


def document_of(context: Any) -> dict[str, Any]:
    [engine] = [each for each in ENGINES if each.backend == "llmapi"]
    return engine.document(context)


@pytest.mark.slow
def test_every_document_of_the_catalogue_is_valid_for_every_release(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("catalogue")
    copy_catalogue(root)
    contexts = contexts_of_releases(root, "llmapi", VERSIONS, "h200")
    problems = {
        (version, name): found
        for version, by_name in contexts.items()
        for name, context in by_name.items()
        if (found := document_problems(document_of(context), version))
    }
    assert problems == {}
    counts = {
        version: [count for first, count in RECIPES.items() if Version(first) <= Version(version)][-1]
        for version in VERSIONS
    }
    assert {version: len(found) for version, found in contexts.items()} == counts


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", sorted(BACKEND.methods()))
def test_every_field_of_a_method_is_valid_for_its_release(version: str, method: str) -> None:
    """With the options, schedules and thresholds of the method, also those that no recipe of the catalogue has."""
    kinds = find_version_spec(version).api.methods
    if method not in kinds and method != "none":
        pytest.skip("the release lacks the method")
    length = {"speculation__draft_len": 6} if method != "none" else {}
    knobs: list[dict[str, Any]] = [{}, {"target__quantization": {"kv_cache": "fp8"}}, {"engine__max_num_tokens": 64}]
    if method != "none" and kinds[method].lengths:
        knobs += [{"speculation__schedule": SCHEDULE[:1]}]
        knobs += [{"speculation__schedule": SCHEDULE}] if "draft_len_schedule" in kinds[method].lengths else []
    if find_version_spec(version).api.threshold and method != "none":
        knobs.append({"speculation__acceptance_rate_threshold": 0.5})
    knobs += [{"speculation__options": options} for options in OPTIONS.get(method, [])]
    target = {"target_facts": MTP} if method == "mtp" else {}
    for changes in knobs:
        context = case(version, method, **length, **target, **changes)
        if not any(each.code == "version" for each in BACKEND.check(context)):  # of trees: from 1.3 on
            assert document_problems(document_of(context), version) == []


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "draft_target": [{"use_draft_logits": True}],
    "eagle3": [{"top_k": 4, "nodes": 12}],
    "ngram": [{"max_match": 4}],
    "suffix": [{"max_cached_requests": 64}, {"max_cached_requests": 0}],
}


@pytest.mark.parametrize("version", [*published_releases()])
def test_known_fields_are_the_published_ones(version: str) -> None:
    ours = fields_by_type(find_version_spec(version).api, version)
    published = {name: {*fields} - {TYPE} for name, fields in published_releases()[version].types().items()}
    assert ours == published


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"max_tokens": 4}, "max_tokens: no such field"),
        ({"max_batch_size": "4"}, "max_batch_size: '4' is not of the type int | None"),
        ({"kv_cache_config": {"free_gpu_memory_fraction": 1.5}}, "free_gpu_memory_fraction: 1.5 is not le 1"),
        ({"kv_cache_config": {"tokens": 1}}, "kv_cache_config.tokens: no such field"),
        ({"speculative_config": {"decoding_type": "Eagle"}}, "speculative_config: no decoding_type Eagle"),
        ({"speculative_config": {"decoding_type": "SA", "max_draft_len": -1}}, "max_draft_len: -1 is not ge 0"),
        ({"speculative_config": {"decoding_type": "SA", "mask_token_id": 3}}, "mask_token_id: no such field"),
        (
            {"speculative_config": {"decoding_type": "DFlash", "attention_backend": "CUTEDSL"}},
            "'CUTEDSL' is not one of ['FA4', 'TRTLLM', 'VANILLA']",
        ),
        (
            {"speculative_config": {"decoding_type": "NGram", "draft_len_schedule": {"1": 2}}},
            "{'1': 2} is not of the type dict[int, int] | None",
        ),
    ],
)
def test_invalid_documents_are_refused(changes: dict[str, Any], problem: str) -> None:
    document = document_of(case("1.3.0rc27")) | changes
    (found,) = document_problems(document, "1.3.0rc27")
    assert problem in found
    assert found.endswith("(1.3.0rc27)")


def test_version_between_recorded_ones_must_satisfy_both() -> None:
    assert [each.version for each in releases_near("1.3.0rc28")] == ["1.3.0rc27", "1.3.0rc29"]
    assert [each.version for each in releases_near("1.3.0")] == ["1.3.0rc29"]
    assert [each.version for each in releases_near("1.4.0rc0")] == ["1.4.0rc1"]
    assert [each.version for each in releases_near("1.2.0")] == ["1.2.1"]
    assert document_problems({}, "2.0.0") == ["no fields are recorded for 2.0.0"]
    added = {"speculative_config": {"decoding_type": "SA", "moe_backend": "AUTO"}}
    assert document_problems(added, "1.3.0rc28") == ["speculative_config.moe_backend: no such field (1.3.0rc27)"]


FIELDS_OF_DOUBLE = """
import json
from pydantic import BaseModel
from tensorrt_llm.llmapi import llm_args
found = {}
for name, each in vars(llm_args).items():
    if name.endswith("DecodingConfig") and name[:-14]:
        kind = each.model_fields.get("decoding_type")
        found[kind.default if kind else name[:-14]] = [*each.model_fields]
print(json.dumps(found))
"""


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.1", "1.3.0rc27", "1.4.0rc1"])
def test_double_has_only_published_fields(version: str) -> None:
    path = Path(__file__).parents[2] / "doubles" / "tensorrt_llm_api"
    ran = subprocess.run(
        [sys.executable, "-c", FIELDS_OF_DOUBLE],
        env={**os.environ, "PYTHONPATH": str(path), "TRTLLM_DOUBLE": version},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    double = {name: {*fields} - {TYPE} for name, fields in json.loads(ran.stdout).items() if name != "Medusa"}
    published = {name: {*fields} for name, fields in published_releases()[version].types().items()}
    assert double.keys() == published.keys()
    assert {name: fields - published[name] for name, fields in double.items() if fields - published[name]} == {}


def test_every_recorded_release_has_a_public_source() -> None:
    for release in published_releases().values():
        assert release.source.startswith(("https://nvidia.github.io/TensorRT-LLM/", "NVIDIA/", "Ataraksia/"))
