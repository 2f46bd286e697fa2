# SPDX-License-Identifier: Apache-2.0
"""Rotary keys in all locations that transformers reads, in targets and draft heads; conflicting values are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtspec.checkpoints.model_config import ConfigReader
from trtspec.checkpoints.rope import read_rotary
from trtspec.core.errors import CheckpointError, UnsupportedModel
from trtspec.families.gemma3 import FAMILY as GEMMA3
from trtspec.families.mixtral import FAMILY as MIXTRAL
from trtspec.families.phi3 import FAMILY as PHI3

POSITIONS = 256
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}


def rotary(**config: Any) -> Any:
    return read_rotary(ConfigReader(config, "config.json"), POSITIONS)


@pytest.mark.parametrize(
    ("config", "base", "kind", "original"),
    [
        ({}, 10000.0, None, 0),
        ({"rope_parameters": None}, 10000.0, None, 0),
        ({"rope_scaling": {}, "rope_parameters": PLAIN}, 500.0, None, 0),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 500}, 500.0, None, 0),
        ({"rope_parameters": PLAIN, "rope_theta": 500}, 500.0, None, 0),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": YARN, "rope_theta": 500}, 500.0, "yarn", 64),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, 10000.0, "yarn", POSITIONS),
        ({"rope_scaling": {"type": "yarn", "factor": 2}, "original_max_position_embeddings": 32}, 10000.0, "yarn", 32),
        ({"rope_parameters": {**YARN, "factor": None}}, 10000.0, "yarn", 64),
    ],
)
def test_rotary_keys_are_read_in_the_order_of_transformers(
    config: dict[str, Any], base: float, kind: str | None, original: int
) -> None:
    found = rotary(**config)
    assert found.base == base
    assert (found.scaling.kind if found.scaling else None) == kind
    assert not kind or found.scaling.original_max_position == original


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_parameters": PLAIN, "rope_theta": 50}, ("50 at the top level", "500.0 in rope_parameters")),
        ({"rope_parameters": PLAIN, "rope_scaling": YARN}, ("500.0 in rope_parameters", "10000.0 by the default")),
        ({"rope_scaling": {**YARN, "type": "linear"}}, ("linear in rope_scaling under the key type", "yarn in")),
        ({"rope_parameters": YARN, "rope_scaling": {**YARN, "factor": 8.0}}, ("4.0 in rope_parameters", "8.0 in rope")),
        (
            {"rope_parameters": YARN, "rope_scaling": {"rope_type": "default"}},
            ("yarn in rope_parameters", "default in"),
        ),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 32}, ("64 in rope_scaling", "32 at the top level")),
        (
            {"rope_parameters": {**YARN, "truncate": False}, "rope_scaling": YARN},
            ("truncate is False in rope_parameters", "missing in rope_scaling"),
        ),
    ],
)
def test_conflicting_values_are_rejected_with_both_locations(config: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(CheckpointError) as caught:
        rotary(**config)
    assert all(word in caught.value.message for word in words), caught.value.message
    assert caught.value.hint
    assert "transformers uses the value" in caught.value.hint


def test_rope_type_that_is_not_a_string_is_rejected() -> None:
    for kind in (["yarn"], 3, {}):
        with pytest.raises(CheckpointError):
            rotary(rope_scaling={"rope_type": kind, "type": [kind], "factor": 2.0})


def test_unknown_rope_type_is_unsupported() -> None:
    with pytest.raises(UnsupportedModel, match="rope type 'magic' is not supported"):
        rotary(rope_scaling={"rope_type": "magic"})


SIZES = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "max_position_embeddings": POSITIONS, "dtype": "bfloat16",
}  # fmt: skip


def test_family_defaults_equal_those_of_the_config_class() -> None:
    from transformers import AutoConfig

    from trtspec.core.registry import discover

    for name, family in discover("trtspec.families", "FAMILY").items():
        theirs = AutoConfig.for_model({"gemma3": "gemma3_text"}.get(name, name))
        reader = ConfigReader({"architectures": list(family.architectures), "dtype": "bfloat16"}, "config.json")
        ours = family.read(reader, "auto")
        keys = ("vocab_size", "hidden_size", "intermediate_size")
        assert [getattr(ours, key) for key in keys] == [getattr(theirs, key) for key in keys], name
        assert ours.num_layers == theirs.num_hidden_layers
        assert ours.num_kv_heads == theirs.num_key_value_heads
        assert ours.norm_epsilon == theirs.rms_norm_eps
        assert ours.max_positions == theirs.max_position_embeddings
        assert ours.tied_embeddings == theirs.tie_word_embeddings
        assert ours.sliding_window == (getattr(theirs, "sliding_window", None) or 0)
        rope = theirs.rope_parameters
        assert ours.rotary_base == rope.get("full_attention", rope)["rope_theta"], name


def read(family: Any, architecture: str, **config: Any) -> Any:
    values = SIZES | {"architectures": [architecture]} | config
    return family.read(ConfigReader(values, "config.json"), "auto")


def test_mixtral_has_its_own_default_rope_base() -> None:
    assert read(MIXTRAL, "MixtralForCausalLM").rotary_base == 1e6
    section = {"rope_parameters": {"rope_type": "default"}, "rope_theta": 500.0}
    assert read(MIXTRAL, "MixtralForCausalLM", **section).rotary_base == 500.0


def test_phi3_original_length_is_read_only_at_the_top_level() -> None:
    factors = [1.0] * 4
    scaling = {"type": "su", "short_factor": factors, "long_factor": factors}
    config = read(PHI3, "Phi3ForCausalLM", rope_scaling=scaling, original_max_position_embeddings=64)
    assert config.rope_scaling.original_max_position == 64
    with pytest.raises(CheckpointError, match="is 64 in rope_scaling and 4096 by the default of transformers"):
        read(PHI3, "Phi3ForCausalLM", rope_scaling={**scaling, "original_max_position_embeddings": 64})


def test_gemma3_nested_sections_are_completed_from_top_level_keys() -> None:
    nested = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    linear = {"rope_type": "linear", "factor": 8.0}
    keys = {"rope_theta": 500.0, "rope_local_base_freq": 50.0}
    found = read(GEMMA3, "Gemma3ForCausalLM", rope_parameters=nested, rope_scaling=linear, **keys)
    assert (found.rotary_base, found.local_rotary_base, found.rope_scaling.kind) == (500.0, 50.0, "linear")
    assert found.stretched_positions == POSITIONS  # its number includes the scaling
    with pytest.raises(CheckpointError, match="'rope_type' in addition to the sections"):
        read(GEMMA3, "Gemma3ForCausalLM", rope_parameters=PLAIN)
    with pytest.raises(CheckpointError, match="which ignores the key type"):
        read(GEMMA3, "Gemma3ForCausalLM", rope_scaling={"type": "linear", "factor": 8.0})


@pytest.mark.parametrize(
    ("scaling", "most"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "linear", "factor": 2.0}, 512),
        ({"rope_type": "dynamic", "factor": 2.0}, 512),
        (
            {
                "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
            POSITIONS,
        ),
    ],
)  # fmt: skip
def test_rope_scaling_determines_the_stretched_positions(scaling: dict[str, Any], most: int) -> None:
    config = read(MIXTRAL, "MixtralForCausalLM", rope_scaling=scaling)
    assert config.stretched_positions == most
    assert config.positions(frozenset(), keeps_windows=True) == POSITIONS
    assert config.positions({scaling["rope_type"]}, keeps_windows=True) == most


def test_partial_rotary_factor_is_rejected_for_full_rotation() -> None:
    with pytest.raises(CheckpointError, match=r"partial_rotary_factor is 0\.5"):
        read(MIXTRAL, "MixtralForCausalLM", partial_rotary_factor=0.5)


def test_max_sequence_length_is_read_unless_rope_scaling_depends_on_it(tmp_path: Path) -> None:
    values = {key: value for key, value in SIZES.items() if key != "max_position_embeddings"}
    values |= {"architectures": ["MixtralForCausalLM"], "max_sequence_length": 64}
    assert MIXTRAL.read(ConfigReader(values, "config.json"), "auto").max_positions == 64
    values["rope_scaling"] = {"rope_type": "dynamic", "factor": 2.0}
    with pytest.raises(CheckpointError) as caught:
        MIXTRAL.read(ConfigReader(values, "config.json"), "auto")
    assert caught.value.hint == "rename max_sequence_length to max_position_embeddings in config.json"
