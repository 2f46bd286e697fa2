# SPDX-License-Identifier: Apache-2.0
"""Train the quickstart pair: a Llama-architecture target, and a draft distilled from it, sharing one tokenizer.

    python recipes/models/train_quickstart.py --out recipes/models --prompts recipes/prompts/quickstart.jsonl

Writes `quickstart-target/`, `quickstart-draft/` (Hugging Face layout, bf16 safetensors) and the held-out prompts.
The models are transformers' own, so nothing of trtspec is trained into its test data. On two AMX cores it takes
less than half an hour; the result was committed once and is not rebuilt by any target of the Makefile.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from corpus import KINDS, WRITERS, documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE, CONTEXT, BATCH = 1024, 512, 8
PROMPT_LEN, CONTINUATION_LEN, ROWS = 48, 256, 64
TRAIN_SEED, PROMPT_SEED = 1, 2
EOS = "<|endoftext|>"

TARGET = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6,
          "num_key_value_heads": 2, "tie_word_embeddings": False}  # fmt: skip
DRAFT = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 6,
         "num_key_value_heads": 2, "tie_word_embeddings": True}  # fmt: skip


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of `VOCAB_SIZE` entries; digits stay single, so numbers never merge into rare tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=[EOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator((text for _, text in islice(documents(TRAIN_SEED), 3000)), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, clean_up_tokenization_spaces=False)


def new_model(shape: dict[str, object], eos_id: int) -> LlamaForCausalLM:
    config = LlamaConfig(vocab_size=VOCAB_SIZE, max_position_embeddings=1024, rope_theta=10000.0, rms_norm_eps=1e-5,
                         bos_token_id=None, eos_token_id=eos_id, pad_token_id=None, **shape)  # fmt: skip
    return LlamaForCausalLM(config)


class Batches:
    """An endless stream of [BATCH, CONTEXT + 1] token blocks: documents joined by the end token."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self.tokenizer, self.stream, self.buffer = tokenizer, documents(seed), []

    def next(self) -> torch.Tensor:
        need = BATCH * (CONTEXT + 1)
        while len(self.buffer) < need:
            texts = [text for _, text in islice(self.stream, 256)]
            for ids in self.tokenizer(texts)["input_ids"]:
                self.buffer += [*ids, self.tokenizer.eos_token_id]
        block, self.buffer = self.buffer[:need], self.buffer[need:]
        return torch.tensor(block).view(BATCH, CONTEXT + 1)


def optimise(model: torch.nn.Module, loss_of, steps: int, peak_lr: float, label: str) -> None:
    """Run AdamW with a linear warm-up and a cosine decay to a twentieth of `peak_lr`; bf16 autocast."""
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=peak_lr, betas=(0.9, 0.95)
    )
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=50)
    decay_lr = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 50, peak_lr / 20)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay_lr], [50])
    started = time.time()
    for step in range(1, steps + 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            spent = time.time() - started
            left = spent * (steps - step) / step
            print(f"{label} {step}/{steps} loss {loss.item():.4f} {spent:.0f} s, {left:.0f} s left", flush=True)


def train_target(tokenizer: PreTrainedTokenizerFast, steps: int) -> LlamaForCausalLM:
    model, batches = new_model(TARGET, tokenizer.eos_token_id), Batches(tokenizer, TRAIN_SEED)

    def loss_of() -> torch.Tensor:
        block = batches.next()
        logits = model(input_ids=block[:, :-1]).logits
        return F.cross_entropy(logits.float().flatten(0, 1), block[:, 1:].flatten())

    optimise(model, loss_of, steps, 1.5e-3, "target")
    return model.to(torch.bfloat16)


@torch.no_grad()
def greedy_continuations(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int
) -> list[torch.Tensor]:
    """Return `count` blocks [ROWS, CONTINUATION_LEN]: document beginnings that the target went on from greedily."""
    stream, blocks = documents(TRAIN_SEED + 200), []
    for number in range(count):
        prompts = [tokenizer(text)["input_ids"][:PROMPT_LEN] for _, text in islice(stream, ROWS)]
        blocks.append(
            target.generate(
                torch.tensor([ids for ids in prompts if len(ids) == PROMPT_LEN]),
                max_length=CONTINUATION_LEN,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        )
        print(f"continuations {number + 1}/{count}", flush=True)
    return blocks


def distillation_loss(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return how far the logits `got` [..., vocab] are from the teacher's log-probabilities `wanted`: the divergence,
    and half the cross-entropy of the teacher's first choice."""
    got, wanted = F.log_softmax(got.float().flatten(0, -2), -1), wanted.flatten(0, -2)
    soft = F.kl_div(got, wanted, log_target=True, reduction="batchmean")
    return soft + 0.5 * F.nll_loss(got, wanted.argmax(-1))


def distil_draft(target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> LlamaForCausalLM:
    """Match the target's next-token distribution, on corpus text and on the target's own greedy continuations."""
    draft, batches = new_model(DRAFT, tokenizer.eos_token_id), Batches(tokenizer, TRAIN_SEED + 100)
    own = torch.cat(greedy_continuations(target.float().eval(), tokenizer, count=max(1, steps // 80)))
    teacher, rows = target.to(torch.bfloat16), 2 * BATCH
    step = 0

    def loss_of() -> torch.Tensor:
        nonlocal step
        step += 1
        tokens = own[torch.randint(len(own), (rows,))] if step % 2 else batches.next()[:, :-1]
        with torch.no_grad():
            wanted = F.log_softmax(teacher(input_ids=tokens).logits.float(), -1)
        return distillation_loss(draft(input_ids=tokens).logits, wanted)

    optimise(draft, loss_of, steps, 4e-3, "draft")
    return draft.to(torch.bfloat16)


def held_out_prompts(tokenizer: PreTrainedTokenizerFast, count: int) -> list[dict[str, str]]:
    """Return `count` beginnings, 24 to 72 tokens long, of documents from a seed the training never saw."""
    from random import Random

    rng, prompts = Random(PROMPT_SEED), []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        ids = tokenizer(WRITERS[kind](rng))["input_ids"]
        text = tokenizer.decode(ids[: rng.randint(24, 72)])
        prompts.append({"id": f"{kind}-{number:02d}", "kind": kind, "prompt": text})
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--target-steps", type=int, default=900, help="0 takes the target that is there")
    parser.add_argument("--draft-steps", type=int, default=1200)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = train_tokenizer()
    prompts = held_out_prompts(tokenizer, 64)
    arguments.prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    place = arguments.out / "quickstart-target"
    if arguments.target_steps:
        save(train_target(tokenizer, arguments.target_steps), tokenizer, place)
    target = LlamaForCausalLM.from_pretrained(place, dtype=torch.float32)
    draft = distil_draft(target, tokenizer, arguments.draft_steps)
    save(draft, tokenizer, arguments.out / "quickstart-draft")


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
