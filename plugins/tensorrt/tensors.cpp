// SPDX-License-Identifier: Apache-2.0
#include "tensorrt/tensors.h"

#include <string>

#include "tensorrt/options.h"

namespace trtspec::tensorrt {
namespace {

using nvinfer1::DataType;

constexpr const char* kNames[kRoles] = {
    "target", "draft", "draft_column", "tokens", "parents", "lengths", "limits", "temperature", "top_p", "top_k",
    "uniforms", "accepted", "output", "path", "path_len", "next", "status",
};

constexpr const char* kAxisNames[kAxes] = {"batch", "tokens", "target columns", "draft columns", "ids"};

std::string text_of(const nvinfer1::Dims& dims) {
    std::string text = "[";
    for (int32_t i = 0; i < dims.nbDims; ++i) {
        text += (i > 0 ? ", " : "") + std::to_string(dims.d[i]);
    }
    return text + "]";
}

}  // namespace

const char* name_of(Role role) { return kNames[static_cast<int>(role)]; }

bool supports(const Tensor& tensor, const nvinfer1::PluginTensorDesc& desc) {
    if (desc.format != nvinfer1::TensorFormat::kLINEAR) {
        return false;
    }
    switch (tensor.type) {
        case Type::kLogits:
            return desc.type == DataType::kFLOAT || desc.type == DataType::kHALF || desc.type == DataType::kBF16;
        case Type::kFloat:
            return desc.type == DataType::kFLOAT;
        case Type::kInt:
            return desc.type == DataType::kINT32;
    }
    return false;
}

void merge_extents(const Tensor& tensor, const nvinfer1::Dims& dims, Extents& extents) {
    if (dims.nbDims != static_cast<int32_t>(tensor.shape.size())) {
        throw Refused(std::string(name_of(tensor.role)) + " is " + text_of(dims) + ", must have " +
                      std::to_string(tensor.shape.size()) + " dimensions");
    }
    for (int32_t i = 0; i < dims.nbDims; ++i) {
        const Dim& dim = tensor.shape[i];
        const int axis = static_cast<int>(dim.axis);
        const int64_t length = dims.d[i] - dim.plus;
        if (dims.d[i] < 0) {
            continue;
        }
        if (length < 1 || (extents[axis] != 0 && extents[axis] != length)) {
            const std::string expected = std::to_string((extents[axis] != 0 ? extents[axis] : 1) + dim.plus);
            throw Refused(std::string(name_of(tensor.role)) + " is " + text_of(dims) + ", dimension " +
                          std::to_string(i) + " must be " + expected + " (" + kAxisNames[axis] +
                          (dim.plus != 0 ? " + " + std::to_string(dim.plus) : "") + ")");
        }
        extents[axis] = length;
    }
}

}  // namespace trtspec::tensorrt
