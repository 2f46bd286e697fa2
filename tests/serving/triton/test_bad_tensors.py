# SPDX-License-Identifier: Apache-2.0
"""Malformed requests: each is rejected with a message, and none causes an internal error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.triton.artifact import emit_repository, make_tokenizer
from tests.serving.triton.fakes import Request, load_model, make_pb_utils, model_args
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.python_models.tensors import RequestTensors
from trtspec.serving.triton.python_models.token_io import TokenReader

INT32 = st.integers(-(2**31), 2**31 - 1)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("artifact")
    make_tokenizer(root / "tokenizer")
    emit_repository(root / "model_repository")
    return root


@pytest.fixture(scope="module")
def models(artifact: Path) -> dict[str, Any]:
    found = {}
    for name in ("preprocessing", "postprocessing"):
        found[name] = load_model(name, make_pb_utils()).TritonPythonModel()
        found[name].initialize(model_args(artifact / "model_repository" / name))
    return found


def answered(model: Any, **tensors: Any) -> Any:
    [response] = model.execute([Request(**tensors)])
    return response


@pytest.mark.parametrize(
    ("tokens", "lengths", "said"),
    [
        ([[[5, 6]]], [[3]], "SEQUENCE_LENGTH is 3, expected 0 to 2, the number of tokens"),
        ([[[5, 6]]], [[-1]], "SEQUENCE_LENGTH is -1, expected 0 to 2, the number of tokens"),
        ([[[5, -6]]], [[2]], "TOKENS_BATCH has the token id -6, expected 0 or more"),
        ([[[5], [6]]], [[1]], "TOKENS_BATCH has 2 rows, but SEQUENCE_LENGTH has 1"),
    ],
)
def test_postprocessing_rejects_invalid_tensors_by_name(
    models: dict[str, Any], tokens: Any, lengths: Any, said: str
) -> None:
    response = answered(
        models["postprocessing"],
        TOKENS_BATCH=np.array(tokens, np.int32),
        SEQUENCE_LENGTH=np.array(lengths, np.int32),
    )
    assert (response.error.code, response.error.message) == ("invalid", said)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(INT32 | st.integers(0, 300), min_size=2, max_size=2), max_size=3),
    st.lists(INT32 | st.integers(-1, 3), max_size=3),
    st.booleans(),
)
def test_postprocessing_of_arbitrary_tensors_has_no_internal_error(
    models: dict[str, Any], tokens: list[list[int]], lengths: list[int], continues: bool
) -> None:
    response = answered(
        models["postprocessing"],
        TOKENS_BATCH=np.array([tokens], np.int32).reshape(1, len(tokens), 2),
        SEQUENCE_LENGTH=np.array([lengths], np.int32),
        CONTINUATION=continues,
    )
    assert response.error is None or response.error.code == "invalid", response.error.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_lengths": -1}, "input_lengths is -1, expected 0 to 2, the number of tokens"),
        ({"input_lengths": 99}, "input_lengths is 99, expected 0 to 2, the number of tokens"),
        ({"end_id": -(2**31)}, "end_id is -2147483648, expected a token id, or -1 for none"),
        (
            {"stop_words_list": np.array([[[-5], [1]]], np.int32)},
            "stop_words_list has the token id -5, expected 0 or more",
        ),
    ],
)
def test_token_reader_rejects_invalid_tensors_by_name(artifact: Path, change: dict[str, Any], said: str) -> None:
    text = {"input_ids": np.array([[5, 6]], np.int32), "input_lengths": 2, "request_output_len": 9}
    inputs = RequestTensors(make_pb_utils(), Request(**{**text, **change}))
    with pytest.raises(TrtspecError) as caught:
        TokenReader(Tokenizer(artifact / "tokenizer")).read(inputs)
    assert caught.value.message == said


def test_preprocessing_rejects_end_id_below_minus_one(models: dict[str, Any]) -> None:
    text = {"QUERY": np.array([[b"abc"]], object), "REQUEST_OUTPUT_LEN": 4}
    assert answered(models["preprocessing"], **text, END_ID=-1).outputs["OUT_END_ID"].item() == -1
    response = answered(models["preprocessing"], **text, END_ID=-(2**31))
    assert response.error.message == "end_id is -2147483648, expected a token id, or -1 for none"
