# SPDX-License-Identifier: Apache-2.0
"""Provenance and bills of materials of builds, valid by CycloneDX's schema and SLSA's protobuf."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from tests.conftest import Run
from trtspec.planning.bom import stated_license
from trtspec.planning.provenance import LOCAL_BUILDER, builder_id, invocation_id, model_uri
from trtspec.store.artifact import load_manifest, manifest_sha256


def attested(artifact: Path, name: str) -> Any:
    return json.loads((artifact / "attestations" / name).read_bytes())


def test_provenance_is_valid_and_names_recipe_sources_tools_and_steps(recipe: Path, trtspec: Run) -> None:
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
    from in_toto_attestation.v1.statement_pb2 import Statement

    assert trtspec("build", recipe, "--set", "speculation.draft_len=2").code == 0
    artifact = recipe.parent / "build" / "tiny"
    document = attested(artifact, "provenance.json")
    statement = ParseDict(document, Statement())
    assert statement.subject[0].digest["sha256"] == manifest_sha256(artifact)
    found = ParseDict(document["predicate"], Provenance())
    definition, manifest = document["predicate"]["buildDefinition"], load_manifest(artifact)
    assert definition["externalParameters"]["set"] == ["speculation.draft_len=2"]
    assert definition["externalParameters"]["recipe"]["speculation"]["draft_len"] == 2
    assert definition["internalParameters"]["tools"] == manifest.tools
    assert [each["key"] for each in definition["internalParameters"]["steps"]] == [each.key for each in manifest.steps]
    names = [each.name for each in found.build_definition.resolved_dependencies]
    assert names[:3] == ["recipe:recipe.yaml", "source:target", "source:draft"]
    assert "file:target/model.safetensors" in names
    assert found.run_details.builder.id == LOCAL_BUILDER
    assert found.run_details.metadata.started_on.ToSeconds() <= found.run_details.metadata.finished_on.ToSeconds()
    assert str(recipe.parent) not in json.dumps(document)


def bom_validator() -> Draft7Validator:
    """Return a validator for CycloneDX 1.6 by the official schema, which cyclonedx-python-lib contains.

    The library's own validator also checks formats such as IRIs. Its packages for that slow each import of jsonschema.
    """
    schemas = resources.files("cyclonedx.schema._res")

    def retrieve(uri: str) -> Resource[Any]:
        return Resource.from_contents(json.loads((schemas / uri.rpartition("/")[2]).read_text()))

    schema = json.loads((schemas / "bom-1.6.SNAPSHOT.schema.json").read_text())
    return Draft7Validator(schema, registry=Registry(retrieve=retrieve))


def test_bom_is_valid_and_does_not_depend_on_the_time(recipe: Path, trtspec: Run) -> None:
    (recipe.parent / "target" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    assert trtspec("build", recipe).code == 0
    artifact = recipe.parent / "build" / "tiny"
    text = (artifact / "attestations" / "bom.cdx.json").read_text()
    document = json.loads(text)
    assert [error.message for error in bom_validator().iter_errors(document)] == []
    document["metadata"]["component"]["hashes"][0]["alg"] = "SHA-0"
    assert len(list(bom_validator().iter_errors(document))) == 1
    document = json.loads(text)
    digest = manifest_sha256(artifact)
    assert document["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    models = {each["bom-ref"]: each for each in document["components"] if each["type"] == "machine-learning-model"}
    assert models["model:target"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert "licenses" not in models["model:draft"]
    files = {each["name"] for each in document["components"] if each["type"] == "file"}
    assert files == {record.path for record in load_manifest(artifact).files}
    assert trtspec("build", recipe, "--out", "again").code == 0
    assert (recipe.parent / "again" / "attestations" / "bom.cdx.json").read_text() == text


def test_unchanged_artifact_keeps_its_documents_and_gets_lost_ones(artifact: Path, recipe: Path, trtspec: Run) -> None:
    path = artifact / "attestations" / "provenance.json"
    before = path.read_bytes()
    assert "nothing to do" in trtspec("build", recipe).out
    assert path.read_bytes() == before
    path.unlink()
    assert trtspec("build", recipe).code == 0
    steps = attested(artifact, "provenance.json")["predicate"]["buildDefinition"]["internalParameters"]["steps"]
    assert {each["status"] for each in steps} == {"hit"}


@pytest.mark.parametrize(
    ("environment", "builder", "invocation"),
    [
        ({}, LOCAL_BUILDER, ""),
        ({"TRTSPEC_BUILDER_ID": "https://ci.example.com/a", "CI_PROJECT_URL": "x"}, "https://ci.example.com/a", ""),
        (
            {
                "GITHUB_SERVER_URL": "https://github.com",
                "GITHUB_WORKFLOW_REF": "team/models/.github/workflows/build.yml@refs/heads/main",
                "GITHUB_REPOSITORY": "team/models",
                "GITHUB_RUN_ID": "7",
            },
            "https://github.com/team/models/.github/workflows/build.yml@refs/heads/main",
            "https://github.com/team/models/actions/runs/7/attempts/1",
        ),
        (
            {"CI_PROJECT_URL": "https://gitlab.com/team/models", "CI_JOB_URL": "https://gitlab.com/j/1"},
            "https://gitlab.com/team/models",
            "https://gitlab.com/j/1",
        ),
    ],
)
def test_builder_is_the_ci_system(environment: dict[str, str], builder: str, invocation: str) -> None:
    assert (builder_id(environment), invocation_id(environment)) == (builder, invocation)


def test_hub_model_is_named_with_its_commit() -> None:
    assert model_uri("team/model", "a" * 40) == f"https://huggingface.co/team/model/tree/{'a' * 40}"
    assert model_uri("/home/me/model", "") == "file:model"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlicense: llama3.1\n---\n", "llama3.1"),
        ("---\nlicense: other\nlicense_name: gemma terms\n---\n", "gemma terms"),
        ("---\r\nlicense: 'mit'\r\n---\r\n", "mit"),
        ("license: mit\n", ""),
        ("---\nlicense:\n- a\n---\n", ""),
        ("", ""),
    ],
)
def test_license_of_a_model_card(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "README.md").write_bytes(text.encode())
    assert stated_license(tmp_path) == expected
