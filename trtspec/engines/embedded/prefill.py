# SPDX-License-Identifier: Apache-2.0
"""Take prompts of different lengths into a decoder's cache, in chunks of a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trtspec.engines.embedded.decoder import Decoder


def prefill(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    first_row: int,
    max_tokens: int,
    taps: Sequence[int] = (),
    on_features: Callable[[Tensor, int], None] = lambda features, start: None,
) -> Tensor:
    """Fill rows `first_row`, ... with the prompts; returns the logits [len(prompts), vocab] after each.

    Shorter prompts are padded on the right: what stands beyond a row's end is masked until it is written for real.
    With `taps`, `on_features` gets the hidden states [rows, width, taps * hidden] of each chunk and where it starts.
    """
    longest, rows = max(map(len, prompts)), len(prompts)
    padded = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=model.device)
    last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=model.device)
    width = max(1, max_tokens // rows)
    logits: Tensor | None = None
    for start in range(0, longest, width):
        chunk = padded[:, start : start + width]
        window = model.windows.chain([start] * rows, chunk.shape[1], first_row)
        at = (last - start).clamp(0, chunk.shape[1] - 1) + torch.arange(rows, device=model.device) * chunk.shape[1]
        here, features = model.tapped(chunk, window, taps, at)
        if features is not None:
            on_features(features.view(rows, chunk.shape[1], -1), start)
        ends_here = ((last >= start) & (last < start + chunk.shape[1])).unsqueeze(1)
        logits = here if logits is None else torch.where(ends_here, here, logits)
    if logits is None:
        raise ValueError("a prompt has at least one token")
    return logits
