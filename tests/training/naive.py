# SPDX-License-Identifier: Apache-2.0
"""Reference implementations of drafts and losses in float64 with plain formulas, one place and pass at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tests._support.tiny import reference_model
from tests.methods import block_nets
from tests.methods.eagle3_heads import formula_of, random_head
from trtspec.training.texts import TrainingText
from trtspec.training.trainable import STEP_WEIGHT
from trtspec.training.trainer import LOSSES

States = dict[str, Tensor]


class Naive(Protocol):
    """A draft; `parameters` have the names of its source."""

    passes: int
    parameters: dict[str, Tensor]

    def __call__(self, text: TrainingText, place: int, step: int) -> Tensor:
        """Return the logits of pass `step` of the chain that starts at a place of a text."""


def naive_loss(naive: Any, target: Sequence[Tensor], texts: Sequence[TrainingText], name: Any) -> Tensor:
    """Return the summed losses of all places and passes; `target` are its logits for each text."""
    by_pass: dict[int, list[Tensor]] = {}
    drafted = getattr(naive, "drafted", None)
    for text, logits in zip(texts, target, strict=True):
        first = len(text.prompt)
        for place in range(first, len(text.tokens) - 1):
            for step in range(naive.passes):
                wanted = logits[place - first]
                if place - step >= first and (drafted is None or int(wanted.argmax()) in drafted.tolist()):
                    wanted = wanted if drafted is None else wanted[drafted]
                    said = naive(text, place - step, step)
                    loss = LOSSES[name](said[None], wanted[None])
                    if hasattr(naive, "confidence"):
                        loss = loss + naive_surprise(naive.confidence(text, place - step, step), said, wanted)
                    by_pass.setdefault(step, []).append(loss)
    means = {step: torch.stack(losses).mean() for step, losses in by_pass.items()}
    weights = {step: STEP_WEIGHT**step for step in means}
    total: Tensor = sum(weights[step] * means[step] for step in means) / sum(weights.values())
    return total


def naive_surprise(sure: Tensor, said: Tensor, wanted: Tensor) -> Tensor:
    """Return the loss of a confidence if a token drawn from `said` is accepted with the overlap's probability."""
    accepted = 1 - (said.softmax(-1) - wanted.softmax(-1)).abs().sum().detach() / 2
    return -(accepted * sure.log() + (1 - accepted) * (1 - sure).log())


class NaiveModel:
    """The transformers model, called for each place separately."""

    passes = 1

    def __init__(self, root: Path, source: Path, states: States) -> None:
        self.model = reference_model(source, "float64")
        self.parameters = dict(self.model.named_parameters())

    def __call__(self, text: TrainingText, place: int, step: int) -> Tensor:
        logits: Tensor = self.model(torch.tensor([text.tokens[: place + 1]])).logits[0, -1]
        return logits


class NaiveEagle3:
    """The paper's formula, over the whole text for each place and pass."""

    passes = 4

    def __init__(self, root: Path, source: Path, states: States) -> None:
        head = random_head()
        self.formula, self.states, self.drafted = (
            formula_of(head, reference_model(root / "hf")),
            states,
            head.target_ids,
        )
        self.formula.wide = {name: each.double().requires_grad_() for name, each in self.formula.wide.items()}
        self.formula.lm_head = self.formula.wide["lm_head.weight"]
        self.formula.embedding = self.formula.embedding.double()
        self.parameters = {name.replace("layers.0.", "midlayer."): each for name, each in self.formula.wide.items()}

    def __call__(self, text: TrainingText, place: int, step: int) -> Tensor:
        path = text.tokens[place + 1 : place + 1 + step]
        return self.formula.draft(text.tokens[: place + 1], self.states[text.name], path)


class NaiveMedusa:
    """Each head's blocks and its matrix."""

    passes = 5

    def __init__(self, root: Path, source: Path, states: States) -> None:
        tensors = load_file(source / "medusa_lm_head.safetensors")
        self.parameters = {name: each.double().requires_grad_() for name, each in tensors.items()}
        self.states = states

    def __call__(self, text: TrainingText, place: int, step: int) -> Tensor:
        seen, own = self.states[text.name][place - 1], self.parameters
        inner = F.linear(seen, own[f"{step}.0.linear.weight"], own[f"{step}.0.linear.bias"])
        return F.linear(seen + inner * torch.sigmoid(inner), own[f"{step}.1.weight"])


class NaiveRecurrent:
    """The recurrent state token by token, as in apple/ml-recurrent-drafter."""

    passes = 4

    def __init__(self, root: Path, source: Path, states: States) -> None:
        tensors = load_file(source / "model.safetensors")
        self.parameters = {name: each.double().requires_grad_() for name, each in tensors.items()}
        self.embedding = reference_model(root / "hf", "float64").model.embed_tokens.weight.detach()
        self.states = states

    def __call__(self, text: TrainingText, place: int, step: int) -> Tensor:
        state = torch.zeros(self.embedding.shape[1], dtype=torch.float64)
        for token in text.tokens[place : place + 1 + step]:
            state = F.silu(self._linear("rnn_w", self.embedding[token]) + self._linear("rnn_u", state))
        hidden = self._linear("input_proj", torch.cat([self.states[text.name][place - 1], state]))
        return self._linear("lm_head.1", hidden + F.silu(self._linear("lm_head.0.linear", hidden)))

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return F.linear(rows, self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias"))


class Plain:
    """A net's tensors and the layers of a plain transformer, for rows [n, hidden] at positions [n]."""

    size, theta, epsilon = 8, 10000.0, 1e-6  # the values of block_nets

    def __init__(self, source: Path) -> None:
        tensors = load_file(source / "model.safetensors")
        self.parameters = {
            name: each.double().requires_grad_() for name, each in tensors.items() if each.is_floating_point()
        }

    def linear(self, name: str, rows: Tensor) -> Tensor:
        return F.linear(rows, self.parameters[f"{name}.weight"])

    def norm(self, name: str, rows: Tensor) -> Tensor:
        return rows / (rows.pow(2).mean(-1, keepdim=True) + self.epsilon).sqrt() * self.parameters[f"{name}.weight"]

    def attend(self, layer: str, read: Tensor, at: Tensor, others: Tensor, others_at: Tensor, seen: Tensor) -> Tensor:
        """Return the attention output of rows over others where `seen` [n, others] is True, one head at a time."""
        own = f"{layer}.self_attn"
        query, key, value = (
            self.linear(f"{own}.{kind}_proj", rows) for kind, rows in zip("qkv", (read, others, others), strict=True)
        )
        query, key, value = (rows.unflatten(1, (-1, self.size)) for rows in (query, key, value))
        if f"{own}.q_norm.weight" in self.parameters:
            query, key = self.norm(f"{own}.q_norm", query), self.norm(f"{own}.k_norm", key)
        query, key = self._turned(query, at), self._turned(key, others_at)
        group, mixed = query.shape[1] // key.shape[1], []
        for head in range(query.shape[1]):
            scores = query[:, head] @ key[:, head // group].T / self.size**0.5
            mixed.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value[:, head // group])
        return self.linear(f"{own}.o_proj", torch.cat(mixed, -1))

    def mlp(self, layer: str, rows: Tensor) -> Tensor:
        inner = self.norm(f"{layer}.post_attention_layernorm", rows)
        gate, up = (self.linear(f"{layer}.mlp.{kind}_proj", inner) for kind in ("gate", "up"))
        return self.linear(f"{layer}.mlp.down_proj", F.silu(gate) * up)

    def _turned(self, heads: Tensor, at: Tensor) -> Tensor:
        # The tables are float32 everywhere, as in transformers.
        angles = at[:, None].float() * (1.0 / self.theta ** (torch.arange(0, self.size, 2).float() / self.size))
        cosines, sines = (torch.cat([each, each], -1)[:, None].double() for each in (angles.cos(), angles.sin()))
        first, second = heads.chunk(2, -1)
        return heads * cosines + torch.cat([-second, first], -1) * sines


class NaiveEagle(Plain):
    """A layer without an input norm, over all pairs for each place and pass."""

    passes = 4

    def __init__(self, root: Path, source: Path, states: States) -> None:
        super().__init__(source)
        config = json.loads((source / "config.json").read_text())
        self.size = config["hidden_size"] // config["num_attention_heads"]
        self.theta, self.epsilon = config["rope_theta"], config["rms_norm_eps"]
        model = reference_model(root / "hf", "float64")
        self.embedding, self.lm_head = (each.weight.detach() for each in (model.model.embed_tokens, model.lm_head))
        self.states = states

    def __call__(self, text: TrainingText, place: int, step: int) -> Tensor:
        return F.linear(self._feature(text, place, step), self.lm_head)

    def _feature(self, text: TrainingText, place: int, step: int) -> Tensor:
        known = self.states[text.name][:place]
        features = [*known, *(self._feature(text, place, number) for number in range(step))]
        embedded = self.embedding[list(text.tokens[1 : place + 1 + step])]
        pairs = torch.cat([embedded, torch.stack(features)], 1)
        joined = F.linear(pairs, self.parameters["fc.weight"], self.parameters.get("fc.bias"))
        at, seen = torch.arange(len(joined)), torch.ones(len(joined), len(joined)).tril().bool()
        hidden = joined + self.attend("layers.0", joined, at, joined, at, seen)
        return (hidden + self.mlp("layers.0", hidden))[-1]


class NaiveDFlash(Plain):
    """A separate block for each place, without embedding or LM head; its anchor does not draft."""

    passes, silent = 4, 1

    def __init__(self, root: Path, source: Path, states: States) -> None:
        super().__init__(source)
        model = reference_model(root / "hf", "float64")
        self.embedding, self.lm_head = (each.weight.detach() for each in (model.model.embed_tokens, model.lm_head))
        self.states = states

    def __call__(self, text: TrainingText, place: int, step: int) -> Tensor:
        return F.linear(self._found(text, place, step), self.lm_head)

    def _found(self, text: TrainingText, place: int, step: int) -> Tensor:
        width = self.passes + self.silent
        hidden = self.embedding[[text.tokens[place], *[block_nets.MASK] * (width - 1)]]
        context = self.norm("hidden_norm", self.linear("fc", self.states[text.name][:place]))
        at, seen = torch.arange(place, place + width), torch.ones(width, place + width, dtype=torch.bool)
        for layer in ("layers.0", "layers.1"):
            read = self.norm(f"{layer}.input_layernorm", hidden)
            mixed = self.attend(layer, read, at, torch.cat([context, read]), torch.arange(place + width), seen)
            hidden = hidden + mixed
            hidden = hidden + self.mlp(layer, hidden)
        return self.norm("norm", hidden[step + self.silent])


class NaiveDSpark(NaiveDFlash):
    """DFlash's block, whose anchor drafts too, with a Markov head."""

    silent = 0

    def __call__(self, text: TrainingText, place: int, step: int) -> Tensor:
        bias = self.linear("markov_head.markov_w2", self._before(text, place, step))
        return super().__call__(text, place, step) + bias

    def confidence(self, text: TrainingText, place: int, step: int) -> Tensor:
        """Return the net's confidence in the token that it drafts there."""
        seen = torch.cat([self._found(text, place, step), self._before(text, place, step)])
        logit = self.linear("confidence_head.proj", seen) + self.parameters["confidence_head.proj.bias"]
        return 1 / (1 + torch.exp(-logit[0]))

    def _before(self, text: TrainingText, place: int, step: int) -> Tensor:
        return self.parameters["markov_head.markov_w1.weight"][text.tokens[place + step]]


class NaivePEagle(Plain):
    """All pairs before the place, followed by the required number of masks, in one causal sequence."""

    passes = 4

    def __init__(self, root: Path, source: Path, states: States) -> None:
        super().__init__(source)
        self.embedding = reference_model(root / "hf", "float64").model.embed_tokens.weight.detach()
        self.states = states

    def __call__(self, text: TrainingText, place: int, step: int) -> Tensor:
        embedded = self.embedding[[*text.tokens[1 : place + 1], *[block_nets.MASK] * step]]
        masks = self.parameters["mask_hidden"].view(1, -1).expand(step, -1)
        hidden = self.linear("fc", torch.cat([self.states[text.name][:place], masks]))
        at, seen = torch.arange(len(hidden)), torch.ones(len(hidden), len(hidden)).tril().bool()
        for layer in ("layers.0", "layers.1"):
            normed = self.norm(f"{layer}.input_layernorm", hidden if layer == "layers.1" else embedded)
            if layer == "layers.0":
                normed = torch.cat([normed, self.norm("layers.0.hidden_norm", hidden)], -1)
            hidden = hidden + self.attend(layer, normed, at, normed, at, seen)
            hidden = hidden + self.mlp(layer, hidden)
        return self.linear("lm_head", self.norm("norm", hidden[-1]))


# by method; each is created from the directory of the pair, its source, and the target's hidden states of each text
NAIVE: dict[str, Callable[[Path, Path, States], Naive]] = {
    "draft_target": NaiveModel,
    "eagle": NaiveEagle,
    "eagle3": NaiveEagle3,
    "medusa": NaiveMedusa,
    "redrafter": NaiveRecurrent,
    "dflash": NaiveDFlash,
    "dspark": NaiveDSpark,
    "p_eagle": NaivePEagle,
}
