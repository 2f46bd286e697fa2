# SPDX-License-Identifier: Apache-2.0
"""Facts of NVIDIA's Triton models for engines, 1.0 to 1.2.

NVIDIA/TensorRT-LLM:triton_backend/all_models/inflight_batcher_llm/{tensorrt_llm,ensemble}/config.pbtxt@2a9abd95,
tensorrt_llm_bls/config.pbtxt@0193dbd4, preprocessing/config.pbtxt@08dc37e3, postprocessing/config.pbtxt@89fd9b74. A
line is a tensor: name, type, dims, and flags: S reshape to no dims, O optional, R allow_ragged_batch. Placeholder types
have the values from NVIDIA's documentation: TYPE_FP32 for logits, TYPE_FP16 for the other two.
"""

from __future__ import annotations

from typing import NamedTuple


class Tensor(NamedTuple):
    """One tensor of a configuration; `flags` as above."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    flags: str


def _tensors(text: str) -> list[Tensor]:
    rows = (line.split() for line in text.strip().splitlines())
    return [Tensor(name, kind, tuple(map(int, dims.split(","))), "".join(flags)) for name, kind, dims, *flags in rows]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ENGINE_INPUTS = _tensors("""
    input_ids INT32 -1 OR
    encoder_input_features FP16 -1,-1 OR
    encoder_output_lengths INT32 1 SO
    input_lengths INT32 1 S
    request_output_len INT32 1 S
    num_return_sequences INT32 1 SO
    draft_input_ids INT32 -1 OR
    decoder_input_ids INT32 -1 OR
    decoder_input_lengths INT32 1 SO
    draft_logits FP32 -1,-1 OR
    draft_acceptance_threshold FP32 1 SO
    end_id INT32 1 SO
    pad_id INT32 1 SO
    stop_words_list INT32 2,-1 OR
    bad_words_list INT32 2,-1 OR
    embedding_bias FP32 -1 OR
    beam_width INT32 1 SO
    temperature FP32 1 SO
    runtime_top_k INT32 1 SO
    runtime_top_p FP32 1 SO
    runtime_top_p_min FP32 1 SO
    runtime_top_p_decay FP32 1 SO
    runtime_top_p_reset_ids INT32 1 SO
    len_penalty FP32 1 SO
    early_stopping BOOL 1 SO
    repetition_penalty FP32 1 SO
    min_tokens INT32 1 SO
    beam_search_diversity_rate FP32 1 SO
    presence_penalty FP32 1 SO
    frequency_penalty FP32 1 SO
    seed UINT64 1 SO
    return_log_probs BOOL 1 SO
    return_context_logits BOOL 1 SO
    return_generation_logits BOOL 1 SO
    return_perf_metrics BOOL 1 SO
    return_num_input_tokens BOOL 1 SO
    return_num_output_tokens BOOL 1 SO
    exclude_input_in_output BOOL 1 SO
    stop BOOL 1 SO
    streaming BOOL 1 SO
    prompt_embedding_table FP16 -1,-1 OR
    prompt_table_extra_ids UINT64 -1 OR
    prompt_vocab_size INT32 1 SO
    cross_attention_mask BOOL -1,-1 OR
    mrope_rotary_cos_sin FP32 -1 O
    mrope_position_deltas INT64 1 O
    lora_task_id UINT64 1 SO
    lora_weights FP16 -1,-1 OR
    lora_config INT32 -1,3 OR
    context_phase_params UINT8 -1 OR
    skip_cross_attn_blocks BOOL 1 OR
    retention_token_range_starts INT32 -1 OR
    retention_token_range_ends INT32 -1 OR
    retention_token_range_priorities INT32 -1 OR
    retention_token_range_durations_ms INT32 -1 OR
    retention_decode_priority INT32 1 OR
    retention_decode_duration_ms INT32 1 OR
    guided_decoding_guide_type STRING 1 OR
    guided_decoding_guide STRING 1 OR
    lookahead_window_size INT32 1 OR
    lookahead_ngram_size INT32 1 OR
    lookahead_verification_set_size INT32 1 OR
""")

ENGINE_OUTPUTS = _tensors("""
    output_ids INT32 -1,-1
    sequence_length INT32 -1
    cum_log_probs FP32 -1
    output_log_probs FP32 -1,-1
    context_logits FP32 -1,-1
    generation_logits FP32 -1,-1,-1
    batch_index INT32 1
    sequence_index INT32 1
    context_phase_params UINT8 -1
    kv_cache_alloc_new_blocks INT32 1
    kv_cache_reused_blocks INT32 1
    kv_cache_alloc_total_blocks INT32 1
    arrival_time_ns INT64 1
    first_scheduled_time_ns INT64 1
    first_token_time_ns INT64 1
    last_token_time_ns INT64 1
    acceptance_rate FP32 1
    total_accepted_draft_tokens INT32 1
    total_draft_tokens INT32 1
    num_input_tokens INT32 1
    num_output_tokens INT32 1
""")

ENGINE_PARAMETERS = _names("""
    max_beam_width FORCE_CPU_ONLY_INPUT_TENSORS gpt_model_type gpt_model_path encoder_model_path
    max_tokens_in_paged_kv_cache max_attention_window_size sink_token_length batch_scheduler_policy
    kv_cache_free_gpu_mem_fraction cross_kv_cache_fraction kv_cache_host_memory_bytes kv_cache_onboard_blocks
    exclude_input_in_output cancellation_check_period_ms stats_check_period_ms iter_stats_max_iterations
    request_stats_max_iterations enable_kv_cache_reuse normalize_log_probs enable_chunked_context gpu_device_ids
    participant_ids num_nodes lora_cache_optimal_adapter_size lora_cache_max_adapter_size
    lora_cache_gpu_memory_fraction lora_cache_host_memory_bytes lora_prefetch_dir decoding_mode executor_worker_path
    lookahead_window_size lookahead_ngram_size lookahead_verification_set_size medusa_choices eagle_choices
    gpu_weights_percent enable_context_fmha_fp32_acc multi_block_mode cuda_graph_mode cuda_graph_cache_size
    speculative_decoding_fast_logits tokenizer_dir guided_decoding_backend xgrammar_tokenizer_info_path
""")

ENSEMBLE_INPUTS = _tensors("""
    text_input STRING 1
    decoder_text_input STRING 1 O
    max_tokens INT32 1
    num_return_sequences INT32 1 O
    bad_words STRING -1 O
    stop_words STRING -1 O
    exclude_input_in_output BOOL 1 O
    end_id INT32 1 O
    pad_id INT32 1 O
    top_k INT32 1 O
    top_p FP32 1 O
    temperature FP32 1 O
    length_penalty FP32 1 O
    repetition_penalty FP32 1 O
    min_tokens INT32 1 O
    presence_penalty FP32 1 O
    frequency_penalty FP32 1 O
    seed UINT64 1 O
    return_log_probs BOOL 1 O
    return_context_logits BOOL 1 O
    return_generation_logits BOOL 1 O
    return_perf_metrics BOOL 1 O
    return_num_input_tokens BOOL 1 O
    return_num_output_tokens BOOL 1 O
    beam_width INT32 1 O
    stream BOOL 1 O
    prompt_embedding_table FP16 -1,-1 O
    prompt_table_extra_id UINT64 1 O
    prompt_vocab_size INT32 1 O
    embedding_bias_words STRING -1 O
    embedding_bias_weights FP32 -1 O
    lora_task_id UINT64 1 O
    lora_weights FP16 -1,-1 OR
    lora_config INT32 -1,3 OR
    guided_decoding_guide_type STRING 1 OR
    guided_decoding_guide STRING 1 OR
""")

# The template has kv_cache_alloc_total_blocks twice.
ENSEMBLE_OUTPUTS = _tensors("""
    text_output STRING -1
    cum_log_probs FP32 -1
    output_log_probs FP32 -1,-1
    context_logits FP32 -1,-1
    generation_logits FP32 -1,-1,-1
    batch_index INT32 1
    sequence_index INT32 1
    kv_cache_alloc_new_blocks INT32 1
    kv_cache_reused_blocks INT32 1
    kv_cache_alloc_total_blocks INT32 1
    arrival_time_ns INT64 1
    first_scheduled_time_ns INT64 1
    first_token_time_ns INT64 1
    last_token_time_ns INT64 1
    acceptance_rate FP32 1
    total_accepted_draft_tokens INT32 1
    total_draft_tokens INT32 1
    num_input_tokens INT32 1
    num_output_tokens INT32 1
""")

# Reshaping to no dims (S) does not change what a client sends, and our models do not need it, so it is omitted below.
BLS_INPUTS = _tensors("""
    text_input STRING 1
    decoder_text_input STRING 1 O
    image_input FP16 -1,3,-1,-1 O
    image_bytes_input UINT8 -1,-1,-1,-1 O
    image_url_input STRING 1 O
    video_bytes_input UINT8 -1,-1,-1,-1 O
    max_tokens INT32 1
    bad_words STRING -1 O
    stop_words STRING -1 O
    exclude_input_in_output BOOL 1 O
    end_id INT32 1 O
    pad_id INT32 1 O
    top_k INT32 1 O
    top_p FP32 1 O
    temperature FP32 1 O
    length_penalty FP32 1 O
    repetition_penalty FP32 1 O
    min_tokens INT32 1 O
    presence_penalty FP32 1 O
    frequency_penalty FP32 1 O
    seed UINT64 1 O
    return_log_probs BOOL 1 O
    return_context_logits BOOL 1 O
    return_generation_logits BOOL 1 O
    num_return_sequences INT32 1 O
    beam_width INT32 1 O
    stream BOOL 1 O
    prompt_embedding_table FP16 -1,-1 O
    prompt_vocab_size INT32 1 O
    prompt_table_extra_id UINT64 1 O
    embedding_bias_words STRING -1 O
    embedding_bias_weights FP32 -1 O
    num_draft_tokens INT32 1 O
    use_draft_logits BOOL 1 O
    lora_task_id UINT64 1 O
    lora_weights FP16 -1,-1 OR
    lora_config INT32 -1,3 OR
    return_perf_metrics BOOL 1 O
    return_num_input_tokens BOOL 1 O
    return_num_output_tokens BOOL 1 O
    guided_decoding_guide_type STRING 1 O
    guided_decoding_guide STRING 1 O
""")
BLS_OUTPUTS = ENSEMBLE_OUTPUTS

PREPROCESSING_INPUTS = _tensors("""
    QUERY STRING 1
    DECODER_QUERY STRING 1 O
    IMAGE_BYTES UINT8 -1,-1,-1,-1 O
    IMAGE_URL STRING 1 O
    IMAGES STRING -1 O
    VIDEO_BYTES UINT8 -1,-1,-1,-1 O
    REQUEST_OUTPUT_LEN INT32 1
    BAD_WORDS_DICT STRING -1 O
    STOP_WORDS_DICT STRING -1 O
    EMBEDDING_BIAS_WORDS STRING -1 O
    EMBEDDING_BIAS_WEIGHTS FP32 -1 O
    END_ID INT32 1 O
    PAD_ID INT32 1 O
    PROMPT_TABLE_EXTRA_ID UINT64 1 O
""")

PREPROCESSING_OUTPUTS = _tensors("""
    INPUT_ID INT32 -1
    REQUEST_INPUT_LEN INT32 1
    DECODER_INPUT_ID INT32 -1
    REQUEST_DECODER_INPUT_LEN INT32 1
    BAD_WORDS_IDS INT32 2,-1
    STOP_WORDS_IDS INT32 2,-1
    EMBEDDING_BIAS FP32 -1
    REQUEST_OUTPUT_LEN INT32 -1
    OUT_END_ID INT32 1
    OUT_PAD_ID INT32 1
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
""")

POSTPROCESSING_INPUTS = _tensors("""
    TOKENS_BATCH INT32 -1,-1
    SEQUENCE_LENGTH INT32 -1
""")
POSTPROCESSING_OUTPUTS = _tensors("OUTPUT STRING -1")
