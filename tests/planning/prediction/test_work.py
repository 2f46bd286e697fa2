# SPDX-License-Identifier: Apache-2.0
"""Reads and operations of a pass, compared with numbers published by the models' authors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.prediction.published import source, work
from tests.test_catalogue import PARAMETERS
from trtspec.backends.common.memory import weight_bytes
from trtspec.checkpoints.prequantized import QuantFormat
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import read_model
from trtspec.planning.prediction.flops import count_weights, further_work, head_work, model_work

# Bytes of keys and values per token in 16 bits. arXiv:2505.09343, table 1, in thousands: 70.272, 327.680 and 516.096;
# for the other models computed from config.json: 2 * layers * heads * size * 2 bytes.
CACHE_BYTES = {
    "deepseek-v3.1": 70_272,
    "qwen2.5-72b-instruct": 327_680,
    "llama-3.1-405b-instruct": 516_096,
    "llama-3.3-70b-instruct": 2 * 80 * 8 * 128 * 2,
    "llama-3.1-8b-instruct": 2 * 32 * 8 * 128 * 2,
    "llama-3-8b-instruct": 2 * 32 * 8 * 128 * 2,
    "llama-3.2-3b-instruct": 2 * 28 * 8 * 128 * 2,
    "llama-3.2-1b-instruct": 2 * 16 * 8 * 64 * 2,
    "llama-2-7b-chat": 2 * 32 * 32 * 128 * 2,
    "llama-2-13b": 2 * 40 * 40 * 128 * 2,
    "codellama-7b-instruct": 2 * 32 * 32 * 128 * 2,
    "mistral-7b-instruct-v0.3": 2 * 32 * 8 * 128 * 2,
    "mistral-small-24b-instruct-2501": 2 * 40 * 8 * 128 * 2,
    "mixtral-8x7b-instruct-v0.1": 2 * 32 * 8 * 128 * 2,
    "qwen2.5-0.5b-instruct": 2 * 24 * 2 * 64 * 2,
    "qwen2.5-1.5b-instruct": 2 * 28 * 2 * 128 * 2,
    "qwen3-4b": 2 * 36 * 8 * 128 * 2,
    "qwen3-8b": 2 * 36 * 8 * 128 * 2,
    "qwen3-32b": 2 * 64 * 8 * 128 * 2,
    "qwen3-30b-a3b": 2 * 48 * 4 * 128 * 2,
    "qwen3.5-27b": 2 * 16 * 4 * 256 * 2,
    "gpt-oss-20b": 2 * 24 * 8 * 64 * 2,
    "gpt-oss-120b": 2 * 36 * 8 * 64 * 2,
    "phi-4": 2 * 40 * 10 * 128 * 2,
}
# Billions of active weights per token, including the embedding, as the authors count: the models' cards and papers
# (arXiv:2401.04088, arXiv:2412.19437, arXiv:2505.09388, arXiv:2508.10925, the card of Llama 4 Scout).
ACTIVE = {
    "mixtral-8x7b-instruct-v0.1": 12.9,
    "deepseek-v3.1": 37,
    "qwen3-30b-a3b": 3.3,
    "gpt-oss-120b": 5.1,
    "gpt-oss-20b": 3.6,
    "llama-4-scout-17b-16e-instruct": 17,
}
SCALES = 41_540_496  # of DeepSeek's FP8 format; the hub counts them as parameters


def num_parameters(found: Source) -> int:
    """Return the number of weights in a checkpoint, including those not used for text."""
    return sum(count_weights(tensor) for tensor in found.tensors.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count_matches_the_publisher(name: str) -> None:
    """tests/test_catalogue.py lists the sources of the counts."""
    assert num_parameters(source(name)) == PARAMETERS[name] - (SCALES if name == "deepseek-v3.1" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CACHE_BYTES)
def test_cache_bytes_per_token_match_published_values(name: str) -> None:
    assert work(name).cache_bytes(texts=1, context=1, tensor=1) == CACHE_BYTES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIVE)
def test_active_weights_per_token_match_published_values(name: str) -> None:
    found, looked_up = work(name), 0 if name.startswith("gpt-oss") else work(name).head.numbers
    assert (found.active_numbers + looked_up) / 1e9 == pytest.approx(ACTIVE[name], rel=0.02)


@pytest.mark.parametrize("weights", ["none", "fp8"])
@pytest.mark.parametrize("name", ["llama-3.1-8b-instruct", "qwen2.5-0.5b-instruct", "mixtral-8x7b-instruct-v0.1"])
def test_weight_bytes_match_the_memory_plan(name: str, weights: str) -> None:
    """Everything except the embedding is read, a tied one as the head; the plan counts norms in the layers' format."""
    config = read_model(source(name), "auto").config
    found = model_work(source(name), QuantFormat(weights))
    looked_up = 0 if config.tied_embeddings else 2 * config.vocab_size * config.hidden_size
    read = found.dense.nbytes + found.experts.nbytes
    assert read + looked_up == pytest.approx(weight_bytes(config, QuantFormat(weights)), rel=1e-3 * (weights == "fp8"))


def test_more_tokens_read_more_experts_until_all_are_read() -> None:
    """Two tokens of Mixtral, with 2 of 8 experts each, miss an expert with probability (6 / 8)^2."""
    found = work("mixtral-8x7b-instruct-v0.1")
    experts = [(found.weight_bytes(tokens) - found.dense.nbytes) / found.experts.nbytes for tokens in (1, 2, 100)]
    assert experts == pytest.approx([2 / 8, 1 - (6 / 8) ** 2, 1.0])


def test_tensor_parallelism_divides_heads_but_not_the_latent_cache() -> None:
    assert work("llama-3.1-8b-instruct").cache_bytes(3, 10, 4) == 3 * 10 * 131_072 / 4
    assert work("deepseek-v3.1").cache_bytes(3, 10, 8) == 3 * 10 * 70_272


def test_sliding_window_limits_the_cache_bytes() -> None:
    """Every sixth of Gemma 3's 62 layers attends to the whole text, the others to 1,024 tokens."""
    layer = 2 * 16 * 128 * 2
    assert work("gemma-3-27b-it").cache_bytes(1, 5000, 1) == layer * (10 * 5000 + 52 * 1024)


def test_eagle3_head_reads_its_layer_and_its_lm_head() -> None:
    """SafeAILab's net for Llama 3.1 8B has 0.42 billion weights, without the target's embedding."""
    found = head_work(source("eagle3-llama3.1-instruct-8b"), work("llama-3.1-8b-instruct"))
    assert (found.active_numbers, found.num_layers) == (424_689_664, 1)


def test_head_without_an_lm_head_reads_the_targets_lm_head() -> None:
    target = work("llama-3.1-8b-instruct")
    assert target.head.numbers == 128_256 * 4096
    found, net = head_work(source("eagle-llama3-instruct-8b"), target), source("eagle-llama3-instruct-8b")
    embedding = net.tensors["embed_tokens.weight"].shape
    assert found.active_numbers == num_parameters(net) - embedding[0] * embedding[1] + target.head.numbers


def test_markov_and_confidence_heads_add_to_the_lm_head() -> None:
    """A Markov head looks up rows of the previous token; its weights and the confidence head's add to the LM head."""
    target, net = work("llama-3.1-8b-instruct"), source("eagle-llama3-instruct-8b")
    like = net.tensors["fc.weight"]
    shapes = {
        "markov_head.markov_w1.weight": (128_256, 256),
        "markov_head.markov_w2.weight": (128_256, 256),
        "confidence_head.proj.weight": (1, 4352),
    }
    more = {name: replace(like, name=name, shape=shape) for name, shape in shapes.items()}
    found = head_work(replace(net, tensors=net.tensors | more), target)
    assert found.active_numbers == head_work(net, target).active_numbers + 128_256 * 256 + 4352


def test_medusa_heads_do_not_include_the_targets_lm_head() -> None:
    target = work("vicuna-7b-v1.3")
    medusa = source("medusa-vicuna-7b-v1.3")
    assert head_work(medusa, target).active_numbers == num_parameters(medusa)


def test_mtp_layers_are_counted_separately_from_the_target() -> None:
    """DeepSeek V3 has 671 billion weights and 14 billion in its MTP module (model card)."""
    target = work("deepseek-v3.1")
    further = further_work(source("deepseek-v3.1"), target)
    assert further
    weights = [each.dense.numbers + each.experts.numbers for each in (target, further)]
    assert [round(each / 1e9) for each in weights] == [670, 13]  # without embeddings of 0.93 billion each
    assert further_work(source("llama-3.1-8b-instruct"), work("llama-3.1-8b-instruct")) is None


def test_too_many_active_experts_in_the_config_read_all_experts() -> None:
    mixtral = source("mixtral-8x7b-instruct-v0.1")
    odd = replace(mixtral, config=mixtral.config | {"num_experts_per_tok": 9})
    found = model_work(odd, QuantFormat())
    assert found.weight_bytes(1) == found.dense.nbytes + found.experts.nbytes


def test_scalar_tensor_counts_as_one_weight() -> None:
    net = source("eagle3-llama3.1-instruct-8b")
    odd = replace(net, tensors=net.tensors | {"scalar": replace(net.tensors["norm.weight"], name="scalar", shape=())})
    target = work("llama-3.1-8b-instruct")
    assert head_work(odd, target).dense.numbers == head_work(net, target).dense.numbers + 1
