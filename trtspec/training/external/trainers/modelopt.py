# SPDX-License-Identifier: Apache-2.0
"""External trainer: NVIDIA's ModelOpt with its examples/speculative_decoding.

Source: NVIDIA/Model-Optimizer:modelopt/recipe/config.py@0.47.0. ModelOpt reads messages, formats them with a chat
template, and takes the loss mask from the template's `generation` block
(modelopt/torch/utils/plugins/transformers_dataset.py). DFlash and DSpark drafts start from the draft's weights, EAGLE-3
heads only from its shape and vocabulary. Families are from the example's support matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.methods.draft_formats.base import WEIGHTS
from trtspec.training.external.base import (
    AS_THEY_ARE,
    DRAFT,
    EPOCHS,
    EXPORTED,
    ExternalTrainer,
    Kind,
    TrainingJob,
    write_messages,
)
from trtspec.training.texts import TrainingText

MESSAGES, TEMPLATE, MAPPING, OUTPUT = "messages.jsonl", "chat_template.jinja", "d2t.pt", "output"
LAYER = (
    "num_hidden_layers", "hidden_act", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "attention_bias", "mlp_bias", "rope_theta", "rope_scaling", "layer_types", "sliding_window",
    "use_sliding_window",
)  # fmt: skip
MARKOV = ("projector_type", "markov_rank", "markov_head_type", "use_confidence_head")


def config(job: TrainingJob) -> dict[str, Any]:
    """Return the configuration file of the example's main.py.

    Keys of `training` that ModelOpt does not know are passed to transformers' TrainingArguments. Raises TrtspecError
    for a draft whose shape ModelOpt does not support.
    """
    is_head = job.kind.name == "eagle3"
    return {
        "metadata": {"recipe_type": "speculative_eagle" if is_head else "speculative_dflash"},
        "model": {"model_name_or_path": job.target},
        "data": {
            "data_path": MESSAGES,
            "chat_template": TEMPLATE,
            "draft_vocab_cache": MAPPING if job.maps else None,
        },
        "training": {
            "output_dir": OUTPUT,
            "num_train_epochs": EPOCHS,
            "max_steps": job.steps,
            "per_device_train_batch_size": 1,
            "learning_rate": job.learning_rate,
            "training_seq_len": job.longest,
            "answer_only_loss": True,
            "estimate_ar": False,
            "ar_validate_steps": 0,
            "bf16": True,
            "remove_unused_columns": False,
            "ddp_find_unused_parameters": None if is_head else True,
            "report_to": "none",
            "seed": job.seed,
        },
        "eagle": _eagle(job) if is_head else None,
        "dflash": None if is_head else _dflash(job),
    }


def _layer(draft: dict[str, Any]) -> dict[str, Any]:
    return {key: draft[key] for key in LAYER if draft.get(key) is not None}


def _eagle(job: TrainingJob) -> dict[str, Any]:
    """Return the `eagle` section; RoPE scaling is not changed at export, so that the draft runs as it was trained."""
    draft, layer = job.draft, _layer(job.draft)
    default = {"rope_type": "default", "rope_theta": draft.get("rope_theta", 10000.0)}
    rope = layer.get("rope_scaling") or draft.get("rope_parameters") or default
    layer["rope_scaling"] = {"rope_theta": default["rope_theta"], **rope}
    layer |= {
        "draft_vocab_size": draft.get("draft_vocab_size", draft["vocab_size"]),
        "has_lm_head": True,
        "use_aux_hidden_state": True,
        "use_last_layernorm": True,
        "use_input_layernorm_in_first_layer": True,
        "eagle_aux_hidden_state_layer_ids": draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"],
    }
    return {
        "eagle_decoder_type": "llama",
        "eagle_ttt_steps": job.draft_len,
        "eagle_export_rope_scaling": {},
        "eagle_architecture_config": layer,
    }


def _dflash(job: TrainingJob) -> dict[str, Any]:
    draft, inner = job.draft, job.draft["dflash_config"]
    layers, read = draft["num_hidden_layers"], inner["target_layer_ids"]
    if len(read) != layers:
        message = f"ModelOpt trains block nets that read one hidden state per layer; this one has {layers} layers"
        raise TrtspecError(f"{message} and reads {len(read)}", hint="choose another trainer")
    markov = {key: inner[key] for key in MARKOV if inner.get(key) is not None}
    return {
        "dflash_block_size": draft["block_size"],
        "dflash_mask_token_id": inner["mask_token_id"],
        "dflash_draft_attention": "causal" if inner.get("causal") else "bidirectional",
        "dflash_init_checkpoint": DRAFT,
        "dflash_self_logit_distillation": job.kind.name == "dflash",
        "dflash_confidence_head_alpha": 1.0 if inner.get("use_confidence_head") else None,
        "dflash_architecture_config": {**_layer(draft), **markov, "target_layer_ids": read},
    }


def commands(job: TrainingJob) -> str:
    """Return the shell commands, which use a clone of ModelOpt: its wheel lacks the scripts."""
    return f"""\
: "${{MODELOPT:?the directory of a clone of NVIDIA/Model-Optimizer at 0.47.0}}"
example=$MODELOPT/examples/speculative_decoding
bash "$example/launch_train.sh" --config run.yaml model.model_name_or_path="$TARGET"
python "$example/scripts/export_hf_checkpoint.py" --model_path {OUTPUT} --export_path {EXPORTED}
"""


def further(job: TrainingJob, root: Path, texts: Sequence[TrainingText], tokenizer: Tokenizer) -> int:
    """Write the messages and their template, and d2t if the head has its own vocabulary."""
    written = write_messages(root / MESSAGES, texts, tokenizer)
    (root / TEMPLATE).write_text(AS_THEY_ARE)
    if job.maps:
        import torch

        from trtspec.training.tensors import stored_maps

        torch.save(stored_maps(root / DRAFT / WEIGHTS)["d2t"], root / MAPPING)
    return len(texts) - written


TRAINER = ExternalTrainer(
    title="ModelOpt",
    version="0.47.0",
    source="https://github.com/NVIDIA/Model-Optimizer",
    kinds={
        "eagle3": Kind("eagle3", "modelopt"),
        "dflash": Kind("dflash", "modelopt"),
        "dspark": Kind("dspark", "modelopt"),
    },
    families=frozenset({"llama", "mistral", "phi3", "qwen2", "qwen3"}),
    needs=(
        "a GPU, `pip install nvidia-modelopt[hf]==0.47.0`, and MODELOPT set to a clone of its repository at 0.47.0,"
        " whose examples/speculative_decoding trains"
    ),
    result=EXPORTED,
    config=config,
    commands=commands,
    further=further,
)
