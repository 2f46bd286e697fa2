// SPDX-License-Identifier: Apache-2.0
// The parameters of a plugin besides its tensors: its fields, which are also its complete state in a plan.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <stdexcept>
#include <variant>
#include <vector>

namespace trtspec::tensorrt {

/// An error that the network's author can fix. Caught and logged at TensorRT's interface, which is exception-free.
class Refused : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Options that do not follow from the tensors' shapes. Enumerations are numbered as in trtspec/verify.h.
struct Options {
    int32_t vocab = 0;        ///< number of ids; the target's rows may have more columns
    int32_t draft_kind = 0;   ///< content of the draft tensor, if there is one
    int32_t draft_vocab = 0;  ///< columns of a draft with its own vocabulary; 0: the target's vocabulary
    int32_t sampled = 1;      ///< 0: every row is greedy, without sampling inputs
    int32_t mode = 0;         ///< for trees
    float threshold = 0.09f;  ///< for typical acceptance of trees
    float alpha = 0.3f;       ///< likewise
};

/// A field: its name, its member, and its range of values.
struct Field {
    const char* name;
    std::variant<int32_t Options::*, float Options::*> member;
    double least;
    double most;
};

using Fields = std::vector<Field>;

/// The options in `given`, with defaults for the others; throws Refused for a field that is unknown, of another type,
/// not a scalar or out of range.
Options parse_options(const Fields& fields, const nvinfer1::PluginFieldCollection& given);

/// The fields with pointers into `options`, which must outlive them.
std::vector<nvinfer1::PluginField> fields_of(const Fields& fields, const Options& options);

}  // namespace trtspec::tensorrt
