# SPDX-License-Identifier: Apache-2.0
"""Prefill and decoding steps of a target model with its drafter, for the rows of a batch.

A step drafts, runs one pass of the target, verifies and compacts the cache. Queues, threads and clients are handled by
`engine`. External drafts, which are sent with requests, are verified together with the prompts. The target's logits are
edited as requests specify before tokens are chosen, and scores are computed from the unedited logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import find_extension
from trtspec.engine.constrained import (
    Masks,
    chain_masks,
    constrain_chains,
    constrained_rows,
    mask_logits,
    tree_masks,
)
from trtspec.engine.device import choose_device, compute_dtype, pad_rows
from trtspec.engine.drafting.base import BatchShape, Drafter, DrafterConfig, DraftSampling, DraftTokens, VerifyOutcome
from trtspec.engine.drafting.fault_isolation import IsolatedDrafter
from trtspec.engine.generation.request import NO_EDITS, EngineRequest, LogitEdits, Scores
from trtspec.engine.generation.request_state import DecodingStep, RunningRequest
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.prefill import PrefixCache, prefill
from trtspec.engine.settings import EXTENDED_ROPE_KINDS, EngineSettings
from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.sampling import SamplingParams
from trtspec.kernels.simulated import SimulatedVerifier
from trtspec.kernels.tree import Tree, TypicalAcceptance
from trtspec.kernels.verifier import DraftVerifier, choose_verifier
from trtspec.methods.base import DraftShape, LossyOptions, Method, Options, find_method

FORBIDDEN_LOGIT = -1e30  # the logit of a forbidden token; a row of only -inf would not be a valid distribution

Bools = npt.NDArray[np.bool_]


def apply_edits(logits: Tensor, batch: Sequence[RunningRequest], tokens: Tensor, tree: Tree | None) -> Tensor:
    """Return the logits with each request's edits applied; `logits` itself if no request has edits.

    Each node is edited as if the tokens on its path were part of the text. The token after an accepted draft is
    therefore the same as without speculation.

    Args:
        logits: [rows, nodes, vocab], the target's logits after each node.
        batch: the request of each row.
        tokens: [rows, nodes], the last token of each text and the draft after it.
        tree: the shape of the drafts, or None for chains.
    """
    edited = [row for row, running in enumerate(batch) if running.request.edits != NO_EDITS]
    if not edited:
        return logits
    changed = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for row in edited:
        _edit_row(changed[row], batch[row], tokens[row], _sees(tree, row, tokens.shape[1]))
    return changed


def _sees(tree: Tree | None, row: int, nodes: int) -> Bools:
    """Return a mask [nodes, nodes] of the nodes on the path to each node, without the root, which is in the text."""
    sees: Bools = np.tri(nodes, dtype=np.bool_) if tree is None else tree.sees[row % len(tree.sees)].copy()
    sees[:, 0] = False
    return sees


def _edit_row(logits: Tensor, running: RunningRequest, tokens: Tensor, sees: Bools) -> None:
    edits = running.request.edits
    if edits.bias:
        ids = torch.tensor(list(edits.bias), device=logits.device)
        logits[:, ids] += torch.tensor(list(edits.bias.values()), device=logits.device, dtype=logits.dtype)
    if edits.has_penalties:
        _penalize(logits, edits, running.text, len(running.request.prompt_ids), tokens, sees)
    if edits.bad_words or edits.min_tokens or edits.no_repeat_ngram or edits.begin_suppressed:
        for node, forbidden in enumerate(_forbidden(running, tokens.tolist(), sees, logits.shape[-1])):
            logits[node, forbidden] = FORBIDDEN_LOGIT


def _penalize(
    logits: Tensor, edits: LogitEdits, text: Sequence[int], prompt_len: int, tokens: Tensor, sees: Bools
) -> None:
    """Penalize the ids that occur before each node; the other logits stay unchanged.

    numpy counts the occurrences, because even a small torch operation wakes and waits for torch's threads.
    """
    unique_ids, columns = np.unique([*text, *tokens[1:].tolist()], return_inverse=True)
    path = np.zeros((len(sees), len(unique_ids)), np.int64)
    for node, column in enumerate(columns[len(text) :], 1):
        path[:, column] += sees[:, node]
    ignored = min(edits.prompt_ignore_len, prompt_len)
    counted = (
        path + np.bincount(columns[: len(text)], minlength=len(unique_ids)) > 0,
        path + np.bincount(columns[ignored : len(text)], minlength=len(unique_ids)),
    )
    ids, occurs, counts = (torch.from_numpy(numbers).to(logits.device) for numbers in (unique_ids, *counted))
    before, penalty = logits[:, ids], edits.repetition_penalty
    after = torch.where(occurs, torch.where(before < 0, before * penalty, before / penalty), before)
    logits[:, ids] = after - edits.presence_penalty * (counts > 0) - edits.frequency_penalty * counts


def _forbidden(running: RunningRequest, tokens: list[int], sees: Bools, vocab_size: int) -> list[list[int]]:
    """Return the ids that must not follow each node.

    An end id may be outside the vocabulary: benchmark clients send such an id to disable stopping.
    """
    edits, text = running.request.edits, running.text
    last_by_prefix: dict[tuple[int, ...], list[int]] = {}
    for word in edits.bad_words:
        last_by_prefix.setdefault(word[:-1], []).append(word[-1])
    output_len = len(text) - len(running.request.prompt_ids)
    longest = max(map(len, last_by_prefix), default=0)
    ends = [token for token in running.request.end_ids if 0 <= token < vocab_size]
    forbidden = []
    for path in sees:
        drafted = [tokens[node] for node in np.flatnonzero(path)]
        ids = list(ends) if output_len + len(drafted) < edits.min_tokens else []
        if output_len + len(drafted) == 0:
            ids += edits.begin_suppressed
        if edits.no_repeat_ngram:
            ids += _repeating([*text, *drafted], edits.no_repeat_ngram)
        tail = (*text[len(text) - min(longest, len(text)) :], *drafted)
        for prefix, last in last_by_prefix.items():
            if tail[len(tail) - len(prefix) :] == prefix:
                ids = [*ids, *last]
        forbidden.append(ids)
    return forbidden


def _repeating(text: Sequence[int], size: int) -> list[int]:
    """Return the ids that would complete an n-gram of `size` tokens that already occurs in the text."""
    if len(text) < size:
        return []
    ids = np.asarray(text)
    windows = np.lib.stride_tricks.sliding_window_view(ids, size)
    matches = (windows[:, :-1] == ids[len(ids) - size + 1 :]).all(axis=1)
    found: list[int] = np.unique(windows[matches, -1]).tolist()
    return found


def score(request: EngineRequest, logits: Tensor, tokens: Sequence[int]) -> Scores:
    """Compute the scores that a request asked for, for `tokens` and the target's logits [len(tokens), vocab]."""
    logits = logits.float()
    returned = logits.cpu().numpy() if request.return_logits else None
    if not request.return_log_probs:
        return Scores(returned)
    log_probs = torch.log_softmax(logits, -1)
    chosen = log_probs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1)).squeeze(1)
    top = log_probs.topk(min(request.num_top_log_probs, log_probs.shape[1]))
    return Scores(returned, chosen.cpu().numpy(), top.values.cpu().numpy(), top.indices.int().cpu().numpy())


class ExternalDrafts:
    """External drafts of a batch: `tokens` [rows, width], of which the first `lens[row]` of a row are valid."""

    def __init__(self, batch: Sequence[RunningRequest], device: torch.device) -> None:
        self._batch, self.lens = batch, [len(running.external_draft) for running in batch]
        self.tokens = pad_rows([running.external_draft for running in batch], device)

    def probs(self) -> Tensor | None:
        """Return the draft's distributions [rows, width, vocab], or None if no request has draft_logits.

        They are softmax(draft_logits), independent of the request's sampling options, as in TensorRT-LLM
        (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/layers/externalDraftTokensLayer.cpp@1d263f15). Rows without draft_logits
        are one-hot, which means deterministic tokens.
        """
        drawn_by = [running.request.draft_logits for running in self._batch]
        vocab = next((logits.shape[1] for logits in drawn_by if logits is not None), None)
        if vocab is None:
            return None
        device = self.tokens.device
        rows = torch.full((*self.tokens.shape, vocab), -torch.inf, device=device)
        rows.scatter_(-1, self.tokens.unsqueeze(-1), 0.0)
        for row, logits, length in zip(rows, drawn_by, self.lens, strict=True):
            if logits is not None:
                row[:length] = torch.tensor(logits[:length], device=device)
        return torch.softmax(rows, -1)

    def uniforms(self) -> Tensor:
        """Return random numbers [rows, width + 1] in [0, 1): one per draft token, then one for the next token.

        Each request draws numbers only for its own tokens, so they do not depend on the other rows.
        """
        padded = np.zeros((len(self._batch), self.tokens.shape[1] + 1))
        for row, (running, length) in enumerate(zip(self._batch, self.lens, strict=True)):
            drawn = running.uniforms(length + 1)
            padded[row, :length], padded[row, -1] = drawn[:-1], drawn[-1]
        return torch.from_numpy(padded).to(self.tokens.device)


class Speculator:
    """A loaded target and drafter that decode a batch; use `Speculator.load` to create one.

    The rows of a batch are rows 0, 1, ... of the target's cache and of `guard`, which wraps the drafter.
    """

    def __init__(
        self,
        target: Decoder,
        drafter: Drafter,
        verifier: DraftVerifier,
        draft_shape: DraftShape,
        method: Method,
        options: Options,
        settings: EngineSettings,
    ) -> None:
        self.target, self.drafter, self.verifier, self.draft_shape = target, drafter, verifier, draft_shape
        self.guard = IsolatedDrafter(drafter)
        self._method, self._options, self.settings = method, options, settings
        self._typical: TypicalAcceptance | None = None
        if isinstance(options, LossyOptions) and options.acceptance == "typical":
            self._typical = TypicalAcceptance(options.posterior_threshold, options.posterior_alpha)
        self._prefixes = PrefixCache(target.cache, settings.reuse_tokens)

    @classmethod
    def load(cls, target: Path, draft: Path | None, settings: EngineSettings) -> Speculator:
        """Load converted checkpoints; raise TrtspecError if they do not match each other or the settings."""
        method = find_method(settings.method)
        drafter_class = find_extension("trtspec.methods", "DRAFTER", settings.method, "speculation method", "drafter")
        options = method.parse(dict(settings.options))
        draft_shape = method.draft_shape(options, settings.draft_len)
        device = choose_device(settings.device)
        # A step may write this many positions beyond the longest text; they are overwritten later.
        max_len = settings.max_seq_len + draft_shape.max_tokens + 2
        checkpoint = load_checkpoint(target)
        dtype = compute_dtype(settings.dtype, device, checkpoint)
        model = Decoder(checkpoint, settings.max_batch_size, max_len, device, dtype, settings.max_seq_len)
        if wrong := list(method.check_options(options, model.config)):
            raise TrtspecError(wrong[0].message, where=f"speculation.options.{wrong[0].path}")
        room = BatchShape(settings.max_batch_size, max_len, device, dtype, settings.max_seq_len, settings.reuse_tokens)
        drafter = drafter_class(DrafterConfig(model, draft, room, options, draft_shape, settings.confidence))
        _check_pair(model, drafter, settings)
        verifier = choose_verifier(settings.kernels, device, dtype, block=settings.verify == "block")
        if settings.simulated_acceptance:
            verifier = SimulatedVerifier(verifier, settings.simulated_acceptance)
        return cls(model, drafter, verifier, draft_shape, method, options, settings)

    def request_options(self, request: EngineRequest) -> Options:
        """Return the method's options as lowered by a request.

        Raises TrtspecError if the request raises an option or sets one that the drafter does not let requests lower.
        """
        if not request.options:
            return self._options
        options = self._options.model_dump()
        for name, value in request.options.items():
            if name not in self.drafter.lowerable:
                raise TrtspecError(f"{name} is {value}, but requests cannot set {name} for the engine's method")
            if value > options[name]:
                raise TrtspecError(f"{name} is {value}, expected at most {options[name]} (speculation.options.{name})")
        return self._method.parse({**options, **request.options})

    def unread(self, running: RunningRequest) -> int:
        """Return the expected number of tokens that a request's prefill computes."""
        return len(running.text) + len(running.external_draft) - self._prefixes.cached_length(running.text)

    def prefill(self, batch: Sequence[RunningRequest], first_row: int, max_tokens: int) -> list[DecodingStep]:
        """Prefill the prompts of new requests, at most `max_tokens` per pass, and verify their external drafts.

        External drafts are accepted by the exact rule for chains, even if the method uses another rule. A request with
        an external draft ends with this call, without a step.
        """
        external = ExternalDrafts(batch, self.target.device)
        texts = [[*running.text, *running.external_draft] for running in batch]
        known = [self._prefixes.restore(row, running.text) for row, running in enumerate(batch, first_row)]
        found = prefill(self.target, texts, first_row, max_tokens, self.drafter.aux_layers, external.lens, known)
        params = self._sampling_params(batch)
        probs, uniforms = (external.probs(), external.uniforms()) if params else (None, None)
        last = torch.tensor([running.text[-1:] for running in batch], device=self.target.device)
        tokens = torch.cat([last, external.tokens], 1)
        logits = apply_edits(found.logits, batch, tokens, None)
        if rows := constrained_rows(batch):
            drafts = [running.external_draft for running in batch]
            logits = mask_logits(logits, chain_masks(batch, rows, drafts, logits.shape[-1]))
        results = self.verifier.chain(logits, external.tokens, external.lens, params, probs, uniforms)
        self.guard.begin([running.text for running in batch], first_row, max_tokens)
        for features, start in found.features:
            self.guard.read(features, start)
        for row, running in enumerate(batch, first_row):
            if running.request.options:
                self.guard.lower(row, running.text, self.request_options(running.request))
        return _progress(batch, tokens.tolist(), external.lens, results, found.logits)

    def step(self, batch: Sequence[RunningRequest]) -> list[DecodingStep]:
        """Draft for every row and verify all drafts in one pass of the target."""
        depth = self.settings.scheduled(len(batch), self.draft_shape.max_depth)
        drafted_for = {*self.guard.drafted}
        limits = [running.draft_len(depth) if row in drafted_for else 0 for row, running in enumerate(batch)]
        texts = [running.text for running in batch]
        starts = [len(text) - 1 for text in texts]
        params, nodes = self._sampling_params(batch), self.draft_shape.max_tokens
        uniforms = None
        if params:
            drawn = np.stack([running.uniforms(2 * nodes + 1) for running in batch])
            uniforms = torch.from_numpy(drawn).to(self.target.device)
        last = torch.tensor([text[-1:] for text in texts], device=self.target.device)
        sampling = partial(self._draft_sampling, batch, params, uniforms)
        draft = (self.guard.propose(texts, max(limits), sampling) if any(limits) else None) or DraftTokens(last[:, :0])
        draft, masks, own = self._constrain(batch, last, draft, limits)
        tokens = torch.cat([last, draft.tokens], 1)
        if draft.tree is None:
            window = self.target.windows.chain(starts, tokens.shape[1])
        else:
            window = self.target.windows.tree(starts, draft.tree)
        flat, features = self.target.forward_with_features(tokens, window, self.drafter.aux_layers)
        logits = flat.view(*tokens.shape, -1)
        chosen_by = apply_edits(logits, batch, tokens, draft.tree)
        if masks:
            chosen_by = mask_logits(chosen_by, masks)
        results, drafted = self._verify(chosen_by, tokens, draft, limits, params, uniforms)
        self.target.cache.compact(_moves(starts, results))
        if features is not None:
            features = features.view(*tokens.shape, -1)
        self.guard.observe(VerifyOutcome(results, logits, features, own))
        return _progress(batch, tokens.tolist(), drafted, results, logits)

    def retain(self, row: int, text: Sequence[int]) -> None:
        if self.guard.retain(row, text):  # without it, the drafter would lack the tokens that the cache skips
            self._prefixes.retain(row, text, len(text) - 1)  # the last token was not processed yet

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move row `source`, which has `length` tokens, to row `target`."""
        self.target.cache.move_row(source, target, length)
        self.guard.move_row(source, target)

    def _constrain(
        self, batch: Sequence[RunningRequest], last: Tensor, draft: DraftTokens, limits: list[int]
    ) -> tuple[DraftTokens, Masks, list[int] | None]:
        """Return the draft under the rows' grammars, their masks, and `VerifyOutcome.own`."""
        rows, vocab = constrained_rows(batch), self.target.config.vocab_size
        if not rows:
            return draft, {}, None
        if draft.tree is None:
            return constrain_chains(batch, rows, draft, limits, vocab)
        return draft, tree_masks(batch, rows, torch.cat([last, draft.tokens], 1), draft.tree, vocab), None

    def _verify(
        self,
        logits: Tensor,
        tokens: Tensor,
        draft: DraftTokens,
        limits: list[int],
        params: SamplingParams | None,
        uniforms: Tensor | None,
    ) -> tuple[list[VerifyResult], list[int]]:
        """Return each row's result and the number of tokens drafted for it.

        In `uniforms`, the numbers of the draft come first, then one that samples the next token, then one per node.
        """
        nodes, width = self.draft_shape.max_tokens, tokens.shape[1]
        if draft.tree is not None:
            drawn = None if uniforms is None else uniforms[:, nodes : nodes + width]
            results = self.verifier.tree(logits, tokens, draft.tree, limits, params, draft.probs, drawn, self._typical)
            return results, draft.tree.count(limits)
        lens = [min(pair) for pair in zip(limits, draft.lens or [width - 1] * len(limits), strict=True)]
        drawn = None
        if uniforms is not None:
            drawn = torch.cat([uniforms[:, nodes + 1 : nodes + width], uniforms[:, nodes : nodes + 1]], 1)
        verify = self.verifier.block if self.settings.verify == "block" else self.verifier.chain
        return verify(logits, tokens[:, 1:], lens, params, draft.probs, drawn), lens

    def _sampling_params(self, batch: Sequence[RunningRequest]) -> SamplingParams | None:
        """Return the sampling parameters of the rows, or None if all are greedy."""
        if not any(running.samples for running in batch):
            return None
        how = [running.request.sampling for running in batch]
        temperature = [s.temperature if running.samples else 0.0 for s, running in zip(how, batch, strict=True)]
        device = self.target.device
        cut = [row for row, s in enumerate(how) if temperature[row] and (s.top_k or s.top_p < 1.0)]
        return SamplingParams(
            torch.tensor(temperature, device=device),
            torch.tensor([s.top_k for s in how], device=device),
            torch.tensor([s.top_p for s in how], device=device),
            truncates=bool(cut),
            mixed=not all(running.samples for running in batch),
            truncated=torch.tensor(cut, device=device) if len(cut) < len(batch) else None,
        )

    def _draft_sampling(
        self, batch: Sequence[RunningRequest], params: SamplingParams | None, uniforms: Tensor | None, rows: list[int]
    ) -> DraftSampling | None:
        """Return the draft sampling of some rows, from the parameters and uniforms of the whole batch."""
        nodes = self.draft_shape.max_tokens
        if params is None or uniforms is None:
            return None
        if rows == [*range(len(batch))]:
            return DraftSampling(params, uniforms[:, :nodes])
        row_params = self._sampling_params([batch[row] for row in rows])
        return DraftSampling(row_params, uniforms[rows, :nodes]) if row_params else None


def _progress(
    batch: Sequence[RunningRequest],
    tokens: Sequence[Sequence[int]],
    drafted: Sequence[int],
    results: Sequence[VerifyResult],
    logits: Tensor,
) -> list[DecodingStep]:
    """Return the decoding step of each row.

    `tokens` are by row and node, `drafted` counts each row's drafted tokens, and `logits` are [rows, nodes, vocab].
    """
    progress = []
    for row, (running, result) in enumerate(zip(batch, results, strict=True)):
        accepted = [tokens[row][node] for node in result.path]
        scores = None
        if running.request.scored:
            scores = score(running.request, logits[row, [0, *result.path]], [*accepted, result.token])
        progress.append(DecodingStep(drafted[row], accepted, result.token, scores))
    return progress


def _moves(starts: list[int], results: list[VerifyResult]) -> list[tuple[int, int, int]]:
    """Return moves (row, from, to) of the accepted nodes' keys from positions by node number to positions by depth."""
    return [
        (row, starts[row] + node, starts[row] + depth)
        for row, result in enumerate(results)
        for depth, node in enumerate(result.path, 1)
        if node != depth
    ]


def _check_pair(model: Decoder, drafter: Drafter, settings: EngineSettings) -> None:
    limit = model.config.positions(EXTENDED_ROPE_KINDS, keeps_windows=True)
    if settings.max_seq_len > limit:
        raise TrtspecError(f"max_seq_len {settings.max_seq_len} is more than the target's {limit} positions")
    vocab = drafter.vocab_size
    if vocab not in (None, model.config.vocab_size):
        raise TrtspecError(f"the draft has {vocab} vocabulary entries, the target {model.config.vocab_size}")
