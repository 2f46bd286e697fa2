// SPDX-License-Identifier: Apache-2.0
// A plugin's inputs and outputs as data: their names, types, and the extents that must agree.
#pragma once

#include <NvInferRuntime.h>

#include <array>
#include <cstdint>
#include <vector>

namespace trtspec::tensorrt {

enum class Type {
    kLogits,        ///< float32, float16 or bfloat16
    kTargetLogits,  ///< the type of the target's logits
    kFloat,
    kInt,
};

/// An extent shared by several tensors. There may be more columns than ids.
enum class Axis { kBatch, kTokens, kTargetColumns, kDraftColumns, kIds };
constexpr int kAxes = static_cast<int>(Axis::kIds) + 1;

/// One dimension: an axis, and what is added to it (a chain's logits have one row more than there are drafted tokens).
struct Dim {
    Axis axis;
    int32_t plus = 0;
};

/// The role of a tensor in its plugin.
enum class Role {
    kTarget, kDraft, kDraftColumn, kTokens, kParents, kLengths, kLimits, kTemperature, kTopP, kTopK, kUniforms,
    kAccepted, kOutput, kPath, kPathLen, kNext, kStatus,
};
constexpr int kRoles = static_cast<int>(Role::kStatus) + 1;

struct Tensor {
    Role role;
    Type type;
    std::vector<Dim> shape;
};

/// The length of each axis; 0 if no tensor has it.
using Extents = std::array<int64_t, kAxes>;

/// A tensor's name, for networks and messages.
const char* name_of(Role role);

/// Whether a tensor may have this type if the target has the type `target`.
bool supports(const Tensor& tensor, nvinfer1::DataType type, nvinfer1::DataType target);

/// Throws Refused, with both types in its message, if a tensor may not have this type.
void check_type(const Tensor& tensor, nvinfer1::DataType type, nvinfer1::DataType target);

/// Sets the lengths of axes that are not known yet and compares the others; throws Refused if they contradict each
/// other. A dimension of -1 is ignored.
void merge_extents(const Tensor& tensor, const nvinfer1::Dims& dims, Extents& extents);

/// The axes' lengths in one call; `dims(i)` are those of tensor i.
template <class DimsOf>
Extents extents_of(const std::vector<Tensor>& tensors, DimsOf dims) {
    Extents extents{};
    for (size_t i = 0; i < tensors.size(); ++i) {
        merge_extents(tensors[i], dims(i), extents);
    }
    return extents;
}

}  // namespace trtspec::tensorrt
