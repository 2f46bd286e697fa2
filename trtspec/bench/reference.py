# SPDX-License-Identifier: Apache-2.0
"""Load an artifact's source with transformers as the reference for `verify`.

Reads only the source directory and uses none of trtspec's readers, so that errors in them show up as differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.checkpoints.rendered_text import RenderedText
from trtspec.core.errors import TrtspecError
from trtspec.engine.prompts.prompt import Prompt

if TYPE_CHECKING:
    import torch

# Largest relative rounding error of a type: half the distance between neighbouring numbers near 1.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Reference:
    """A source model in float32 with its tokenizer and generation settings."""

    def __init__(self, source: Path) -> None:
        import torch
        import transformers

        untyped: Any = transformers
        untyped.utils.logging.disable_progress_bar()
        self.tokenizer: Any = _load_tokenizer(source)
        self.model = untyped.AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32).eval()
        self.end_ids = self._end_ids(source)

    def _end_ids(self, source: Path) -> frozenset[int]:
        """Return transformers' end ids, falling back to the tokenizer's EOS token without a generation_config.json."""
        found = self.model.generation_config.eos_token_id
        if found in (None, []) and not (source / "generation_config.json").exists():
            found = self.tokenizer.eos_token_id
        return frozenset(found if isinstance(found, list) else [] if found is None else [found])

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return a prompt's tokens, using the chat template for messages and the tokenizer alone for a text."""
        if prompt.messages and self.tokenizer.chat_template:
            messages = [dict(message) for message in prompt.messages]
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            return list(self.tokenizer(text, add_special_tokens=False).input_ids)
        is_rendered = isinstance(prompt.text, RenderedText)  # a rendered chat already contains its special tokens
        return list(self.tokenizer(str(prompt.text), add_special_tokens=not is_rendered).input_ids)

    def logits(self, before: Sequence[int], text: Sequence[int]) -> torch.Tensor:
        """Return the logits [len(text) + 1, vocabulary] for each position of a text and the one after it."""
        import torch

        ids = torch.tensor([[*before, *text]])
        with torch.inference_mode():
            found: torch.Tensor = self.model(ids).logits[0, len(before) - 1 :]
        return found

    def scores(self, before: Sequence[int], text: Sequence[int]) -> torch.Tensor:
        """Return the logits like `logits`, after the logits processors of the source's generation_config.json.

        Rows after an end id are missing, because `generate` stops there.
        """
        import torch

        ids, rows = torch.tensor([[*before]]), []

        def follow(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """Record the scores of a position and mask all tokens except the text's."""
            rows.append(scores[0].clone())
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
        """Round the weights to a dtype in place; return whether any changed."""
        import torch

        changed = False
        for weight in self.model.parameters():
            rounded = weight.data.to(getattr(torch, dtype)).to(weight.dtype)
            changed |= not torch.equal(rounded, weight.data)
            weight.data = rounded
        return changed

    def rounding_limit(self, logits: torch.Tensor, dtype: str) -> float:
        """Return the largest logit difference that rounding the weights to `dtype` explains; `logits` is [vocabulary].

        The two blocks of each layer, the embedding and the head round independently, so the errors grow with the square
        root of their number. Each error is at most the type's rounding error relative to the spread of the logits.
        """
        layers = int(getattr(self.model.config.get_text_config(decoder=True), "num_hidden_layers", 1))
        finite = logits[logits.isfinite()]  # ignore tokens excluded by a logits processor
        spread = float(finite.max() - finite.min())
        return ROUNDING.get(dtype, 0.0) * math.sqrt(2 * layers + 2) * spread


def _load_tokenizer(source: Path) -> Any:
    """Return AutoTokenizer's tokenizer, or the plain tokenizer.json one if that needs code from the repository."""
    import transformers

    untyped: Any = transformers
    problems = []
    for kind in (untyped.AutoTokenizer, untyped.PreTrainedTokenizerFast):
        try:
            return kind.from_pretrained(str(source))
        except Exception as error:  # files of the source can make it raise anything
            problems.append(str(error).splitlines()[0][:300] if str(error) else type(error).__name__)
    message = f"transformers cannot load the tokenizer of the source: {problems[0]}"
    raise TrtspecError(message, where=str(source), hint="load it with AutoTokenizer to see the full error")
