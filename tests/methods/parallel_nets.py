# SPDX-License-Identifier: Apache-2.0
"""Sources of random nets that draft in parallel, and reference implementations of their papers' formulas in float64.

Each formula processes the whole text every time: `hidden` are the states from which a draft's tokens are predicted,
`logits` are the draft's logits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests._support.tiny import SHAPE, convert
from tests.methods.block_nets import save_net
from tests.methods.eagle3_heads import aux_states, random_head
from trtspec.methods.draft_head import load_head

AUX = "eagle_aux_hidden_state_layer_ids"
RANK = 5


@dataclass(frozen=True)
class Net:
    """A net of a `kind` as a source: config.json and tensors; `reads` are the target's layers whose outputs it reads.

    `width` is the number of positions in a pass for a draft of `drafts` tokens, `flags` select the computation.
    """

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    reads: tuple[int, ...]
    mask: int

    def changed(self, **tensors: Tensor) -> Net:
        """Return the net with changed tensors, named with _ for dots."""
        return replace(self, tensors=self.tensors | {name.replace("__", "."): each for name, each in tensors.items()})

    def convert(self, source: Path, root: Path, **how: Any) -> Path:
        """Return a target converted together with the net, below `root`."""
        head = save_net(root / "net", self.config, self.tensors)
        return convert(source, root / "target", load_head=lambda target: load_head(head, self.kind, {}, target), **how)

    def drafted_ids(self, vocab: int) -> Tensor:
        """Return the target's ids of the drafted tokens."""
        offsets = self.tensors.get("d2t")
        return torch.arange(vocab) if offsets is None else offsets + torch.arange(len(offsets))


class Random:
    """Draws bfloat16 tensors, which are saved without rounding."""

    def __init__(self, seed: int, scale: float) -> None:
        self._draw, self._scale = torch.Generator().manual_seed(seed), scale

    def matrix(self, *shape: int) -> Tensor:
        return (torch.randn(*shape, generator=self._draw) * self._scale).bfloat16()

    def norm(self, width: int) -> Tensor:
        return (1 + torch.randn(width, generator=self._draw) * 0.2).bfloat16()

    def layer(self, number: int, shape: dict[str, Any], *, qk_norm: bool, bias: bool = False) -> dict[str, Tensor]:
        hidden, inter, size = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
        rows = {"q": shape["num_attention_heads"], "k": shape["num_key_value_heads"], "v": shape["num_key_value_heads"]}
        own = f"layers.{number}"
        found = {f"{own}.{name}.weight": self.norm(hidden) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, heads in rows.items():
            found[f"{own}.self_attn.{name}_proj.weight"] = self.matrix(heads * size, hidden)
            if bias:
                found[f"{own}.self_attn.{name}_proj.bias"] = self.matrix(heads * size)
        found[f"{own}.self_attn.o_proj.weight"] = self.matrix(hidden, rows["q"] * size)
        if qk_norm:
            found |= {f"{own}.self_attn.{name}_norm.weight": self.norm(size) for name in "qk"}
        found |= {f"{own}.mlp.{name}_proj.weight": self.matrix(inter, hidden) for name in ("gate", "up")}
        return found | {f"{own}.mlp.down_proj.weight": self.matrix(hidden, inter)}

    def drafted(self, vocab: int, count: int) -> dict[str, Tensor]:
        """Return a map (d2t) of `count` ids to ids of the target."""
        ids = torch.randperm(vocab, generator=self._draw)[:count].sort().values
        return {"d2t": ids - torch.arange(count), "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)}


def shape_of(target: dict[str, Any] | None, layers: int) -> dict[str, Any]:
    """Return the config keys of a net's layers for a target of tests._support.tiny.SHAPE changed by `target`."""
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings")
    shape = {**SHAPE, **(target or {})}
    sizes = {"head_dim": 8, "intermediate_size": 40, "num_hidden_layers": layers, "rms_norm_eps": 1e-5}
    return (
        {key: shape[key] for key in keys} | sizes | {"rope_theta": 5000.0, "model_type": "qwen3", "dtype": "bfloat16"}
    )


def random_block_net(
    kind: str = "dflash", reads: Sequence[int] = (0, 1), *, target: dict[str, Any] | None = None, block: int = 8,
    drafted: int = 0, own: bool = False, bias: bool = False, scale: float = 0.3, seed: int = 3, mask: int = 2,
    **flags: Any,
) -> Net:  # fmt: skip
    """Return a random net: with embedding and LM head if `own`, with `drafted` ids, and with `flags` of its block."""
    made, shape = Random(seed, scale), shape_of(target, 2)
    hidden, vocab = shape["hidden_size"], shape["vocab_size"]
    tensors = {"fc.weight": made.matrix(hidden, len(reads) * hidden)}
    tensors |= {f"{name}.weight": made.norm(hidden) for name in ("hidden_norm", "norm")}
    for number in range(2):
        tensors |= made.layer(number, shape, qk_norm=True, bias=bias)
        if bias:
            tensors[f"layers.{number}.self_attn.o_proj.bias"] = made.matrix(hidden)
    if own or drafted:
        tensors["embed_tokens.weight"] = made.matrix(vocab, hidden)
        tensors["lm_head.weight"] = made.matrix(drafted or vocab, hidden)
    if drafted:
        tensors |= made.drafted(vocab, drafted)
    inner: dict[str, Any] = {"mask_token_id": mask, "target_layer_ids": list(reads), **flags}
    if kind == "dspark":
        with_markov = flags.get("confidence_head_with_markov", True)
        inner |= {"markov_rank": RANK, "markov_head_type": "vanilla", "confidence_head_with_markov": with_markov}
        tensors["markov_head.markov_w1.weight"] = made.matrix(vocab, RANK)
        tensors["markov_head.markov_w2.weight"] = made.matrix(drafted or vocab, RANK)
        tensors["confidence_head.proj.weight"] = made.matrix(1, hidden + RANK * with_markov)
        tensors["confidence_head.proj.bias"] = made.matrix(1) + 1
    config = {**shape, "block_size": block, "draft_vocab_size": drafted or vocab, "dflash_config": inner}
    return Net(kind, config, tensors, tuple(reads), mask)


def random_p_eagle(
    reads: Sequence[int] = (0, 1), *, target: dict[str, Any] | None = None, layers: int = 3, seed: int = 3,
    scale: float = 0.3, mask: int = 2, drafted: int = 40, **flags: bool,
) -> Net:  # fmt: skip
    """Return a random P-EAGLE net: an EAGLE-3 head, further layers and a state at masks."""
    head = random_head(reads, drafted=drafted, target=target, seed=seed, scale=scale, **flags)
    made, shape = Random(seed + 1, scale), {**head.layer, "num_hidden_layers": layers}
    tensors = dict(head.tensors)
    for number in range(1, layers):
        tensors |= made.layer(number, shape, qk_norm=bool(flags.get("qk_norm")), bias=bool(flags.get("bias")))
    tensors["mask_hidden"] = made.matrix(1, 1, len(reads) * shape["hidden_size"])
    switches = {key: value for key, value in flags.items() if key not in ("bias", "qk_norm", "own_embedding")}
    config = {**shape, **switches, "model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]}
    config |= {"ptd_token_id": mask, "draft_vocab_size": drafted, "eagle_config": {AUX: list(reads)}}
    return Net("p_eagle", config, tensors, tuple(reads), mask)


class Formula:
    """The common part of all nets: layers over a text's positions, in float64."""

    def __init__(self, net: Net, model: Any) -> None:
        self.net, self._model = net, model
        self.wide = {name: each.double() for name, each in net.tensors.items() if name not in ("d2t", "t2d")}
        self.embedding = self.wide.get("embed_tokens.weight", model.get_input_embeddings().weight.double())
        self.lm_head = self.wide.get("lm_head.weight", model.get_output_embeddings().weight.double())
        self.ids = net.drafted_ids(len(self.embedding))

    def states(self, text: Sequence[int]) -> Tensor:
        """Return the target's states of all tokens except the last, which the target has not processed yet."""
        return aux_states(self._model, text, self.net.reads)[:-1].double()

    def norm(self, rows: Tensor, name: str) -> Tensor:
        """Normalize rows by their root mean square."""
        scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.net.config["rms_norm_eps"])
        return rows * scale * self.wide[f"{name}.weight"]

    def heads(self, rows: Tensor, name: str, first: int, own: str) -> Tensor:
        """Return the rotated heads [n, heads, size] of rows at positions `first`, `first` + 1, ..."""
        size = self.net.config["head_dim"]
        bias = self.wide.get(f"{own}.{name}_proj.bias")
        found = F.linear(rows, self.wide[f"{own}.{name}_proj.weight"], bias).view(len(rows), -1, size)
        if name == "v":
            return found
        if f"{own}.{name}_norm.weight" in self.wide:
            found = self.norm(found, f"{own}.{name}_norm")
        places = torch.arange(first, first + len(rows), dtype=torch.float64)[:, None]
        angles = places / self.net.config["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
        turn = torch.cat([angles, angles], -1)[:, None]
        one, two = found.chunk(2, -1)
        return found * turn.cos() + torch.cat([-two, one], -1) * turn.sin()

    def mix(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, own: str) -> Tensor:
        """Return the output of attention; `hidden` [queries, keys] masks keys."""
        group = query.shape[1] // key.shape[1]
        key, value = (kind.repeat_interleave(group, 1) for kind in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) / self.net.config["head_dim"] ** 0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
        return F.linear(mixed, self.wide[f"{own}.o_proj.weight"], self.wide.get(f"{own}.o_proj.bias"))

    def mlp(self, hidden: Tensor, number: int) -> Tensor:
        """Return hidden states plus the output of a layer's MLP."""
        inner = self.norm(hidden, f"layers.{number}.post_attention_layernorm")
        gate, up, down = (self.wide[f"layers.{number}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return hidden + F.linear(F.silu(F.linear(inner, gate)) * F.linear(inner, up), down)

    def hidden(self, text: Sequence[int], count: int) -> Tensor:
        """Return the states [count, hidden] that are the input of the LM head."""
        raise NotImplementedError

    def logits(self, text: Sequence[int], drafted: Sequence[int], most: int) -> Tensor:
        """Return the draft's logits [len(drafted), ids] at each of the drafted tokens, of a draft of at most `most`."""
        return (self.hidden(text, most) @ self.lm_head.T)[: len(drafted)]

    def sureness(self, text: Sequence[int], drafted: Sequence[int], most: int) -> Tensor:
        """Return the net's confidence at each position."""
        return self.logits(text, drafted, most).softmax(-1).amax(-1)


class BlockFormula(Formula):
    """DFlash, by z-lab's code and the paper."""

    @property
    def _inner(self) -> dict[str, Any]:
        inner: dict[str, Any] = self.net.config["dflash_config"]
        return inner

    def hidden(self, text: Sequence[int], count: int) -> Tensor:
        """Return the states of the drafting positions."""
        at_anchor = self._inner.get("sample_from_anchor", self.net.kind == "dspark")
        width = count if at_anchor else count + 1
        context = self.norm(self.states(text) @ self.wide["fc.weight"].T, "hidden_norm")
        hidden = self.embedding[[text[-1], *[self.net.mask] * (width - 1)]]
        seen = len(text) - 1
        unseen = torch.ones(width, seen + width, dtype=torch.bool).triu(seen + 1) if self._inner.get("causal") else None
        for number in range(self.net.config["num_hidden_layers"]):
            own, normed = f"layers.{number}.self_attn", self.norm(hidden, f"layers.{number}.input_layernorm")
            key, value = (
                torch.cat([self.heads(context, name, 0, own), self.heads(normed, name, seen, own)]) for name in "kv"
            )
            query = self.heads(normed, "q", seen, own)
            hidden = self.mlp(hidden + self.mix(query, key, value, unseen, own), number)
        return self.norm(hidden, "norm")[width - count :]


class MarkovFormula(BlockFormula):
    """DSpark: each token's logits get a bias from the previous token."""

    def logits(self, text: Sequence[int], drafted: Sequence[int], most: int) -> Tensor:
        """Return the biased logits."""
        before = self.wide["markov_head.markov_w1.weight"][[text[-1], *drafted][: len(drafted)]]
        return super().logits(text, drafted, most) + before @ self.wide["markov_head.markov_w2.weight"].T

    def sureness(self, text: Sequence[int], drafted: Sequence[int], most: int) -> Tensor:
        """Return the estimate of the confidence head."""
        seen = self.hidden(text, most)[: len(drafted)]
        before = self.wide["markov_head.markov_w1.weight"][[text[-1], *drafted][: len(drafted)]]
        if self._inner["confidence_head_with_markov"]:
            seen = torch.cat([seen, before], -1)
        name = "confidence_head.proj"
        return F.linear(seen, self.wide[f"{name}.weight"], self.wide[f"{name}.bias"]).squeeze(-1).sigmoid()


class ParallelEagleFormula(Formula):
    """P-EAGLE: EAGLE-3's pairs, followed by pairs of a mask token and a learned state."""

    def _fuse(self, states: Tensor) -> Tensor:
        if self.net.config.get("fc_norm"):
            chunks = states.chunk(len(self.net.reads), -1)
            states = torch.cat([self.norm(chunk, f"fc_norm.{number}") for number, chunk in enumerate(chunks)], -1)
        return states @ self.wide["fc.weight"].T

    def hidden(self, text: Sequence[int], count: int) -> Tensor:
        """Return the normalized states of the last pair and of the masks."""
        masks = self.wide["mask_hidden"].view(1, -1).expand(count - 1, -1)
        features = self._fuse(torch.cat([self.states(text), masks]))
        embedded = self.embedding[[*text[1:], *[self.net.mask] * (count - 1)]]
        normed = self.norm(features, "layers.0.hidden_norm")
        hidden = normed if self.net.config.get("norm_before_residual") else features
        read = torch.cat([self.norm(embedded, "layers.0.input_layernorm"), normed], -1)
        unseen = torch.ones(len(read), len(read), dtype=torch.bool).triu(1)
        for number in range(self.net.config["num_hidden_layers"]):
            own = f"layers.{number}.self_attn"
            if number:
                read = self.norm(hidden, f"layers.{number}.input_layernorm")
            query, key, value = (self.heads(read, name, 0, own) for name in "qkv")
            hidden = self.mlp(hidden + self.mix(query, key, value, unseen, own), number)
        return self.norm(hidden, "norm")[-count:]


FORMULAS: dict[str, type[Formula]] = {"dflash": BlockFormula, "dspark": MarkovFormula, "p_eagle": ParallelEagleFormula}


@torch.inference_mode()
def knowing_net(net: Net, model: Any, texts: Sequence[Sequence[int]], places: int = 3) -> Net:
    """Return the net with an LM head fitted by least squares to the next tokens of the texts at each position."""
    formula, hidden, follows = FORMULAS[net.kind](net, model), [], []
    column = {int(token): number for number, token in enumerate(formula.ids)}
    for text in texts:
        for end in range(2, len(text) - places):
            for state, token in zip(formula.hidden(text[:end], places), text[end : end + places], strict=True):
                if token in column:
                    hidden.append(state)
                    follows.append(column[token])
    wanted = F.one_hot(torch.tensor(follows), len(formula.ids)).double()
    lm_head = torch.linalg.lstsq(torch.stack(hidden), wanted).solution.T.contiguous()
    return net.changed(lm_head__weight=(8 * lm_head).bfloat16())
