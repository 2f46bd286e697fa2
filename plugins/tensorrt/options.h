// SPDX-License-Identifier: Apache-2.0
// What a plugin is told besides its tensors: its fields, which are also all that a plan keeps of it.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <stdexcept>
#include <variant>
#include <vector>

namespace trtspec::tensorrt {

/// Something the network's author can mend. Caught and logged at TensorRT's interface, which knows no exceptions.
class Refused : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// What tensors' shapes don't say. Enumerations are numbered as in trtspec/verify.h.
struct Options {
    int32_t vocab = 0;        ///< ids that exist; the target's rows may have more columns
    int32_t draft_kind = 0;   ///< what the draft tensor holds, if there is one
    int32_t draft_vocab = 0;  ///< columns of a draft with a vocabulary of its own; 0: it has the target's
    int32_t sampled = 1;      ///< 0: every row is greedy, and nothing that sampling needs is an input
    int32_t mode = 0;         ///< of a tree
    float threshold = 0.09f;  ///< of a tree's typical acceptance
    float alpha = 0.3f;       ///< likewise
};

/// A field: its name, where its value lies, and what values it takes.
struct Field {
    const char* name;
    std::variant<int32_t Options::*, float Options::*> member;
    double least;
    double most;
};

using Fields = std::vector<Field>;

/// The options that `given` says, defaults elsewhere; a field that is unknown, of another type, not a scalar or out of
/// its range is Refused.
Options parse_options(const Fields& fields, const nvinfer1::PluginFieldCollection& given);

/// The fields with pointers into `options`, which must outlive them.
std::vector<nvinfer1::PluginField> fields_of(const Fields& fields, const Options& options);

}  // namespace trtspec::tensorrt
