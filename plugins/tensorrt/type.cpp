// SPDX-License-Identifier: Apache-2.0
#include "tensorrt/type.h"

namespace trtspec::tensorrt {
namespace {

constexpr int32_t kMaxVocab = 1 << 18;  // up to this size the weights' sum fits in 63 bits

int32_t dtype_of(nvinfer1::DataType type) {
    switch (type) {
        case nvinfer1::DataType::kFLOAT:
            return TRTSPEC_FLOAT32;
        case nvinfer1::DataType::kHALF:
            return TRTSPEC_FLOAT16;
        case nvinfer1::DataType::kBF16:
            return TRTSPEC_BFLOAT16;
        default:
            return TRTSPEC_NONE;
    }
}

/// Rows in TensorRT's layout: without gaps, `count` per request, `ids` of their columns used.
trtspec_rows rows_of(const Call& call, Role role, Axis columns, int32_t count, int32_t ids) {
    trtspec_rows rows{};
    rows.data = call.input<void>(role);
    rows.row_stride = call.extent(columns);
    rows.request_stride = rows.row_stride * count;
    rows.dtype = dtype_of(call.types[static_cast<int>(role)]);
    rows.entries = ids;
    return rows;
}

}  // namespace

Fields shared_fields() {
    return {
        {"vocab", &Options::vocab, 1, kMaxVocab},
        {"draft_kind", &Options::draft_kind, TRTSPEC_DRAFT_CHOSEN, TRTSPEC_DRAFT_PROBABILITIES},
        {"draft_vocab", &Options::draft_vocab, 0, kMaxVocab},
        {"sampled", &Options::sampled, 0, 1},
    };
}

void append_draft(const Options& options, std::vector<Tensor>& inputs) {
    if (options.draft_kind == TRTSPEC_DRAFT_CHOSEN) {
        return;
    }
    const Type type = options.draft_kind == TRTSPEC_DRAFT_PROBABILITIES ? Type::kFloat : Type::kTargetLogits;
    inputs.push_back({Role::kDraft, type, {{Axis::kBatch}, {Axis::kTokens}, {Axis::kDraftColumns}}});
    if (options.draft_vocab > 0) {
        inputs.push_back({Role::kDraftColumn, Type::kInt, {{Axis::kIds}}});
    }
}

void append_sampling(const Options& options, Dim uniforms, std::vector<Tensor>& inputs) {
    if (options.sampled == 0) {
        return;
    }
    inputs.push_back({Role::kTemperature, Type::kFloat, {{Axis::kBatch}}});
    inputs.push_back({Role::kTopP, Type::kFloat, {{Axis::kBatch}}});
    inputs.push_back({Role::kTopK, Type::kInt, {{Axis::kBatch}}});
    // TensorRT lacks unsigned tensors: the same 32 bits
    inputs.push_back({Role::kUniforms, Type::kInt, {{Axis::kBatch}, uniforms}});
}

trtspec_rows target_rows_of(const Call& call, int32_t count) {
    return rows_of(call, Role::kTarget, Axis::kTargetColumns, count, call.options.vocab);
}

trtspec_rows draft_rows_of(const Call& call, int32_t count) {
    if (call.options.draft_kind == TRTSPEC_DRAFT_CHOSEN) {
        return trtspec_rows{};
    }
    const int32_t ids = call.options.draft_vocab > 0 ? call.options.draft_vocab : call.options.vocab;
    return rows_of(call, Role::kDraft, Axis::kDraftColumns, count, ids);
}

trtspec_sampling sampling_of(const Call& call) {
    trtspec_sampling sampling{};
    sampling.temperature = call.input<float>(Role::kTemperature);
    sampling.top_p = call.input<float>(Role::kTopP);
    sampling.top_k = call.input<int32_t>(Role::kTopK);
    sampling.uniforms = call.input<uint32_t>(Role::kUniforms);
    return sampling;
}

}  // namespace trtspec::tensorrt
