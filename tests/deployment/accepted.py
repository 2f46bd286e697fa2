# SPDX-License-Identifier: Apache-2.0
"""Acceptance of rendered documents by a cluster: schemas, CEL rules, and the Pod Security profile "restricted".

Core kinds are checked against Kubernetes' schemas (kubernetes-validate), operator kinds against crds.yaml, and against
the operators' own CRDs and their rules if TRTSPEC_CRDS is set to a directory with them.
"""

from __future__ import annotations

import copy
import functools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

VERSION = "1.37"
VARIABLE = "TRTSPEC_CRDS"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast
FACTS = yaml.safe_load(Path(__file__).with_name("crds.yaml").read_text())
METADATA = {"name": "str", "namespace": "str", "labels": {"*": "str"}, "annotations": {"*": "str"}}
TYPES = {"str": str, "int": int, "bool": bool}
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
Files = Mapping[str, str]


def documents(files: Files) -> list[dict[str, Any]]:
    """Return the documents of all YAML files."""
    texts = (text for path, text in sorted(files.items()) if path.endswith(".yaml"))
    return [document for text in texts for document in yaml.load_all(text, LOADER)]


def problems(files: Files) -> list[str]:
    """Return what a cluster would reject in rendered files, and any paths of this machine."""
    found = [problem for each in documents(files) for problem in problems_of(each)]
    return found + [f"{path}: {word}" for path, text in files.items() for word in _machine_words(text)]


def problems_of(document: dict[str, Any]) -> list[str]:
    """Return what a cluster would reject in a document."""
    name = f"{document['apiVersion']} {document['kind']}"
    found = _unlike(document, FACTS[name], name) if name in FACTS else _core(document)
    for pod in pods(document):
        found += [f"{name}: {problem}" for problem in (*restricted(pod), *repeated_in(pod))]
    if VARIABLE in os.environ and name in real_schemas():
        found += real_problems(document)
    label = document.get("metadata", {}).get("name", "kustomization")
    return found + ([] if LABEL.fullmatch(label) else [f"{name}: {label!r} is not a DNS label"])


def pods(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the pod specs anywhere in a document."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        else:
            for each in document.values():
                yield from pods(each)
    elif isinstance(document, list):
        for each in document:
            yield from pods(each)


def restricted(pod: Mapping[str, Any]) -> list[str]:
    """Return violations of the Pod Security profile "restricted"."""
    found = [f"{key}: true" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    found += [f"a volume {kind}" for each in pod.get("volumes", []) for kind in {*each} - {"name"} - RESTRICTED_VOLUMES]
    whole = pod.get("securityContext", {})
    if whole.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        found.append("no seccomp profile")
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own = container.get("securityContext", {})
        wanted = {
            "escalates": own.get("allowPrivilegeEscalation") is not False,
            "has capabilities": own.get("capabilities") != {"drop": ["ALL"]},
            "runs as root": not own.get("runAsNonRoot", whole.get("runAsNonRoot")) or whole.get("runAsUser") == 0,
            "is privileged": bool(own.get("privileged")),
            "has host ports": any("hostPort" in port for port in container.get("ports", [])),
        }
        found += [f"{container['name']} {what}" for what, is_so in wanted.items() if is_so]
    return found


def repeated_in(pod: Mapping[str, Any]) -> list[str]:
    """Return duplicate keys in a pod's keyed lists, which Kubernetes' JSON schemas do not detect."""
    containers = [*pod["containers"], *pod.get("initContainers", [])]
    lists = [("containers", containers, ["name"]), ("volumes", pod.get("volumes", []), ["name"])]
    for each in containers:
        lists += [(field, each.get(field, []), keys) for field, keys in LISTS.items()]
    return [problem for field, items, keys in lists for problem in _repeated(items, keys, field)]


LISTS = {"env": ["name"], "ports": ["containerPort", "protocol"], "volumeMounts": ["mountPath"]}


def _repeated(items: list[dict[str, Any]], keys: list[str], path: str) -> Iterator[str]:
    found = Counter(tuple(item.get(key) for key in keys) for item in items)
    yield from (f"{path}: {key} is there {count} times" for key, count in found.items() if count > 1)


def _machine_words(text: str) -> list[str]:
    """Return directories of this machine, which published files must not contain."""
    return [word for word in (str(Path.home()), os.getcwd(), "/tmp/pytest") if len(word) > 1 and word in text]


def _core(document: dict[str, Any]) -> list[str]:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    _keep_schemas()
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        return [f"{document['kind']}: {getattr(error, 'message', error)}"]
    return []


@functools.cache
def _keep_schemas() -> None:
    """Parse each schema file once instead of once per document."""
    from kubernetes_validate import utils

    utils.schema_contents = functools.cache(utils.schema_contents)


def _unlike(document: dict[str, Any], facts: dict[str, Any], name: str) -> list[str]:
    top = {"apiVersion": "str", "kind": "str", "metadata": METADATA}
    fields = {key: value for key, value in facts.items() if key != "rules"}
    if found := list(_differences(document, top | fields, name)):
        return found  # as in a cluster, rules are evaluated only for values that match the schema
    return [f"{name}: {rule}" for rule in facts.get("rules", []) if not evaluate(rule, document["spec"])]


def _differences(value: Any, wanted: Any, path: str) -> Iterator[str]:
    """Yield where a value violates the schema facts."""
    if wanted in ("Pod", "PodTemplate"):
        template = value if wanted == "PodTemplate" else {"spec": value}
        metadata = template.get("metadata", {})
        yield from _core({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    elif isinstance(wanted, dict):
        yield from _of_mapping(value, {key.removesuffix("!"): each for key, each in wanted.items()}, path)
        yield from (f"{path}: {key} is missing" for key in wanted if key.endswith("!") and key[:-1] not in value)
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            yield f"{path}: no list"
        for each in value:
            yield from _differences(each, wanted[0], path)
    elif wanted in TYPES:
        if type(value) is not TYPES[wanted]:
            yield f"{path}: {value!r} is not a {wanted}"
    elif value not in wanted.split("|"):
        yield f"{path}: {value!r} is not one of {wanted}"


def _of_mapping(value: Any, wanted: dict[str, Any], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: no mapping"
        return
    for key, each in value.items():
        if key not in wanted and "*" not in wanted:
            yield f"{path}.{key}: unknown field"
        else:
            yield from _differences(each, wanted.get(key, wanted.get("*")), f"{path}.{key}")


@functools.cache
def _program(rule: str) -> Any:
    celpy = pytest.importorskip("celpy")
    environment = celpy.Environment()
    return environment.program(environment.compile(rule), functions={"lowerAscii": _lower_ascii})


def _lower_ascii(text: Any) -> Any:
    """Implement Kubernetes' CEL function lowerAscii, which cel-python lacks."""
    return type(text)("".join(each.lower() if each.isascii() else each for each in text))


def evaluate(rule: str, value: Any) -> bool:
    """Return whether a CEL rule holds for the value `self`."""
    from celpy.adapter import json_to_cel

    return bool(_program(rule).evaluate({"self": json_to_cel(value)}))


@functools.cache
def real_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas of the CRDs in the directory TRTSPEC_CRDS, by apiVersion and kind."""
    found = {}
    for path in sorted(Path(os.environ[VARIABLE]).glob("*.yaml")):
        spec = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]
        for version in spec["versions"]:
            name = f"{spec['group']}/{version['name']} {spec['names']['kind']}"
            found[name] = version["schema"]["openAPIV3Schema"]
    return found


def real_problems(document: dict[str, Any]) -> list[str]:
    """Return violations of a CRD's own schema and rules, after filling in its defaults."""
    filled = copy.deepcopy(document)
    schema = real_schemas()[f"{document['apiVersion']} {document['kind']}"]
    return list(_refused(filled, schema, document["kind"], is_object=True))


def _refused(value: Any, schema: dict[str, Any], path: str, is_object: bool = False) -> Iterator[str]:
    """Yield schema violations of a value, and rule violations if the schema holds, as in a cluster."""
    found = [*_of_itself(value, schema, path), *_of_parts(value, schema, path, is_object)]
    yield from found
    for rule in () if found else schema.get("x-kubernetes-validations", ()):
        text = _of_new(rule["rule"]) if rule.get("optionalOldSelf") else rule["rule"]
        if "oldSelf" not in text and not evaluate(_as_cel(text), value):
            yield f"{path}: {rule.get('message', rule['rule'])}"


def _of_itself(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    import jsonschema

    own = {key: each for key, each in schema.items() if key in PLAIN}
    if schema.get("x-kubernetes-int-or-string"):
        own["type"] = ["integer", "string"]
    yield from (f"{path}: {error.message}" for error in jsonschema.Draft4Validator(own).iter_errors(value))


def _of_parts(value: Any, schema: dict[str, Any], path: str, is_object: bool) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _refused_fields(value, schema, path, is_object)
    elif isinstance(value, list):
        for each in value:
            yield from _refused(each, schema.get("items", {}), path)
        if keys := schema.get("x-kubernetes-list-map-keys"):
            yield from _repeated(value, keys, path)


PLAIN = (
    *("type", "enum", "pattern", "required", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
    *("anyOf", "oneOf", "allOf", "not"),  # these may not declare fields, else the CRD is rejected
)


def _of_new(rule: str) -> str:
    """Return a rule for a new document, without `oldSelf`."""
    return rule.replace("oldSelf.hasValue()", "false")


def _as_cel(rule: str) -> str:
    """Return a rule in cel-python's syntax, which lacks escapes for field names that are CEL keywords."""
    return rule.replace("__namespace__", "namespace")


def _refused_fields(value: dict[str, Any], schema: dict[str, Any], path: str, is_object: bool) -> Iterator[str]:
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key, each in fields.items():
        if "default" in each and key not in value:
            value[key] = copy.deepcopy(each["default"])
    for key, each in value.items():
        if is_object and key in ("apiVersion", "kind", "metadata"):
            continue
        if key in fields:
            yield from _refused(each, fields[key], f"{path}.{key}")
        elif isinstance(others, dict):
            yield from _refused(each, others, f"{path}.{key}")
        elif not schema.get("x-kubernetes-preserve-unknown-fields") and others is not True:
            yield f"{path}.{key}: unknown field"
