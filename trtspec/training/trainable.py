# SPDX-License-Identifier: Apache-2.0
"""Interface of a method's `training` module: drafts with gradients, and the initial weights of new drafts.

Initial weights are copied from the target, or random.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rope import ORIGINAL, PARAMETERS, SCALING, SHARE
from trtspec.checkpoints.rules import Rule
from trtspec.checkpoints.source import Source, load_source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import EMBEDDING, FINAL_NORM, LM_HEAD
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import find_extension
from trtspec.engine.model.decoder import Decoder
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import View
from trtspec.training.tensors import SourceTensors, converted_view, most_frequent
from trtspec.training.texts import Sizes, TrainingText, TrainSettings

STEP_WEIGHT = 0.8  # loss weight of a pass relative to the previous: it counts only if earlier tokens are right
LARGE_VOCAB, USUAL_VOCAB = 64_000, 32_000  # for larger vocabularies, the draft vocabulary of published heads
MOST_LAYERS = 5  # as in the published nets of DFlash and DSpark
LEAST_READ = 3  # hidden states of the target, in published heads
DEEP = 8  # targets with fewer layers cannot use the published choices of layers, which would coincide


@dataclass(frozen=True)
class DraftSource:
    """Inputs for loading a draft: its directory, its target, and the number of consecutive drafted tokens.

    `texts` are the training texts.
    """

    root: Path
    target: Decoder
    draft_len: int
    settings: TrainSettings
    texts: Sequence[TrainingText] = ()

    @cached_property
    def origin(self) -> Source:
        return load_source(self.root)

    def tensors(self, origin: Source, rules: Iterable[Rule], frozen: Collection[str] = ()) -> SourceTensors:
        """Return the tensors of rules on the target's device; `frozen` rules are not trained."""
        settings = self.settings
        return SourceTensors(origin, list(rules), self.target.device, frozen, lora=settings.lora, seed=settings.seed)


class TrainableDraft(ABC):
    """Interface of drafts with gradients.

    A chain starts at each place of a batch; the logits of its `passes` are for the next token and those after it. A
    draft that `reads_on` has a single pass and drafts a chain autoregressively. `aux_layers` are the target's hidden
    states that it reads (see `Decoder.forward_with_features`). `vocab` are the target's ids [draft vocab] of the tokens
    that it drafts, or None for the target's first ids.
    """

    tensors: SourceTensors
    width: int
    passes: int = 1
    reads_on: bool = False
    aux_layers: tuple[int, ...] = ()
    vocab: Tensor | None = None

    @abstractmethod
    def hidden(self, view: View, batch: TrainingBatch, features: Tensor) -> list[Tensor]:
        """Return for each pass the hidden states [places, hidden] of the chains that start at a batch's places.

        `features` are the target's, [rows, width, aux_layers * hidden]; the last that a chain sees belongs to the token
        before its place. States beyond the text are undefined.
        """

    @abstractmethod
    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        """Return logits [n, draft vocab] for some of the hidden states [n, hidden] of pass `step`."""

    def confidence(self, view: View, hidden: Tensor, step: int) -> Tensor | None:
        """Return the draft's confidence that its token is accepted, as logits [n], or None if not predicted."""
        return None


@dataclass(frozen=True)
class InitialDraft:
    """A new draft: config.json, tensors, and the name of their file.

    With `has_tokenizer`, the target's tokenizer files are copied to the draft.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    file: str = "model.safetensors"
    has_tokenizer: bool = False


class DraftInitializer:
    """Inputs of a new draft: target, training texts, and number of consecutive drafted tokens.

    `embedding` and `lm_head` [vocab, hidden] and `last_norm` [hidden], before the LM head, are the target's.
    """

    def __init__(
        self, model: SourceModel, texts: Sequence[TrainingText], draft_len: int, sizes: Sizes, seed: int
    ) -> None:
        self.config, self.texts, self.draft_len, self.sizes = model.config, texts, draft_len, sizes
        self.document = model.source.config
        own = [rule for rule in model.rules if rule.target in (EMBEDDING, FINAL_NORM, LM_HEAD)]
        view = converted_view(model.source, own)
        self.embedding, self.last_norm, self.lm_head = (view[name] for name in (EMBEDDING, FINAL_NORM, LM_HEAD))
        self._draw = torch.Generator().manual_seed(seed)

    @property
    def embedding_size(self) -> float:
        """Return the root mean square of the target's embedding; its entries are small, so drafts scale them up."""
        return float(self.embedding.pow(2).mean().sqrt())

    @property
    def num_layers(self) -> int:
        """Return the number of layers of a block-parallel draft: the requested one, or the default."""
        return self.sizes.layers or min(MOST_LAYERS, max(1, self.config.num_layers // 3))

    @cached_property
    def drafted(self) -> Tensor:
        """Return the target's ids of the drafted tokens, ascending: the most frequent ones in the responses.

        Raises TrtspecError if more tokens are requested than the target has.
        """
        vocab = self.config.vocab_size
        count = self.sizes.draft_vocab or (USUAL_VOCAB if vocab > LARGE_VOCAB else vocab)
        if count > vocab:
            raise TrtspecError(f"--draft-vocab {count} is more than the target's {vocab} vocabulary entries")
        return torch.tensor(most_frequent(count, self.texts, range(vocab)))

    @property
    def unused_token(self) -> int:
        """Return the last id that no text contains, to be used as mask token for parallel drafting."""
        used = {token for text in self.texts for token in text.tokens}
        return next((each for each in reversed(range(self.config.vocab_size)) if each not in used), 0)

    def outputs_read(self, count: int) -> tuple[int, ...]:
        """Return up to `count` layers whose outputs are read, numbered from 0, spaced as in z-lab's DFlash.

        Source: z-lab/dflash:dflash/model.py@44947fb, build_target_layer_ids. In targets with few layers, the last layer
        read is the last but one.
        """
        layers = self.config.num_layers
        first = min(1, layers - 1)
        last = max(first, layers - (3 if layers >= DEEP else 2))
        return tuple(sorted({round(first + n * (last - first) / max(1, count - 1)) for n in range(count)}))

    def random(self, *shape: int) -> Tensor:
        """Return a random tensor; as a matrix it preserves the average norm of its input."""
        return torch.randn(shape, generator=self._draw) / sqrt(shape[-1])

    def fill(self, rules: Iterable[Rule], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the source tensors of rules: `given` tensors, zero biases, norms of ones, and random matrices.

        Initially the layers' contributions to the residual are small. `given` may have further tensors without a rule.
        """
        found = {}
        for tensor in (each for rule in rules for each in rule.sources):
            name, shape = tensor.name, tensor.shape
            if name in given:
                found[name] = given[name].reshape(shape)
            elif "norm" in name or name.endswith("bias"):
                found[name] = torch.full(shape, float("norm" in name))
            else:
                gain = 0.1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                found[name] = self.random(*shape) * gain
        return found | {name: tensor for name, tensor in given.items() if name not in found}

    def layer_config(self, config: ModelConfig, architecture: str, layers: int) -> dict[str, Any]:
        """Return config.json of a draft with `layers` layers of the shape in `config`."""
        sections = {key: self.document[key] for key in (PARAMETERS, SCALING) if self.document.get(key)}
        # Llama layers rotate whole heads.
        rope: dict[str, Any] = {
            key: {name: value for name, value in section.items() if name != SHARE} for key, section in sections.items()
        }
        if self.document.get(ORIGINAL):
            rope[ORIGINAL] = self.document[ORIGINAL]
        if self.config.local_rotary_base:  # such models have two of each
            rope = {}
        return {
            "architectures": [architecture],
            "model_type": "llama",
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_size,
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_epsilon,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_positions,
            "rope_theta": config.rotary_base,
            **rope,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": self.document.get("bos_token_id"),
            "eos_token_id": self.document.get("eos_token_id"),
            "torch_dtype": config.dtype,
        }


def plain_layer(config: ModelConfig) -> ModelConfig:
    """Return the config of a Llama layer with the target's sizes: dense, without biases, windows or inner norms."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        dtype=config.dtype,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=1,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        intermediate_size=config.intermediate_size * max(1, config.experts_per_token),
        hidden_act="silu",
        norm_epsilon=config.norm_epsilon,
        max_positions=config.max_positions,
        rotary_base=config.rotary_base,
        rope_scaling=None,
        attn_bias=False,
        mlp_bias=False,
        tied_embeddings=False,
    )


@dataclass(frozen=True)
class DraftTrainer:
    """Loader and initializer of a method's trainable drafts, defined as `TRAINABLE` in `methods/NAME/training.py`.

    `make` returns the initial weights of a new draft, and `sizes` are the fields of `Sizes` that it supports.
    """

    load: Callable[[DraftSource], TrainableDraft]
    make: Callable[[DraftInitializer], InitialDraft]
    sizes: tuple[str, ...] = ()

    def check_sizes(self, method: str, sizes: Sizes) -> None:
        """Raise TrtspecError for requested sizes that new drafts of the method do not support."""
        for name, value in vars(sizes).items():
            if value and name not in self.sizes:
                able = ", ".join(f"--{each.replace('_', '-')}" for each in self.sizes) or "none"
                message = f"drafts of {method} do not support --{name.replace('_', '-')}; supported sizes: {able}"
                raise TrtspecError(message, hint="remove it")


def find_trainable(method: str) -> DraftTrainer:
    """Return the DraftTrainer of a method; the TrtspecError for an unsupported method lists the supported ones."""
    found: DraftTrainer = find_extension(
        "trtspec.methods", "TRAINABLE", method, "draft to train, of method", "training"
    )
    return found
