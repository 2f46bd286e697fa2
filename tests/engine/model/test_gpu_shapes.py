# SPDX-License-Identifier: Apache-2.0
"""What a decoder does only on a GPU, here on a CPU: products of fixed numbers of rows, few shapes, and graphs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests._support.configs import model_config
from tests._support.tiny import FAMILY_SHAPES, SHAPE, convert, make_model, reference_model
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.engine.model import layers, pass_graphs
from trtspec.engine.model.decoder import FINAL, NONE_SKIPPED, Decoder
from trtspec.engine.model.layers import CHUNK, ChunkedMatrix
from trtspec.engine.model.pass_graphs import CAPTURE_AT, PassGraphs
from trtspec.engine.model.positions import Window, Windows, padded_key_len
from trtspec.kernels.tree import Tree

LENGTH = 150
CPU = torch.device("cpu")
PARENTS = np.array([[-1, 0, 0, 1, 1, 3, 4], [-1, 0, 0, 2, 1, 4, 4]])


def as_on_a_gpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    monkeypatch.setattr(layers, "_plain_matrix", ChunkedMatrix)
    monkeypatch.setattr(layers, "_packable", lambda: ())
    decoder = Decoder(load_checkpoint(root), 2, LENGTH, CPU, torch.float32)
    decoder.windows = Windows(decoder.config, LENGTH, CPU, torch.float32, few_shapes=True)
    return decoder


def tokens_of(rows: int, length: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (rows, length)))


@pytest.mark.parametrize("family", FAMILY_SHAPES)
@torch.inference_mode()
def test_logits_equal_transformers(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tokens = make_model(tmp_path / "hf", family), tokens_of(2, LENGTH)
    decoder, found, start = as_on_a_gpu(convert(source, tmp_path / "converted"), monkeypatch), [], 0
    for width in (100, 1, 6, 43):
        window = decoder.windows.chain([start] * 2, width)
        assert window.mask is not None
        found.append(decoder.forward(tokens[:, start : start + width], window).view(2, width, -1))
        start += width
    expected = reference_model(source)(tokens).logits
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("bias", [None, torch.ones(33)])
def test_row_of_a_chunked_product_is_bit_identical_for_any_number_of_rows(bias: Tensor | None) -> None:
    drawn = torch.Generator().manual_seed(0)
    weight, rows, residual = (torch.randn(shape, generator=drawn) for shape in ((70, 33), (300, 70), (300, 33)))
    matrix = ChunkedMatrix(weight)
    whole, added = matrix.product(rows, bias), matrix.added(residual, rows, bias)
    torch.testing.assert_close(whole, rows @ weight + (0 if bias is None else bias))
    for count in (0, 1, 2, 5, CHUNK, CHUNK + 1, 299):
        assert torch.equal(matrix.product(rows[:count], bias), whole[:count]), count
        assert torch.equal(matrix.added(residual[:count], rows[:count], bias), added[:count]), count


def test_key_lengths_are_few_and_hardly_longer_than_needed() -> None:
    found = [padded_key_len(count) for count in range(1, 8193)]
    assert found == sorted(found)
    assert len(set(found)) < 32
    assert all(count <= each <= max(count + 63, 1.25 * count) for count, each in enumerate(found, 1))
    assert all(each % 64 == 0 for each in found)


def windows_of(few_shapes: bool) -> Windows:
    config = model_config(head_size=4, sliding_window=16, full_layers=frozenset({1}))
    return Windows(config, LENGTH, CPU, torch.float32, few_shapes=few_shapes)


@pytest.mark.parametrize("starts", [[20, 20], [5, 70]])
def test_few_shapes_hide_only_additional_keys(starts: list[int]) -> None:
    tree = Tree(PARENTS)
    plain, padded = (
        [windows.chain(starts, 1), windows.chain(starts, 4), windows.tree(starts, tree), *windows.singles(starts, 3)]
        for windows in (windows_of(False), windows_of(True))
    )
    for ours, theirs in zip(padded, plain, strict=True):
        _assert_same(ours, theirs)
        if theirs.near:
            assert ours.near
            _assert_same(ours.near, theirs.near)


def _assert_same(padded: Window, plain: Window) -> None:
    assert padded.key_len in (padded_key_len(plain.key_len), padded_key_len(plain.key_len + 2), LENGTH)
    assert torch.equal(padded.slots, plain.slots)
    assert torch.equal(padded.rotation, plain.rotation)
    assert padded.mask is not None
    shown = padded.mask[..., : plain.key_len]
    assert torch.equal(shown, plain.mask.expand(shown.shape) if plain.mask is not None else torch.zeros_like(shown))
    assert bool((padded.mask[..., plain.key_len :] == -torch.inf).all())


def test_masks_of_parts_begin_at_their_own_memory() -> None:
    """An offset of a few elements is a misaligned address for CUDA's attention."""
    for windows in (windows_of(False), windows_of(True)):
        whole = windows.tree([5, 9], Tree(PARENTS), 1)
        for first, last in ((0, 2), (2, 3), (3, 6), (5, 6)):
            mask = whole.part(first, last).mask
            assert mask is not None
            assert mask.is_contiguous()
            assert mask.data_ptr() % 16 == 0


class FakeGraph:
    """Stands in for a CUDA graph: runs the pass on the memory that it was captured with."""

    replayed = 0

    def __init__(self, graphs: PassGraphs, inputs: Any, aux_layers: Any, skipped: Any) -> None:
        self._graphs, self._inputs, self._fixed = graphs, inputs, (aux_layers, skipped)

    def replay(self, inputs: Any) -> tuple[Tensor, Tensor | None]:
        FakeGraph.replayed += 1
        self._inputs.copy_from(inputs)
        aux_layers, skipped = self._fixed
        found: tuple[Tensor, Tensor | None] = self._graphs._run(
            self._inputs.tokens, self._inputs.window, aux_layers, self._inputs.at, skipped
        )
        return found


@pytest.fixture
def fake_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeGraph, "replayed", 0)
    monkeypatch.setattr(PassGraphs, "_capture", property(lambda graphs: partial(FakeGraph, graphs)))


@pytest.mark.usefixtures("fake_capture")
@pytest.mark.parametrize("family", ["llama", "gemma2"])
@torch.inference_mode()
def test_repeated_passes_are_replayed_with_the_same_result(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes of other positions, trees, features and selected tokens each get the result of their own inputs."""
    decoder = as_on_a_gpu(convert(make_model(tmp_path / "hf", family), tmp_path / "converted"), monkeypatch)
    graphs, tokens = PassGraphs(decoder._run), tokens_of(2, LENGTH)
    decoder.forward(tokens[:, :80], decoder.windows.chain([0, 0], 80))
    passes = 0
    for start in range(20, 20 + CAPTURE_AT + 4):
        starts = [start, start + 3]
        cases = [
            (decoder.windows.chain(starts, 1), (), None),
            (decoder.windows.tree(starts, Tree(PARENTS)), (0, FINAL), None),
            (decoder.windows.chain(starts, 7), (), torch.tensor([start % 7, 7 + start % 5])),
        ]
        for window, aux_layers, at in cases:
            given = tokens[:, start : start + window.width].contiguous(), window, aux_layers, at, NONE_SKIPPED
            ours, theirs = graphs(*given), decoder._run(*given)
            passes += 1
            for one, other in zip(ours, theirs, strict=True):
                assert (one is None) == (other is None)
                assert one is None or other is None or torch.equal(one, other)
    assert passes - FakeGraph.replayed == 3 * (CAPTURE_AT - 1)


@pytest.mark.usefixtures("fake_capture")
@torch.inference_mode()
def test_least_recently_used_graphs_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_graphs, "GRAPHS", 2)
    decoder = as_on_a_gpu(convert(make_model(tmp_path / "hf", "llama"), tmp_path / "converted"), monkeypatch)
    graphs, tokens = PassGraphs(decoder._run), tokens_of(1, 8)
    for width in (1, 2, 3, 1):
        for _ in range(CAPTURE_AT):
            graphs(tokens[:, :width], decoder.windows.chain([0], width), (), None, NONE_SKIPPED)
    assert FakeGraph.replayed == 4, "the first shapes were captured again or replayed too often"
    assert len(graphs._graphs) == 2


@torch.inference_mode()
def test_failed_capture_leaves_passes_without_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(PassGraphs, "_capture", fail)
    decoder = as_on_a_gpu(convert(make_model(tmp_path / "hf", "llama"), tmp_path / "converted"), monkeypatch)
    graphs, tokens = PassGraphs(decoder._run), tokens_of(1, 4)
    for _ in range(CAPTURE_AT + 2):
        window = decoder.windows.chain([0], 4)
        given = tokens, window, (), None, NONE_SKIPPED
        assert torch.equal(graphs(*given)[0], decoder._run(*given)[0])
    assert [record.message for record in caplog.records] == [
        "running without CUDA graphs, because capturing one failed: operation not permitted when stream is capturing"
    ]
