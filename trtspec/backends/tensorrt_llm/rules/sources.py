# SPDX-License-Identifier: Apache-2.0
"""Public sources of the rules, in the form REPOSITORY:PATH@COMMIT."""

TRT = "NVIDIA/TensorRT-LLM"

BUILD = f"{TRT}:tensorrt_llm/commands/build.py@65f1d153"
BUILDER = f"{TRT}:tensorrt_llm/builder.py@008b2b8d"
PLUGINS = f"{TRT}:tensorrt_llm/plugin/plugin.py@c20322ff"
NUM_TOKENS = f"{TRT}:tensorrt_llm/_common.py@0fccc5b9"
MODELS = f"{TRT}:tensorrt_llm/models/__init__.py@02267d3d"
DECODER = f"{TRT}:tensorrt_llm/models/modeling_utils.py@01ea6d79"
MEDUSA_MODEL = f"{TRT}:tensorrt_llm/models/medusa/model.py@02499765"
REDRAFTER_MODEL = f"{TRT}:tensorrt_llm/models/redrafter/model.py@1d263f15"
GEMMA_CONFIG = f"{TRT}:tensorrt_llm/models/gemma/config.py@9df6d722"
GEMMA_MODEL = f"{TRT}:tensorrt_llm/models/gemma/model.py@5dedf53b"
PHI_CONFIG = f"{TRT}:tensorrt_llm/models/phi3/config.py@033f4067"
PHI_MODEL = f"{TRT}:tensorrt_llm/models/phi3/model.py@1479eaf5"
PHI_README = f"{TRT}:examples/models/core/phi/README.md@2bf8c593"
QUANTIZE = f"{TRT}:tensorrt_llm/quantization/quantize.py@89fd9b74"
ATTENTION = f"{TRT}:tensorrt_llm/functional.py@0071496d"
ATTENTION_PLUGIN = f"{TRT}:cpp/tensorrt_llm/plugins/gptAttentionPlugin/gptAttentionPlugin.cpp@026da036"
HARDWARE = f"{TRT}:docs/source/legacy/reference/support-matrix.md@17552a44"

EXECUTOR = f"{TRT}:cpp/tensorrt_llm/executor/executorImpl.cpp@b35ac1b6"
BATCHING = f"{TRT}:cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp@00825c4e"
MODEL_LIMITS = f"{TRT}:cpp/tensorrt_llm/batch_manager/trtGptModel.h@2e2327b9"
SCHEDULER = f"{TRT}:cpp/tensorrt_llm/batch_manager/microBatchScheduler.cpp@0a949d31"
WORLD = f"{TRT}:cpp/tensorrt_llm/runtime/worldConfig.cpp@06c0e9b1"
TRITON = f"{TRT}:triton_backend/inflight_batcher_llm/src/model_instance_state.cc@c8c6df08"

EAGLE_README = f"{TRT}:examples/eagle/README.md@585c7565"
MEDUSA_LIMITS = f"{TRT}:docs/source/legacy/advanced/speculative-decoding.md@28af34e8"
MEDUSA_README = f"{TRT}:examples/medusa/README.md@0f041b7b"
LOOKAHEAD_LAYER = f"{TRT}:cpp/tensorrt_llm/layers/lookaheadDecodingLayer.cpp@05cc2c11"
LOOKAHEAD_README = f"{TRT}:examples/lookahead/README.md@7ed07f06"
REDRAFTER_README = f"{TRT}:examples/redrafter/README.md@2d234357"
DRAFT_README = f"{TRT}:examples/draft_target_model/README.md@11925f62"


def issue(number: int) -> str:
    return f"{TRT}#{number}"
