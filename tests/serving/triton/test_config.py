# SPDX-License-Identifier: Apache-2.0
"""The message table compared with NVIDIA's generated module, and reading and writing with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.core.errors import TrtspecError
from trtspec.serving.triton import config as triton_config
from trtspec.serving.triton.config import ENUMS, MESSAGES, load_config, parse_config, render_config, set_parameter

SAMPLE = """
name: "m"
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_INT32 dims: -1 optional: true allow_ragged_batch: true }
output { name: "y" data_type: TYPE_STRING dims: [ 1, 2 ] reshape { shape: 1 } }
instance_group { kind: KIND_CPU count: 1 }
dynamic_batching { max_queue_delay_microseconds: 100 default_queue_policy { timeout_action: DELAY max_queue_size: 7 } }
model_transaction_policy { decoupled: true }
parameters { key: "gpt_model_path" value { string_value: "../x" } }
"""
ENSEMBLE = """
name: "e" platform: "ensemble"
ensemble_scheduling {
  step { model_name: "a" model_version: -1 input_map { key: "I" value: "i" } output_map { key: "O" value: "o" } }
}
"""


@pytest.fixture(scope="module")
def oracle():
    return pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient[grpc] is not installed")


def find(descriptor, name):
    """Return a message or enum of NVIDIA's module by its dotted name without the package."""
    first, *rest = name.split(".")
    found = descriptor.message_types_by_name.get(first) or descriptor.enum_types_by_name[first]
    for part in rest:
        found = found.nested_types_by_name.get(part) or found.enum_types_by_name[part]
    return found


@pytest.mark.parametrize("message", MESSAGES)
def test_config_fields_match_the_public_proto(oracle, message: str) -> None:
    ours = triton_config._CLASS.DESCRIPTOR.file.pool.FindMessageTypeByName(f"inference.{message}")
    theirs = find(oracle.DESCRIPTOR, message)
    for name, field in ours.fields_by_name.items():
        other = theirs.fields_by_name[name]
        assert facts(field) == facts(other), name


def facts(field):
    referred = field.message_type or field.enum_type
    entry = field.message_type is not None and field.message_type.GetOptions().map_entry
    inner = [facts(part) for part in field.message_type.fields] if entry else None
    repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    return field.number, field.type, repeated, referred and referred.full_name, inner


@pytest.mark.parametrize("enum", ENUMS)
def test_config_enums_match_the_public_proto(oracle, enum: str) -> None:
    values = {value.name: value.number for value in find(oracle.DESCRIPTOR, enum).values}
    assert values == {name: number for number, name in enumerate(ENUMS[enum])}


@pytest.mark.parametrize("text", [SAMPLE, ENSEMBLE])
def test_config_serialization_matches_the_client_library(oracle, text: str) -> None:
    from google.protobuf import text_format

    theirs = text_format.Parse(text, oracle.ModelConfig())
    ours = parse_config(text)
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    assert text_format.Parse(render_config(ours), oracle.ModelConfig()) == theirs


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.text(st.characters(exclude_categories=["Cs"])).filter(lambda s: "${" not in s)))
def test_config_parameters_round_trip(parameters: dict[str, str]) -> None:
    config = parse_config(SAMPLE)
    for key, value in parameters.items():
        if "${" not in key:
            set_parameter(config, key, value)
    text = render_config(config)
    again = parse_config(text)
    assert again == config
    assert render_config(again) == text
    assert all(again.parameters[key].string_value == value for key, value in parameters.items() if "${" not in key)


def test_config_rendering_does_not_depend_on_insertion_order() -> None:
    one, other = parse_config(""), parse_config("")
    for key in "cab":
        set_parameter(one, key, key)
    for key in "bca":
        set_parameter(other, key, key)
    assert render_config(one) == render_config(other)


def test_config_parameters_are_stored_as_strings() -> None:
    config = parse_config("")
    set_parameter(config, "b", True)
    set_parameter(config, "i", 5)
    assert (config.parameters["b"].string_value, config.parameters["i"].string_value) == ("true", "5")


def test_unknown_field_error_has_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text('name: "m"\n  max_batch: 4\n')
    with pytest.raises(TrtspecError) as caught:
        load_config(path)
    assert caught.value.where == f"{path}:2:3"
    assert 'no field named "max_batch"' in caught.value.message


def test_unfilled_placeholder_error_has_line_and_column() -> None:
    with pytest.raises(TrtspecError, match=r"the placeholder \$\{engine_dir\} is not filled in") as caught:
        parse_config('name: "m"\nparameters { key: "p" value { string_value: "${engine_dir}" } }')
    assert caught.value.where == "config.pbtxt:2:46"
    with pytest.raises(TrtspecError, match="contains an unfilled placeholder"):
        set_parameter(parse_config(""), "p", "${x}")


def test_missing_file_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(TrtspecError, match="the model configuration: cannot be read") as caught:
        load_config(tmp_path / "config.pbtxt")
    assert caught.value.where == str(tmp_path / "config.pbtxt")
