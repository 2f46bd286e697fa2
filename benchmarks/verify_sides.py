# SPDX-License-Identifier: Apache-2.0
"""Inputs and sides of benchmarks/verify.py: a batch of drafted chains, and the implementations that verify it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.bit_exact import ChainResult

LOGIT_SPREAD = 2.5
DRAFT_NOISE = 0.7  # noise between draft and target logits, for an acceptance rate of about 0.7
TRUNCATION = (50, 0.95)


@dataclass(frozen=True)
class Case:
    """One size of the table; `kind` is the sampling: "greedy", "sampled", "truncated" (top_k and top_p)."""

    kind: str
    batch: int
    draft_len: int
    vocab: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Batch:
    """Chains to verify: `target` [batch, draft_len + 1, vocab] and `draft` [batch, draft_len, vocab] are logits."""

    case: Case
    target: Tensor
    draft: Tensor
    tokens: Tensor  # [batch, draft_len] int32
    uniforms: Tensor | None  # [batch, draft_len + 1] uint32; None for greedy
    temperature: Tensor  # [batch] float32
    top_k: Tensor | None  # [batch] int32
    top_p: Tensor | None  # [batch] float32

    @classmethod
    def random(cls, case: Case, device: torch.device) -> Batch:
        """Sample tokens from a draft distribution that resembles the target's."""
        made = torch.Generator(device).manual_seed(case.batch * 100 + case.draft_len)
        shape = (case.batch, case.draft_len + 1, case.vocab)
        target = torch.randn(shape, generator=made, device=device) * LOGIT_SPREAD
        draft = target[:, :-1] + torch.randn(shape, generator=made, device=device)[:, :-1] * DRAFT_NOISE
        weights = torch.softmax(draft, -1).flatten(0, 1)
        drawn = torch.multinomial(weights, 1, generator=made) if case.kind != "greedy" else weights.argmax(-1)
        uniforms = torch.randint(0, 1 << 32, shape[:2], generator=made, device=device).to(torch.uint32)
        top_k, top_p = TRUNCATION
        truncated = case.kind == "truncated"
        return cls(
            case,
            target.to(case.dtype),
            draft.to(case.dtype),
            drawn.view(case.batch, case.draft_len).to(torch.int32),
            None if case.kind == "greedy" else uniforms,
            torch.full((case.batch,), 0.9, device=device),
            torch.full((case.batch,), top_k, dtype=torch.int32, device=device) if truncated else None,
            torch.full((case.batch,), top_p, device=device) if truncated else None,
        )

    def elsewhere(self) -> Batch:
        """Return a copy with its logits in separate memory."""
        return replace(self, target=self.target.clone(), draft=self.draft.clone())

    @property
    def logit_bytes(self) -> int:
        """Return the bytes of the logits."""
        return sum(rows.numel() * rows.element_size() for rows in (self.target, self.draft))

    def needed_bytes(self, accepted: Tensor) -> int:
        """Return the bytes that any verification must read: rows up to the first rejection, and the draft's if used."""
        target_rows = int((accepted + 1).sum())
        draft_rows = 0 if self.case.kind == "greedy" else int((accepted + 1).clamp_max(self.case.draft_len).sum())
        return (target_rows + draft_rows) * self.case.vocab * self.target.element_size()


# Verifies a batch; returns the number of accepted tokens [batch] and the next token [batch].
Side = Callable[[Batch], tuple[Tensor, Tensor]]


def ours(library: KernelLibrary, threads: int) -> Side:
    """Return the compiled library's side."""

    def verify(batch: Batch) -> tuple[Tensor, Tensor]:
        found = ours_in_full(library, batch, threads)
        return found.accepted, found.next

    return verify


def ours_in_full(library: KernelLibrary, batch: Batch, threads: int) -> ChainResult:
    """Return the library's complete result for a batch."""
    return library.verify_chain(
        target=batch.target,
        tokens=batch.tokens,
        draft=batch.draft,
        temperature=batch.temperature,
        top_k=batch.top_k,
        top_p=batch.top_p,
        uniforms=batch.uniforms,
        threads=threads,
    )


def textbook(
    target: Tensor,
    draft: Tensor,
    tokens: Tensor,
    uniforms: Tensor | None,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Verify with torch operations: softmax, gather, multinomial; argmax for greedy."""
    if uniforms is None:
        choices = target.argmax(-1)
        accepted = (choices[:, :-1] == tokens).long().cumprod(1).sum(1)
        return accepted, choices.gather(1, accepted.unsqueeze(1)).squeeze(1)
    target_probs, draft_probs = (_probs(logits, temperature, top_k, top_p) for logits in (target, draft))
    chosen = tokens.long().unsqueeze(-1)
    target_prob, draft_prob = target_probs[:, :-1].gather(-1, chosen), draft_probs.gather(-1, chosen)
    agrees = uniforms[:, :-1].float().unsqueeze(-1) * 2.0**-32 * draft_prob < target_prob
    accepted = agrees.squeeze(-1).long().cumprod(1).sum(1)
    row = torch.arange(len(accepted), device=accepted.device)
    after = target_probs[row, accepted]
    residual = (after - F.pad(draft_probs, (0, 0, 0, 1))[row, accepted]).clamp_min(0.0)
    weights = torch.where(residual.sum(-1, keepdim=True) > 0, residual, after)
    return accepted, torch.multinomial(weights, 1).squeeze(1)


def _probs(logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    probs = torch.softmax(logits.float() / temperature.view(-1, 1, 1), -1)
    if top_k is None or top_p is None:
        return probs
    ranked, order = probs.sort(-1, descending=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    ranked = ranked.masked_fill(rank >= top_k.view(-1, 1, 1), 0.0)
    ranked = ranked / ranked.sum(-1, keepdim=True)
    ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p.view(-1, 1, 1), 0.0)
    return torch.zeros_like(probs).scatter_(-1, order, ranked / ranked.sum(-1, keepdim=True))


def in_torch(verify: Callable[..., tuple[Tensor, Tensor]]) -> Side:
    """Return a side from `textbook` or a compiled version of it."""
    return lambda batch: verify(
        batch.target, batch.draft, batch.tokens, batch.uniforms, batch.temperature, batch.top_k, batch.top_p
    )


def flashinfer() -> Side | None:
    """Return FlashInfer's softmax and chain_speculative_sampling for sampled batches, or None if not installed."""
    try:
        from flashinfer import sampling
    except ImportError:
        return None

    def probs(logits: Tensor, batch: Batch) -> Tensor:
        rows = logits.float().flatten(0, 1)
        temperature = batch.temperature.repeat_interleave(logits.shape[1])
        return sampling.softmax(rows, temperature).view(logits.shape)

    def verify(batch: Batch) -> tuple[Tensor, Tensor]:
        output, _, emitted = sampling.chain_speculative_sampling(
            probs(batch.draft, batch), batch.tokens, probs(batch.target, batch)
        )
        return emitted, output.gather(1, emitted.long().unsqueeze(1)).squeeze(1)

    return verify


def sides_for(case: Case, library: KernelLibrary, device: torch.device, threads: int) -> dict[str, Side]:
    """Return the sides that support a case on this machine."""
    sides = {"ours": ours(library, threads), "torch": in_torch(textbook)}
    if device.type == "cpu" or min(case.batch, case.draft_len) > 1:
        sides["torch.compile"] = in_torch(torch.compile(textbook, dynamic=True, fullgraph=True))
    if device.type == "cuda" and case.kind == "sampled" and (peer := flashinfer()):
        sides["flashinfer"] = peer
    return sides
