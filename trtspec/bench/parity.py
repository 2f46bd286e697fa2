# SPDX-License-Identifier: Apache-2.0
"""Comparison of an artifact's text with its source model, which is run by transformers.

One forward pass over prompt and response shows, for each token, the source model's greedy choice after the preceding
text. `Reference` reads only the source directory and none of trtspec's readers, so that errors of these readers show up
as differences in the prompt tokens, the end ids or the text.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.bench.artifact import TARGET, OpenArtifact
from trtspec.bench.gates import VerificationCheck
from trtspec.checkpoints.prequantized import source_format
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.tokenizer import RenderedText
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineResult
from trtspec.engine.prompts.prompt import Prompt

if TYPE_CHECKING:
    import torch


# Largest relative rounding error of a dtype: half the distance between adjacent numbers near 1.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
# Two float32 implementations differ by about 1e-5 in a logit; a smaller lead than this counts as a tie.
TIE = 1e-3
END, NAN = -1, float("nan")  # end of text with an unknown id; logit that is not compared
SHOWN = 5  # maximum listed differences and ties
OnProgress = Callable[[str, int, int], None]


class Reference:
    """A source model in float32 with its tokenizer and generation settings; on a GPU if the GPU has enough memory."""

    def __init__(self, source: Path) -> None:
        import torch
        import transformers

        untyped: Any = transformers
        untyped.utils.logging.disable_progress_bar()
        self.tokenizer: Any = _load_tokenizer(source)
        model = untyped.AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32).eval()
        self.device = _device_for(model)
        self.model = model.to(self.device)
        self.end_ids = self._end_ids(source)

    def _end_ids(self, source: Path) -> frozenset[int]:
        """Return the end ids that transformers uses; without a generation_config.json, the tokenizer's EOS token."""
        found = self.model.generation_config.eos_token_id
        if found in (None, []) and not (source / "generation_config.json").exists():
            found = self.tokenizer.eos_token_id
        return frozenset(found if isinstance(found, list) else [] if found is None else [found])

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt, with the chat template for messages and the tokenizer alone for plain text."""
        if prompt.messages and self.tokenizer.chat_template:
            messages = [dict(message) for message in prompt.messages]
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            return list(self.tokenizer(text, add_special_tokens=False).input_ids)
        is_rendered = isinstance(prompt.text, RenderedText)  # a rendered chat contains special tokens
        return list(self.tokenizer(str(prompt.text), add_special_tokens=not is_rendered).input_ids)

    def logits(self, before: Sequence[int], text: Sequence[int]) -> torch.Tensor:
        """Return the logits [len(text) + 1, vocab] for each position of a text and the position after it."""
        import torch

        ids = torch.tensor([[*before, *text]], device=self.device)
        with torch.inference_mode():
            found: torch.Tensor = self.model(ids).logits[0, len(before) - 1 :]
        return found.float().cpu()

    def scores(self, before: Sequence[int], text: Sequence[int]) -> torch.Tensor:
        """Return the logits as in `logits`, processed by the logits processors of the source's generation_config.json.

        Rows after an end id are missing, because `generate` stops there.
        """
        import torch

        ids, rows = torch.tensor([[*before]], device=self.device), []

        def follow(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """Record the scores of a position and mask all tokens except the text's."""
            rows.append(scores[0].float().cpu())
            only = torch.full_like(scores, -math.inf)
            only[:, text[min(len(rows), len(text)) - 1] if text else 0] = 0.0
            return only

        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[follow],
            max_new_tokens=len(text) + 1,
            do_sample=False,
            num_beams=1,
            pad_token_id=0,
        )
        return torch.stack(rows)

    def round_weights(self, dtype: str) -> bool:
        """Round the weights to a dtype in place; return True if any weight changed."""
        import torch

        changed = False
        for weight in self.model.parameters():
            rounded = weight.data.to(getattr(torch, dtype)).to(weight.dtype)
            changed |= not torch.equal(rounded, weight.data)
            weight.data = rounded
        return changed

    def compute_in(self, dtype: str) -> None:
        """Convert the weights to a dtype in place, so that the model computes in that dtype."""
        import torch

        self.model = self.model.to(getattr(torch, dtype))

    def rounding_limit(self, logits: torch.Tensor, dtype: str) -> float:
        """Return the largest logit difference that rounding to `dtype` can explain; `logits` has the shape [vocab].

        The two blocks of each layer, the embedding and the LM head round independently, so the error grows with the
        square root of their number. Each error is at most the dtype's rounding error relative to the spread of the
        logits.
        """
        layers = int(getattr(self.model.config.get_text_config(decoder=True), "num_hidden_layers", 1))
        finite = logits[logits.isfinite()]  # a logits processor masks tokens with -inf
        spread = float(finite.max() - finite.min())
        return ROUNDING.get(dtype, 0.0) * math.sqrt(2 * layers + 2) * spread


def _device_for(model: Any) -> torch.device:
    """Return the GPU if its free memory is at least 1.5 times the model's size, else the CPU."""
    import torch

    needed = 1.5 * sum(weight.nbytes for weight in model.parameters())
    fits = torch.cuda.is_available() and torch.cuda.mem_get_info()[0] > needed
    return torch.device("cuda" if fits else "cpu")


def _load_tokenizer(source: Path) -> Any:
    """Return AutoTokenizer's tokenizer or, if that fails, the plain tokenizer of tokenizer.json."""
    import transformers

    untyped: Any = transformers
    problems = []
    for kind in (untyped.AutoTokenizer, untyped.PreTrainedTokenizerFast):
        try:
            return kind.from_pretrained(str(source))
        except Exception as error:  # depends on the source's files
            problems.append(str(error).splitlines()[0][:300] if str(error) else type(error).__name__)
    message = f"transformers cannot load the tokenizer of the source: {problems[0]}"
    raise TrtspecError(message, where=str(source), hint="load it with AutoTokenizer to see the full error")


@dataclass(frozen=True)
class _Disagreement:
    """A position at which the source model prefers another token than the artifact, with its logits of both tokens."""

    place: int
    theirs: int
    ours: int
    their_logit: float
    our_logit: float
    reason: str = ""  # why equal tokens count as different
    rounding: str = ""  # the rounding that explains the difference, or ""

    @property
    def lead(self) -> float:
        return self.their_logit - self.our_logit

    @property
    def is_tie(self) -> bool:
        return self.lead <= TIE or bool(self.rounding)  # comparisons with NaN are False

    def __str__(self) -> str:
        if self.reason:
            ours = "the artifact ends the text" if self.ours == END else f"the artifact continues with {self.ours}"
            return f"token {self.place}: {ours}, but {self.reason} (source: {self.theirs})"
        rounding = f", explained by {self.rounding}" if self.rounding else ""
        return (
            f"token {self.place}: the source prefers {self.theirs} (logit {self.their_logit:.6f})"
            f" to {self.ours} ({self.our_logit:.6f}){rounding}"
        )


@dataclass(frozen=True)
class _Compared:
    """Comparison of one response with the source model's greedy choices."""

    prompt: str
    places: int  # number of compared positions
    disagreements: list[_Disagreement]
    others: tuple[str, ...] = ()  # differences in prompt tokens or end ids
    before: tuple[int, ...] = ()  # prompt tokens according to transformers

    @property
    def agrees(self) -> bool:
        return not self.others and all(each.is_tie for each in self.disagreements)


def check_parity(
    artifact: OpenArtifact,
    source: Path,
    prompts: Sequence[Prompt],
    results: Sequence[EngineResult],
    on_progress: OnProgress,
) -> VerificationCheck:
    """Compare each generated token with the source model's greedy choice, and prompt tokens with transformers'."""
    reference = Reference(source)
    compared, texts = [], list(zip(prompts, results, strict=True))
    for number, (prompt, result) in enumerate(texts, 1):
        compared.append(_compare(artifact, reference, prompt, result))
        on_progress("parity", number, len(prompts))
    checkpoint = load_checkpoint(artifact.root / TARGET)
    limit, served = artifact.recipe.gates.quantized_parity, str(checkpoint.config.dtype)
    if checkpoint.quantization.algo and _may_be_quantized(artifact, source):
        return _quantized_parity(checkpoint.quantization.algo, compared, limit)
    computed = str(artifact.engine.speculator.target.dtype).removeprefix("torch.")
    differs = any(not each.is_tie for answer in compared for each in answer.disagreements)
    if differs and computed in ROUNDING:
        compared = _judge_arithmetic(artifact, compared, reference, results, computed)
    elif differs and reference.round_weights(served):
        compared = [
            _judge_rounding(artifact, answer, reference, result, served)
            for answer, (_, result) in zip(compared, texts, strict=True)
        ]
    return _exact_parity(compared)


def _may_be_quantized(artifact: OpenArtifact, source: Path) -> bool:
    """Return True if the recipe or the source requests quantization, independently of the converted checkpoint."""
    wanted = artifact.recipe.target.quantization
    found = source_format(load_source(source))
    return {wanted.weights, wanted.kv_cache, found.weights, found.kv_cache} != {"none"}


def _exact_parity(compared: Sequence[_Compared]) -> VerificationCheck:
    """Require every text to match the source model's choices, except for numerical ties."""
    found = [(answer.prompt, each) for answer in compared for each in answer.disagreements]
    same = sum(answer.places > 0 and answer.agrees for answer in compared)
    detail = f"{same} of {len(compared)} texts match greedy transformers output from the source model"
    differences = _other_differences(compared)
    differences += [f"prompt {name} {each}" for name, each in found if not each.is_tie]
    ties = [f"prompt {name} {each}" for name, each in found if each.is_tie]
    for what, texts in (("differences", differences), ("numerical ties", ties)):
        detail += f"; {len(texts)} {what}: " + ", ".join(texts[:SHOWN]) if texts else ""
    if empty := [answer.prompt for answer in compared if not answer.places]:
        detail += f"; {len(empty)} empty responses: prompt " + ", ".join(empty[:SHOWN])
    return VerificationCheck("parity", same == len(compared), same, len(compared), detail)


def _other_differences(compared: Sequence[_Compared]) -> list[str]:
    """Return the differences in prompt tokens and end ids; one that several prompts share is listed once."""
    found: dict[str, list[str]] = {}
    for answer in compared:
        for each in answer.others:
            found.setdefault(each, []).append(answer.prompt)
    return [f"prompt {names[0]}: {each}" if len(names) == 1 else each for each, names in found.items()]


def _quantized_parity(algorithm: str, compared: Sequence[_Compared], limit: float) -> VerificationCheck:
    """Require that the share of a quantized target's tokens that match the source's choice reaches `limit`."""
    places = sum(answer.places for answer in compared)
    if not places:
        detail = f"not compared: the {algorithm} target generated no token for any of {len(compared)} prompts"
        return VerificationCheck("parity", False, 0.0, limit, detail, gate="quantized_parity")
    leads = [each.lead for answer in compared for each in answer.disagreements]
    share = 1 - len(leads) / places
    detail = f"{share:.1%} of {places} tokens of the {algorithm} target match the unquantized source's choice"
    if compared_leads := [each for each in leads if not math.isnan(each)]:  # ends of texts lack logits
        median = statistics.median(compared_leads)
        detail += f"; elsewhere the source prefers its token by a median logit difference of {median:.3f}"
    detail += f"; required: {limit:.1%}"
    others = _other_differences(compared)
    detail += f"; {len(others)} differences: " + ", ".join(others[:SHOWN]) if others else ""
    return VerificationCheck(
        "parity", share >= limit and not others, round(share, 4), limit, detail, gate="quantized_parity"
    )


def _compare(artifact: OpenArtifact, reference: Reference, prompt: Prompt, result: EngineResult) -> _Compared:
    """Compare one response with the source model's greedy choices; ending the text counts as a token."""
    before, ours = reference.prompt_ids(prompt), artifact.tokenizer.encode(prompt.text)
    logits = _logits(artifact, reference, before, result)
    chosen = [*result.ids, *([END] if result.finish_reason == "end_id" else [])]
    pairs = enumerate(zip(logits.argmax(-1).tolist(), chosen, strict=False))
    found = [each for place, (theirs, own) in pairs if (each := _differs(reference, logits, place, theirs, own))]
    others: tuple[str, ...] = () if before == ours else (_first_difference(before, ours),)
    if {*artifact.tokenizer.end_ids} != reference.end_ids:
        others += (f"end ids are {_ids(artifact.tokenizer.end_ids)} here, {_ids(reference.end_ids)} in transformers",)
    return _Compared(prompt.name, len(chosen), found, others, tuple(before))


def _differs(reference: Reference, logits: torch.Tensor, place: int, theirs: int, ours: int) -> _Disagreement | None:
    """Return the disagreement at a position, or None if the choices agree; `END` stands for any end id."""
    ends = theirs in reference.end_ids
    if ours == END:
        if ends:
            return None
        if not reference.end_ids:
            return _Disagreement(place, theirs, ours, float(logits[place, theirs]), NAN, "the source lacks end ids")
        ours = max(reference.end_ids, key=lambda token: float(logits[place, token]))
    elif ours == theirs:
        if not ends:
            return None
        return _Disagreement(place, theirs, ours, float(logits[place, theirs]), NAN, "the source ends the text there")
    return _Disagreement(place, theirs, ours, float(logits[place, theirs]), float(logits[place, ours]))


def _logits(artifact: OpenArtifact, reference: Reference, before: Sequence[int], result: EngineResult) -> torch.Tensor:
    """Return the source's logits for a response, with its generation_config's penalties if the recipe uses them."""
    follow = reference.scores if artifact.takes_model_defaults else reference.logits
    return follow(before, result.ids)


def _judge_rounding(
    artifact: OpenArtifact, answer: _Compared, reference: Reference, result: EngineResult, served: str
) -> _Compared:
    """Mark the disagreements that vanish if the source's weights are rounded to `served`.

    The lead of the other token must also be within the error of that rounding. If the dtype cannot represent the
    source's values, the rounded source is a different model, even if both outputs agree.
    """
    if all(each.is_tie for each in answer.disagreements):
        return answer
    rounded, judged = _logits(artifact, reference, answer.before, result), []
    for each in answer.disagreements:
        row = rounded[each.place]
        agrees = each.ours != END and float(row.max() - row[each.ours]) <= TIE
        limit = reference.rounding_limit(row, served)
        explained = f"rounding its weights to {served}" if agrees and each.lead <= limit else ""
        judged.append(replace(each, rounding=explained))
    return replace(answer, disagreements=judged)


def _judge_arithmetic(
    artifact: OpenArtifact,
    compared: Sequence[_Compared],
    reference: Reference,
    results: Sequence[EngineResult],
    dtype: str,
) -> list[_Compared]:
    """Mark the disagreements that the rounding of an engine that computes in `dtype` explains.

    The source model is run in that dtype too. The largest error of its logits at a position may occur in the engine's
    logits of both tokens, so a lead of up to twice this error is a tie. The lead must also be within four times
    `rounding_limit`, because a block rounds its values about five times and both logits are affected.
    """
    differing = [
        number for number, answer in enumerate(compared) if not all(each.is_tie for each in answer.disagreements)
    ]
    exact = [
        _logits(artifact, reference, compared[number].before, results[number])[
            [each.place for each in compared[number].disagreements]
        ]
        for number in differing
    ]
    reference.compute_in(dtype)
    found = [*compared]
    for number, rows in zip(differing, exact, strict=True):
        answer = compared[number]
        rough, judged = _logits(artifact, reference, answer.before, results[number]), []
        for each, row in zip(answer.disagreements, rows, strict=True):
            limit = min(2 * _largest_error(rough[each.place], row), 4 * reference.rounding_limit(row, dtype))
            judged.append(replace(each, rounding=f"computing in {dtype}" if each.lead <= limit else ""))
        found[number] = replace(answer, disagreements=judged)
    return found


def _largest_error(rough: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest absolute difference of two rows of logits, ignoring masked tokens; NaN propagates."""
    return float((rough - exact)[exact.isfinite()].abs().max())


def _first_difference(theirs: Sequence[int], ours: Sequence[int]) -> str:
    pairs = enumerate(zip_longest(theirs, ours))
    place = next(place for place, (one, other) in pairs if one != other)
    shown = [" ".join(map(str, ids[place : place + SHOWN])) or "none" for ids in (ours, theirs)]
    return (
        f"its {len(ours)} tokens differ from transformers' {len(theirs)}: from token {place}, {shown[0]}"
        f" instead of {shown[1]}"
    )


def _ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"
