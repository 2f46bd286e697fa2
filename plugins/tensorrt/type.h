// SPDX-License-Identifier: Apache-2.0
// A verification as data: its fields, its tensors, and the corresponding call of the C ABI.
#pragma once

#include <NvInferRuntime.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tensorrt/options.h"
#include "tensorrt/tensors.h"
#include "trtspec/verify.h"

namespace trtspec::tensorrt {

/// One launch. Pointers are null for missing tensors, and while only the workspace size is queried.
struct Call {
    const Options& options;
    Extents extents;
    std::array<const void*, kRoles> inputs{};
    std::array<void*, kRoles> outputs{};
    std::array<nvinfer1::DataType, kRoles> types{};
    void* workspace = nullptr;

    int32_t extent(Axis axis) const { return static_cast<int32_t>(extents[static_cast<int>(axis)]); }

    template <class T>
    const T* input(Role role) const {
        return static_cast<const T*>(inputs[static_cast<int>(role)]);
    }

    int32_t* output(Role role) const { return static_cast<int32_t*>(outputs[static_cast<int>(role)]); }
};

/// The definition of one verification plugin.
struct PluginType {
    const char* name;
    Fields fields;
    void (*check)(const Options&);  ///< throws Refused for options that contradict each other
    std::vector<Tensor> (*inputs)(const Options&);
    std::vector<Tensor> outputs;
    int64_t max_tokens;  ///< for Axis::kTokens: drafted tokens of a chain, nodes of a tree
    uint64_t (*workspace_bytes)(const Call&);
    int32_t (*launch)(const Call&, cudaStream_t);  ///< 0, or an error of the C ABI
};

/// TrtspecVerifyChain and TrtspecVerifyTree, defined next to their kernels.
const PluginType& chain_type();
const PluginType& tree_type();

/// The common part of both: vocabularies, the kind of draft, whether rows sample.
Fields shared_fields();

/// The draft's rows, if there are any; for a draft with its own vocabulary, also its column of each target id.
void append_draft(const Options& options, std::vector<Tensor>& inputs);

/// The sampling inputs, with `uniforms` uniforms per request; none if every row is greedy.
void append_sampling(const Options& options, Dim uniforms, std::vector<Tensor>& inputs);

/// The logits' rows, `count` per request.
trtspec_rows target_rows_of(const Call& call, int32_t count);

/// The draft's rows, `count` per request; empty without a draft tensor.
trtspec_rows draft_rows_of(const Call& call, int32_t count);

trtspec_sampling sampling_of(const Call& call);

}  // namespace trtspec::tensorrt
