# SPDX-License-Identifier: Apache-2.0
"""Declarations of tensors that only NVIDIA's models have, for recipes with `serving.defaults: nvidia`.

Source: NVIDIA/TensorRT-LLM:triton_backend/all_models/inflight_batcher_llm/{ensemble,tensorrt_llm,tensorrt_llm_bls,
preprocessing}/config.pbtxt@2a9abd95. Each line describes a tensor: name, type, dims, and R for
allow_ragged_batch. No engine of trtspec supports these inputs, so requests with one are rejected
(`python_models.tensors`). Clients may request the outputs, but responses omit them, as NVIDIA's models do if the engine
does not produce them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtspec.serving.triton.names import BLS, ENSEMBLE, PREPROCESSING, TARGET

if TYPE_CHECKING:
    from trtspec.serving.triton.config import ModelConfig

NVIDIA, MODEL, PARAMETER = "nvidia", "model", "defaults"

_LORA = """
    lora_task_id UINT64 1
    lora_weights FP16 -1,-1 R
    lora_config INT32 -1,3 R
"""
GUIDES = ("guided_decoding_guide_type", "guided_decoding_guide")  # supported by some models
GRAMMARS = "structured_output"  # the parameter of models whose engine may have been started without support for GUIDES
_GUIDED = """
    guided_decoding_guide_type STRING 1 R
    guided_decoding_guide STRING 1 R
"""
_TEXTS = f"""
    decoder_text_input STRING 1
    prompt_embedding_table FP16 -1,-1
    prompt_table_extra_id UINT64 1
    prompt_vocab_size INT32 1
    {_LORA}
"""
INPUTS = {
    ENSEMBLE: _TEXTS + _GUIDED,
    BLS: f"""
        {_TEXTS}
        image_input FP16 -1,3,-1,-1
        image_bytes_input UINT8 -1,-1,-1,-1
        image_url_input STRING 1
        video_bytes_input UINT8 -1,-1,-1,-1
        guided_decoding_guide_type STRING 1
        guided_decoding_guide STRING 1
    """,
    TARGET: f"""
        encoder_input_features FP16 -1,-1 R
        encoder_output_lengths INT32 1
        runtime_top_p_min FP32 1
        runtime_top_p_decay FP32 1
        runtime_top_p_reset_ids INT32 1
        early_stopping BOOL 1
        beam_search_diversity_rate FP32 1
        prompt_embedding_table FP16 -1,-1 R
        prompt_table_extra_ids UINT64 -1 R
        prompt_vocab_size INT32 1
        cross_attention_mask BOOL -1,-1 R
        mrope_rotary_cos_sin FP32 -1
        mrope_position_deltas INT64 1
        {_LORA}
        context_phase_params UINT8 -1 R
        skip_cross_attn_blocks BOOL 1 R
        retention_token_range_starts INT32 -1 R
        retention_token_range_ends INT32 -1 R
        retention_token_range_priorities INT32 -1 R
        retention_token_range_durations_ms INT32 -1 R
        retention_decode_priority INT32 1 R
        retention_decode_duration_ms INT32 1 R
        {_GUIDED}
    """,
    PREPROCESSING: """
        DECODER_QUERY STRING 1
        IMAGE_BYTES UINT8 -1,-1,-1,-1
        IMAGE_URL STRING 1
        IMAGES STRING -1
        VIDEO_BYTES UINT8 -1,-1,-1,-1
        PROMPT_TABLE_EXTRA_ID UINT64 1
    """,
}
_OF_A_TEXT = """
    context_logits FP32 -1,-1
    generation_logits FP32 -1,-1,-1
    cum_log_probs FP32 -1
    output_log_probs FP32 -1,-1
    batch_index INT32 1
    kv_cache_alloc_new_blocks INT32 1
    kv_cache_reused_blocks INT32 1
    kv_cache_alloc_total_blocks INT32 1
    arrival_time_ns INT64 1
    first_scheduled_time_ns INT64 1
    first_token_time_ns INT64 1
    last_token_time_ns INT64 1
"""
OUTPUTS = {
    ENSEMBLE: _OF_A_TEXT,
    BLS: _OF_A_TEXT,
    TARGET: _OF_A_TEXT + "context_phase_params UINT8 -1",
    PREPROCESSING: """
        OUT_PROMPT_TABLE_EXTRA_IDS UINT64 -1
        PIXEL_VALUES FP16 -1,-1,-1,-1
        ASPECT_RATIO_IDS INT64 -1
        ASPECT_RATIO_MASK INT64 -1,-1
        CROSS_ATTENTION_MASK INT64 -1,-1,-1
        IMAGE_SIZES INT64 -1,2
        IS_VIDEO_INPUT BOOL 1
        ATTENTION_MASK INT64 -1
        IMAGE_GRID_THW INT64 3
        VISION_INPUT_ID INT32 -1
    """,
}
OPTIONAL = ("input_ids",)  # optional in NVIDIA's tensorrt_llm, which then rejects requests without it


def add_nvidia_tensors(config: ModelConfig) -> None:
    """Add the additional tensors of NVIDIA's model of the same name, and the parameter for NVIDIA's defaults."""
    known = {tensor.name for tensor in [*config.input, *config.output]}
    for name, kind, dims, *flags in _rows(INPUTS.get(config.name, "")):
        if name not in known:
            tensor = config.input.add(
                name=name, data_type=f"TYPE_{kind}", dims=map(int, dims.split(",")), optional=True
            )
            tensor.allow_ragged_batch = "R" in flags
    for name, kind, dims in _rows(OUTPUTS.get(config.name, "")):
        if name not in known:
            config.output.add(name=name, data_type=f"TYPE_{kind}", dims=map(int, dims.split(",")))
    for tensor in config.input:
        tensor.optional |= tensor.name in OPTIONAL
    if config.backend == "python":  # TensorRT-LLM's own backend already behaves like NVIDIA's models
        config.parameters[PARAMETER].string_value = NVIDIA


def unsupported_inputs(model: str) -> tuple[str, ...]:
    """Return the names of the inputs that a model declares but does not support."""
    return tuple(row[0] for row in _rows(INPUTS[model]))


def _rows(tensors: str) -> list[list[str]]:
    return [line.split() for line in tensors.splitlines() if line.strip()]
