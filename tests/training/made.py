# SPDX-License-Identifier: Apache-2.0
"""Tiny targets and drafts, both converted for the engine and loaded for training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from tests._support.tiny import SHAPE, convert, greedy, make_model, reference_model
from tests.methods import block_nets, eagle_heads, heads, parallel_nets, recurrent
from tests.methods.eagle3_heads import convert_with, random_head, save_head
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.writer import write_config, write_tensors
from trtspec.training.batches import TargetOutputs, Teacher
from trtspec.training.tensors import make_part
from trtspec.training.texts import NO_SIZES, TRAIN, Sizes, TrainingText, TrainSettings
from trtspec.training.trainable import DraftInitializer, DraftSource, TrainableDraft, find_trainable

SETTINGS = TrainSettings("kl", 0, 1e-2, 20, 600.0, 0)
VOCAB, DRAFT_LEN = 64, 4


def random_texts(count: int, side: str = TRAIN, seed: int = 0, **values: Any) -> list[TrainingText]:
    """Return texts with random tokens and lengths."""
    draw = Random(seed)

    def ids(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(VOCAB) for _ in range(draw.randint(least, most)))

    return [
        TrainingText(side, "a", False, f"{side}-{number}", ids(2, 9), ids(2, 12), **values) for number in range(count)
    ]


def model_pair(root: Path, family: str = "llama", **shape: Any) -> tuple[Path, Path, Path]:
    """Return a converted target, the source of a draft of `family`, and the converted draft."""
    target = convert(make_model(root / "hf", "llama", scale=0.3), root / "target")
    draft = make_model(root / "hf-draft", family, seed=1, scale=0.3, **shape)
    return target, draft, convert(draft, root / "draft")


def head_pair(root: Path, layout: str = "specforge", **head: Any) -> tuple[Path, Path]:
    """Return a target converted with an EAGLE-3 head, and the head's source."""
    source = make_model(root / "hf", "llama", scale=0.3)
    net = save_head(random_head(**head), root / "net", layout)
    return convert_with(source, net, root / "target"), net


def texts_of(root: Path, count: int = 5, new: int = 14) -> list[TrainingText]:
    """Return random prompts with the model's responses."""
    model = reference_model(root)
    return [
        TrainingText(TRAIN, "a", False, text.name, text.prompt, tuple(greedy(model, list(text.prompt), new - number)))
        for number, text in enumerate(random_texts(count))
    ]


def _medusa_pair(root: Path) -> tuple[Path, Path, None]:
    source = make_model(root / "hf", "llama", scale=0.3)
    known = [text.tokens for text in texts_of(source)]
    net = heads.save_heads(root / "net", heads.knowing_heads(reference_model(source), known, 5))
    return heads.convert_with(source, net, root / "target"), net, None


def _eagle_pair(root: Path) -> tuple[Path, Path, None]:
    source = make_model(root / "hf", "llama", scale=0.3)
    net = eagle_heads.save_head(root / "net", eagle_heads.random_head(bias=True, copies=1.0))
    return eagle_heads.convert_with(source, net, root / "target", {}), net, None


def _redrafter_pair(root: Path) -> tuple[Path, Path, None]:
    source = make_model(root / "hf", "llama", scale=0.3)
    known = [text.tokens for text in texts_of(source)]
    net = recurrent.knowing_drafter(recurrent.random_drafter(), reference_model(source), known, 5).save(root / "net")
    return recurrent.convert_with(source, net, root / "target", draft_len=5), net, None


# by method: create a target, the source of its draft, and the converted draft, or None if it is embedded in the target
PAIRS: dict[str, Callable[[Path], tuple[Path, Path, Path | None]]] = {
    "draft_target": model_pair,
    "eagle": _eagle_pair,
    "eagle3": lambda root: (*head_pair(root), None),
    "medusa": _medusa_pair,
    "redrafter": _redrafter_pair,
}


def _net_pair(root: Path, net: parallel_nets.Net) -> tuple[Path, Path, None]:
    """Return a target with a net that predicts its texts partially."""
    source = make_model(root / "hf", "llama", scale=0.3)
    known = [text.tokens for text in texts_of(source)]
    target = parallel_nets.knowing_net(net, reference_model(source), known).convert(source, root)
    return target, root / "net", None


# by method: nets that draft a block, as the engine runs them
RUN: dict[str, Callable[[Path], tuple[Path, Path, None]]] = {
    "dflash": lambda root: _net_pair(root, parallel_nets.random_block_net(own=True)),
    "dflash causal": lambda root: _net_pair(root, parallel_nets.random_block_net(own=True, causal=True)),
    "dspark": lambda root: _net_pair(root, parallel_nets.random_block_net("dspark", own=True)),
    "dspark without its own token": lambda root: _net_pair(
        root, parallel_nets.random_block_net("dspark", own=True, sample_from_anchor=False)
    ),
    "p_eagle": lambda root: _net_pair(root, parallel_nets.random_p_eagle(drafted=VOCAB)),
}


def _block_pair(root: Path, config: dict[str, Any], markov: str | None) -> tuple[Path, Path]:
    source = make_model(root / "hf", "llama", scale=0.3)
    net = block_nets.save_net(root / "net", config, _random(block_nets.net_tensors(markov)))
    return convert(source, root / "target"), net


def _p_eagle_pair(root: Path) -> tuple[Path, Path]:
    hidden, vocab = SHAPE["hidden_size"], SHAPE["vocab_size"]
    source, outputs = make_model(root / "hf", "llama", scale=0.3), block_nets.OUTPUTS
    tensors = block_nets.layer_tensors(0, 2) | block_nets.layer_tensors(1)
    shapes = {"fc.weight": (hidden, 2 * hidden), "layers.0.hidden_norm.weight": (hidden,), "norm.weight": (hidden,),
              "lm_head.weight": (vocab, hidden), "mask_hidden": (1, 1, 2 * hidden)}  # fmt: skip
    tensors |= {name: torch.zeros(shape) for name, shape in shapes.items()}
    config = {"architectures": ["LlamaForCausalLMEagle3"], **block_nets.layer_config(), "ptd_token_id": block_nets.MASK,
              "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(outputs)}}  # fmt: skip
    return convert(source, root / "target"), block_nets.save_net(root / "net", config, _random(tensors))


def _random(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(7)
    return {name: torch.randn(each.shape, generator=draw) * 0.3 + ("norm" in name) for name, each in tensors.items()}


# by method, for nets that draft a block: create a target and the net
BLOCKS: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "dflash": lambda root: _block_pair(root, *block_nets.DFLASH["z-lab"][:2]),
    "dspark": lambda root: _block_pair(root, *block_nets.DSPARK["DeepSpec"][:2]),
    "p_eagle": _p_eagle_pair,
}


def make_draft(method: str, root: Path, target: Path, texts: list[TrainingText], sizes: Sizes = NO_SIZES) -> Path:
    """Write a draft from scratch for a target, as the step does."""
    origin = DraftInitializer(load_model(target, "auto"), texts, DRAFT_LEN, sizes, 0)
    trainer = find_trainable(method)
    trainer.check_sizes(method, sizes)
    blank = trainer.make(origin)
    root.mkdir()
    write_config(root, blank.config)
    write_tensors(root / blank.file, [make_part(name, each, "BF16") for name, each in blank.tensors.items()])
    return root


def _made_pair(method: str) -> Callable[[Path], tuple[Path, Path]]:
    def made(root: Path) -> tuple[Path, Path]:
        source = make_model(root / "hf", "llama", scale=0.3)
        return convert(source, root / "target"), make_draft(method, root / "net", source, random_texts(6))

    return made


# by method: create a target and a draft from scratch
FRESH = {f"{method} from scratch": _made_pair(method) for method in ("eagle", "redrafter")}


def student_of(
    method: str,
    target: Path,
    source: Path,
    texts: list[TrainingText],
    settings: TrainSettings = SETTINGS,
    draft_len: int = DRAFT_LEN,
) -> tuple[TrainableDraft, TargetOutputs]:
    """Load a trainable draft and its target outputs."""
    teacher = Teacher(target, texts)
    student = find_trainable(method).load(DraftSource(source, teacher.model, draft_len, settings))
    return student, TargetOutputs(teacher, student.aux_layers, texts)
