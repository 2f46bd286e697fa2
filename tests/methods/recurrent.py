# SPDX-License-Identifier: Apache-2.0
"""Sources of recurrent drafters, random and fitted to a model's texts, and a reference implementation of their formula.

The formula follows apple/ml-recurrent-drafter, recurrent_drafting/modeling_drafter.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests._support.tiny import SHAPE, convert
from trtspec.methods.draft_head import load_head

Tensors = dict[str, Tensor]
HIDDEN, VOCAB = SHAPE["hidden_size"], SHAPE["vocab_size"]
# The three generations of names, of the head and of the first layer.
GENERATIONS = {"newest": ("lm_head", "input_proj"), "older": ("lm_heads", "input_projs"), "oldest": ("0", "input_proj")}
IMPOSSIBLE = -50000.0


@dataclass(frozen=True)
class Drafter:
    """A drafter's sizes and tensors, with the newest names."""

    tensors: Tensors
    num_layers: int
    rnn: bool
    exit_dim: int
    hidden: int
    vocab: int

    def beams(self, embedding: Tensor, context: Tensor, last: int, width: int, length: int) -> list[tuple[int, ...]]:
        """Return the best `width` drafts of `length` tokens after a text that ends with `last`."""
        texts, scores = [(last,)] * width, torch.tensor([0.0] + [IMPOSSIBLE] * (width - 1))
        states = torch.zeros(width, self.hidden)
        for _ in range(length):
            states = self.advance(states, embedding[[text[-1] for text in texts]])
            logits = self.logits(context.expand(width, -1), states)
            logits = logits - logits.amax(-1, keepdim=True)
            least = logits.topk(min(50, self.vocab)).values[:, -1:]
            logits = logits.masked_fill(logits < least, IMPOSSIBLE)
            totals = (logits.log_softmax(-1) + scores.unsqueeze(1)).flatten()
            scores, picked = totals.topk(width)
            states = states[picked // self.vocab]
            texts = [(*texts[place // self.vocab], place % self.vocab) for place in picked.tolist()]
        return [text[1:] for text in texts]

    def advance(self, states: Tensor, embedded: Tensor) -> Tensor:
        """Return the states [n, hidden] after embedded tokens [n, hidden]."""
        if not self.rnn:
            return states + embedded
        wide = {name: tensor.float() for name, tensor in self.tensors.items() if name.startswith("rnn")}
        recurrent = F.linear(states, wide["rnn_u.weight"], wide["rnn_u.bias"])
        return F.silu(F.linear(embedded, wide["rnn_w.weight"]) + recurrent)

    def reached(self, contexts: Tensor, states: Tensor) -> Tensor:
        """Return the input of the last matrix [n, exit_dim]."""
        wide = {name: tensor.float() for name, tensor in self.tensors.items()}
        hidden = torch.cat([contexts, states], -1)
        if "input_proj.weight" in wide:
            hidden = F.linear(hidden, wide["input_proj.weight"], wide["input_proj.bias"])
        for layer in range(self.num_layers):
            name = f"lm_head.{layer}.linear"
            hidden = hidden + F.silu(F.linear(hidden, wide[f"{name}.weight"], wide[f"{name}.bias"]))
        return hidden

    def logits(self, contexts: Tensor, states: Tensor) -> Tensor:
        """Return logits [n, vocab]."""
        return self.reached(contexts, states) @ self.tensors[f"lm_head.{self.num_layers}.weight"].float().T

    def save(self, root: Path, generation: str = "newest", **config: Any) -> Path:
        """Save the drafter with the names of a generation."""
        stack, projection = GENERATIONS[generation]
        renamed = {
            name.replace("lm_head.", f"{stack}.").replace("input_proj.", f"{projection}."): tensor
            for name, tensor in self.tensors.items()
        }
        said = {"vocab_size": self.vocab, "hidden_size": self.hidden, "exit_dim": self.exit_dim, "rnn": self.rnn,
                "num_draft_layers": self.num_layers, "num_lookback_tokens": 4}  # fmt: skip
        root.mkdir(parents=True)
        (root / "config.json").write_text(json.dumps({"model_type": "recurrent_drafting_drafter", **said, **config}))
        save_file(renamed, root / "model.safetensors")
        return root


def random_drafter(
    num_layers: int = 1, rnn: bool = True, exit_dim: int = 48, hidden: int = HIDDEN, vocab: int = VOCAB, seed: int = 5
) -> Drafter:
    """Return a random drafter, without an input projection if `exit_dim` is twice `hidden`."""
    draw = torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=draw) * shape[-1] ** -0.5).bfloat16()

    tensors = {f"lm_head.{num_layers}.weight": tensor(vocab, exit_dim) * 3}
    for layer in range(num_layers):
        tensors[f"lm_head.{layer}.linear.weight"] = tensor(exit_dim, exit_dim)
        tensors[f"lm_head.{layer}.linear.bias"] = tensor(exit_dim)
    if exit_dim != 2 * hidden:
        tensors |= {"input_proj.weight": tensor(exit_dim, 2 * hidden), "input_proj.bias": tensor(exit_dim)}
    if rnn:
        tensors |= {"rnn_u.weight": tensor(hidden, hidden), "rnn_u.bias": tensor(hidden) * 5}
        tensors |= {"rnn_w.weight": tensor(hidden, hidden)}
    return Drafter(tensors, num_layers, rnn, exit_dim, hidden, vocab)


def knowing_drafter(drafter: Drafter, model: Any, texts: Sequence[Sequence[int]], length: int) -> Drafter:
    """Return the drafter with its last matrix fitted by least squares to the next tokens of the texts."""
    embedding = model.get_input_embeddings().weight.detach()
    reached, follows = [], []
    for text in texts:
        contexts = hidden_states(model, text)
        states = torch.zeros(len(text), drafter.hidden)
        for step in range(1, length + 1):
            # after position t the token at t + 1 is known, and t + 2, t + 3, ... are drafted
            places = len(text) - step - 1
            states = drafter.advance(states[:places], embedding[torch.tensor(text[step : step + places])])
            reached.append(drafter.reached(contexts[:places], states))
            follows.append(torch.tensor(text[step + 1 : step + 1 + places]))
    wanted = F.one_hot(torch.cat(follows), drafter.vocab).float()
    fitted = torch.linalg.lstsq(torch.cat(reached), wanted).solution * 10
    name = f"lm_head.{drafter.num_layers}.weight"
    return replace(drafter, tensors=drafter.tensors | {name: fitted.T.contiguous().bfloat16()})


@torch.inference_mode()
def hidden_states(model: Any, text: Sequence[int]) -> Tensor:
    """Return transformers' hidden states after the final norm [len(text), hidden]."""
    states: Tensor = model.model(torch.tensor([list(text)])).last_hidden_state[0]
    return states.clone()


def convert_with(
    source: Path, head_root: Path, out: Path, options: dict[str, Any] | None = None, draft_len: int = 3, **how: Any
) -> Path:
    """Convert a model together with the drafter at `head_root`."""
    return convert(
        source, out, load_head=lambda model: load_head(head_root, "redrafter", options or {}, model, draft_len), **how
    )
