# SPDX-License-Identifier: Apache-2.0
"""The source of an artifact, as transformers loads and tokenizes it: what `verify` compares an artifact with.

Reads the source's directory only and uses none of our readers, so that their mistakes show as differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.checkpoints.rendered_text import Rendered
from trtspec.core.errors import TrtspecError
from trtspec.engine.prompts.prompt import Prompt

if TYPE_CHECKING:
    import torch

# Half the distance between two neighbouring numbers near 1: the largest relative error of rounding to a type.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Reference:
    """A source in float32, its tokenizer, and its generation settings."""

    def __init__(self, source: Path) -> None:
        import torch
        import transformers

        untyped: Any = transformers
        untyped.utils.logging.disable_progress_bar()
        self.tokenizer: Any = _load_tokenizer(source)
        self.model = untyped.AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32).eval()
        self.end_ids = self._end_ids(source)

    def _end_ids(self, source: Path) -> frozenset[int]:
        """Return transformers' end ids; without any and without a generation_config.json the tokenizer's eos token."""
        found = self.model.generation_config.eos_token_id
        if found in (None, []) and not (source / "generation_config.json").exists():
            found = self.tokenizer.eos_token_id
        return frozenset(found if isinstance(found, list) else [] if found is None else [found])

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt: of messages by the chat template, of a text by the tokenizer alone."""
        if prompt.messages and self.tokenizer.chat_template:
            messages = [dict(message) for message in prompt.messages]
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            return list(self.tokenizer(text, add_special_tokens=False).input_ids)
        is_rendered = isinstance(prompt.text, Rendered)  # a chat has its special tokens in the text
        return list(self.tokenizer(str(prompt.text), add_special_tokens=not is_rendered).input_ids)

    def logits(self, before: Sequence[int], text: Sequence[int]) -> torch.Tensor:
        """Return the logits [len(text) + 1, vocabulary] of each place of a text, and of the place behind it."""
        import torch

        ids = torch.tensor([[*before, *text]])
        with torch.inference_mode():
            found: torch.Tensor = self.model(ids).logits[0, len(before) - 1 :]
        return found

    def scores(self, before: Sequence[int], text: Sequence[int]) -> torch.Tensor:
        """Return the same by `generate`, after the logits processors of the source's generation_config.json.

        Rows behind an end id are missing: `generate` stops there.
        """
        import torch

        ids, rows = torch.tensor([[*before]]), []

        def follow(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """Note the scores of a place, and leave only the token of the text."""
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
        """Round the weights to a type, for good; return whether that changes any."""
        import torch

        changed = False
        for weight in self.model.parameters():
            rounded = weight.data.to(getattr(torch, dtype)).to(weight.dtype)
            changed |= not torch.equal(rounded, weight.data)
            weight.data = rounded
        return changed

    def rounding_limit(self, logits: torch.Tensor, dtype: str) -> float:
        """Return how far rounding the weights to `dtype` may move logits [vocabulary] apart.

        Each of the layers' two blocks and the two ends rounds independently, so the errors add up by the root of their
        number; each is at most the rounding of the type, relative to the spread of the logits.
        """
        layers = int(getattr(self.model.config.get_text_config(decoder=True), "num_hidden_layers", 1))
        finite = logits[logits.isfinite()]  # without tokens that a logits processor excludes
        spread = float(finite.max() - finite.min())
        return ROUNDING.get(dtype, 0.0) * math.sqrt(2 * layers + 2) * spread


def _load_tokenizer(source: Path) -> Any:
    """Return AutoTokenizer's, or where that needs code of the repository the plain one of tokenizer.json."""
    import transformers

    untyped: Any = transformers
    problems = []
    for kind in (untyped.AutoTokenizer, untyped.PreTrainedTokenizerFast):
        try:
            return kind.from_pretrained(str(source))
        except Exception as error:  # whatever a file of the source makes it raise
            problems.append(str(error).splitlines()[0][:300] if str(error) else type(error).__name__)
    message = f"transformers cannot load the tokenizer of the source: {problems[0]}"
    raise TrtspecError(message, where=str(source), hint="load it once with AutoTokenizer to see the whole error")
