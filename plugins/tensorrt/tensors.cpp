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

std::string text_of(DataType type) {
    switch (type) {
        case DataType::kFLOAT:
            return "float32";
        case DataType::kHALF:
            return "float16";
        case DataType::kBF16:
            return "bfloat16";
        case DataType::kINT32:
            return "int32";
        case DataType::kINT64:
            return "int64";
        default:
            return "of TensorRT's type " + std::to_string(static_cast<int32_t>(type));
    }
}

std::string supported_types(const Tensor& tensor, DataType target) {
    switch (tensor.type) {
        case Type::kLogits:
            return "float32, float16 or bfloat16";
        case Type::kTargetLogits:
            return text_of(target) + ", the type of target";
        case Type::kFloat:
            return "float32";
        case Type::kInt:
            return "int32";
    }
    return "";
}

}  // namespace

const char* name_of(Role role) { return kNames[static_cast<int>(role)]; }

bool supports(const Tensor& tensor, DataType type, DataType target) {
    const bool is_float = type == DataType::kFLOAT || type == DataType::kHALF || type == DataType::kBF16;
    switch (tensor.type) {
        case Type::kLogits:
            return is_float;
        case Type::kTargetLogits:
            return is_float && type == target;
        case Type::kFloat:
            return type == DataType::kFLOAT;
        case Type::kInt:
            return type == DataType::kINT32;
    }
    return false;
}

void check_type(const Tensor& tensor, DataType type, DataType target) {
    if (!supports(tensor, type, target)) {
        throw Refused(std::string(name_of(tensor.role)) + " is " + text_of(type) + ", must be " +
                      supported_types(tensor, target));
    }
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
