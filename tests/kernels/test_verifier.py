# SPDX-License-Identifier: Apache-2.0
"""Compiled rules as a replacement for torch's: equal results, and the choice between them for an engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.kernels import test_chain, test_tree
from trtspec.core.errors import TrtspecError
from trtspec.kernels.bindings import load_library
from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.tree import Tree, TypicalAcceptance
from trtspec.kernels.verifier import CompiledVerifier, DraftVerifier, candidate_libraries, choose_verifier

CPU = torch.device("cpu")
ALL = slice(None)


@pytest.fixture(scope="module")
def verifier(kernel_library: Path) -> CompiledVerifier:
    return CompiledVerifier(load_library(kernel_library))


class TestCompiled:
    @pytest.mark.parametrize("sampled", [True, False])
    @pytest.mark.parametrize("seed", range(10))
    def test_chain_results_equal_torch(self, verifier: CompiledVerifier, sampled: bool, seed: int) -> None:
        batch = test_chain.Batch(seed, torch.float32, sampled)
        arguments = (batch.logits, batch.tokens, batch.lens)
        sampled = (*arguments, batch.params(), batch.draft_probs, batch.uniforms)
        assert verifier.chain(*sampled) == DraftVerifier.chain(*sampled)
        assert verifier.chain(*arguments) == DraftVerifier.chain(*arguments)

    @pytest.mark.parametrize("drawn", [True, False])
    @pytest.mark.parametrize("seed", range(10))
    def test_block_results_equal_torch(self, verifier: CompiledVerifier, drawn: bool, seed: int) -> None:
        batch = test_chain.Batch(seed, torch.float32, drawn)
        arguments = (batch.logits, batch.tokens, batch.lens)
        sampled = (*arguments, batch.params(), batch.draft_probs, batch.uniforms)
        assert verifier.block(*sampled) == DraftVerifier.block(*sampled)
        assert verifier.block(*arguments) == DraftVerifier.block(*arguments)

    @pytest.mark.parametrize("sampled", [True, False])
    @pytest.mark.parametrize("seed", range(10))
    def test_tree_results_equal_torch(self, verifier: CompiledVerifier, sampled: bool, seed: int) -> None:
        batch = test_tree.Batch(seed, torch.float32, sampled)
        arguments = (batch.logits, batch.tokens, batch.tree, batch.limits)
        sampled = (*arguments, batch.params(ALL), batch.draft_probs, batch.uniforms)
        assert verifier.tree(*sampled) == DraftVerifier.tree(*sampled)
        assert verifier.tree(*arguments) == DraftVerifier.tree(*arguments)

    @pytest.mark.parametrize("seed", range(4))
    def test_typical_acceptance_equals_torch(self, verifier: CompiledVerifier, seed: int) -> None:
        batch = test_tree.Batch(seed, torch.float32, sampled=True)
        sampled = (batch.logits, batch.tokens, batch.tree, batch.limits, batch.params(ALL))
        more = (batch.draft_probs, batch.uniforms, TypicalAcceptance())
        assert verifier.tree(*sampled, *more) == DraftVerifier.tree(*sampled, *more)

    def test_single_tree_applies_to_all_rows(self, verifier: CompiledVerifier) -> None:
        tree, tokens = Tree.from_choices([(0,), (1,), (1, 0)]), torch.tensor([[0, 3, 1, 2], [0, 1, 2, 3]])
        logits = torch.zeros(2, 4, 5).index_fill_(2, torch.tensor([1]), 1.0)
        assert verifier.tree(logits, tokens, tree, [2, 2]) == [VerifyResult([2], 1), VerifyResult([1], 1)]

    def test_empty_draft_returns_the_targets_token(self, verifier: CompiledVerifier) -> None:
        logits = torch.tensor([[[0.0, 2.0, 1.0]]])
        assert verifier.chain(logits, torch.zeros(1, 0, dtype=torch.int64), [0]) == [VerifyResult([], 1)]

    def test_half_precision_logits_equal_torch_in_float32(self, verifier: CompiledVerifier) -> None:
        batch = test_chain.Batch(3, torch.float32, sampled=True)
        for dtype in (torch.bfloat16, torch.float16):
            logits, rest = batch.logits.to(dtype), (batch.params(), batch.draft_probs, batch.uniforms)
            wanted = DraftVerifier.chain(logits.float(), batch.tokens, batch.lens, *rest)
            assert verifier.chain(logits, batch.tokens, batch.lens, *rest) == wanted

    @pytest.mark.parametrize("ill", [torch.nan, torch.inf])
    def test_non_finite_target_logits_are_an_error(self, verifier: CompiledVerifier, ill: float) -> None:
        logits = torch.zeros(2, 1, 3)
        logits[1, 0, 2] = ill
        with pytest.raises(TrtspecError, match="the target's logits of row 1 are NaN or infinite"):
            verifier.chain(logits, torch.zeros(2, 0, dtype=torch.int64), [0, 0])


class TestChoice:
    def test_first_usable_library_is_selected(self, kernel_library: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            chosen = choose_verifier([kernel_library, Path("not looked at")], CPU, torch.float32)
        assert isinstance(chosen, CompiledVerifier)
        assert chosen.library.path == kernel_library
        assert caplog.messages == [f"verifying drafts with {kernel_library}"]

    def test_library_that_cannot_be_loaded_is_skipped(
        self, kernel_library: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        other = tmp_path / "other.so"
        other.write_text("for another machine")
        assert isinstance(choose_verifier([other, kernel_library], CPU, torch.float32), CompiledVerifier)
        assert f"not verifying drafts with a compiled library: {other}: cannot be loaded" in caplog.text

    def test_library_without_a_required_kernel_is_skipped(
        self, build_kernels: Callable[..., Path], caplog: pytest.LogCaptureFixture
    ) -> None:
        assert type(choose_verifier([build_kernels("verify_chain")], CPU, torch.float32)) is DraftVerifier
        assert "the library lacks trtspec_verify_tree_cpu" in caplog.text

    def test_block_verification_requires_the_block_kernel(
        self, build_kernels: Callable[..., Path], caplog: pytest.LogCaptureFixture
    ) -> None:
        library = build_kernels("verify_chain", "verify_tree")
        assert isinstance(choose_verifier([library], CPU, torch.float32), CompiledVerifier)
        assert type(choose_verifier([library], CPU, torch.float32, block=True)) is DraftVerifier
        assert "the library lacks trtspec_verify_block_cpu" in caplog.text

    def test_torch_is_selected_without_libraries(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            assert type(choose_verifier([], CPU, torch.float32)) is DraftVerifier
        assert caplog.messages == ["verifying drafts with torch"]

    def test_torch_is_selected_for_float64(self, kernel_library: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            assert type(choose_verifier([kernel_library], CPU, torch.float64)) is DraftVerifier
        assert "do not support float64" in caplog.text

    def test_artifact_libraries_come_first(
        self, kernel_library: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = workplace / "artifact" / "plugins" / "libtrtspec.so"
        own.parent.mkdir(parents=True)
        assert candidate_libraries(workplace / "artifact") == ()
        own.touch()
        assert candidate_libraries(workplace / "artifact") == (own,)
        monkeypatch.setenv("TRTSPEC_CACHE", str(kernel_library.parents[2]))
        assert candidate_libraries(workplace / "artifact") == (own, kernel_library)
