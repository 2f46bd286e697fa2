// SPDX-License-Identifier: Apache-2.0
#include "tensorrt/plugin.h"

#include <algorithm>
#include <string>

#include "tensorrt/log.h"

namespace trtspec::tensorrt {
namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginTensorDesc;

constexpr int32_t kFailed = 1;

/// The result of `body`, or `failed` with a message if it throws, because TensorRT's functions must not throw.
template <class Body, class Result>
Result guarded(const char* plugin, Result failed, Body body) noexcept {
    try {
        return body();
    } catch (const std::exception& error) {
        log_error(plugin, error.what());
        return failed;
    }
}

PluginFieldCollection collection_of(const std::vector<nvinfer1::PluginField>& fields) {
    return PluginFieldCollection{static_cast<int32_t>(fields.size()), fields.data()};
}

void check_count(const char* what, int32_t given, const std::vector<Tensor>& expected) {
    if (given == static_cast<int32_t>(expected.size())) {
        return;
    }
    std::string names;
    for (const Tensor& tensor : expected) {
        names += (names.empty() ? "" : ", ") + std::string(name_of(tensor.role));
    }
    throw Refused("takes " + std::to_string(expected.size()) + " " + what + " (" + names + "), not " +
                  std::to_string(given));
}

/// The length of an output's dimension, from the first input that has its axis without an addend.
const nvinfer1::IDimensionExpr* length_of(const Dim& dim, const std::vector<Tensor>& tensors, const DimsExprs* inputs,
                                          nvinfer1::IExprBuilder& builder) {
    for (size_t i = 0; i < tensors.size(); ++i) {
        for (size_t j = 0; j < tensors[i].shape.size(); ++j) {
            if (tensors[i].shape[j].axis == dim.axis && tensors[i].shape[j].plus == 0) {
                const nvinfer1::IDimensionExpr* length = inputs[i].d[j];
                return dim.plus == 0 ? length
                                     : builder.operation(nvinfer1::DimensionOperation::kSUM, *length,
                                                         *builder.constant(dim.plus));
            }
        }
    }
    throw std::logic_error("an output has an axis that no input has");
}

/// The known dimensions of a built network; -1 for the others.
Dims constants_of(const DimsExprs& shape) {
    Dims dims{};
    dims.nbDims = shape.nbDims;
    for (int32_t i = 0; i < shape.nbDims; ++i) {
        dims.d[i] = shape.d[i]->isConstant() ? shape.d[i]->getConstantValue() : -1;
    }
    return dims;
}

/// Throws Refused for a tensor with fewer columns than ids; it may have more.
void check_columns(const Extents& extents, Role role, Axis axis, int32_t ids) {
    const int64_t columns = extents[static_cast<int>(axis)];
    if (columns != 0 && columns < ids) {
        throw Refused(std::string(name_of(role)) + " has " + std::to_string(columns) + " columns for " +
                      std::to_string(ids) + " ids");
    }
}

/// Throws Refused for more rows per request than a kernel supports.
void check_tokens(const PluginType& type, const Extents& extents) {
    if (extents[static_cast<int>(Axis::kTokens)] > type.max_tokens) {
        throw Refused("tokens has " + std::to_string(extents[static_cast<int>(Axis::kTokens)]) +
                      " columns; at most " + std::to_string(type.max_tokens) + " are supported");
    }
}

/// The options, if they are valid for a plugin of this type.
const Options& checked(const PluginType& type, const Options& options) {
    if (options.vocab == 0) {
        throw Refused("field vocab is missing: how many ids the target has");
    }
    if (options.draft_vocab > 0 && options.draft_kind == TRTSPEC_DRAFT_CHOSEN) {
        throw Refused("field draft_vocab needs a draft tensor: set draft_kind");
    }
    type.check(options);
    return options;
}

}  // namespace

VerifyPlugin::VerifyPlugin(const PluginType& type, const Options& options)
    : type_(type),
      options_(checked(type, options)),
      inputs_(type.inputs(options_)),
      field_values_(fields_of(type.fields, options_)),
      serialized_(collection_of(field_values_)) {}

VerifyPlugin::VerifyPlugin(const VerifyPlugin& other) : VerifyPlugin(other.type_, other.options_) {}

nvinfer1::IPluginCapability* VerifyPlugin::getCapabilityInterface(nvinfer1::PluginCapabilityType capability) noexcept {
    switch (capability) {
        case nvinfer1::PluginCapabilityType::kCORE:
            return static_cast<nvinfer1::IPluginV3OneCore*>(this);
        case nvinfer1::PluginCapabilityType::kBUILD:
            return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
        case nvinfer1::PluginCapabilityType::kRUNTIME:
            return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

nvinfer1::IPluginV3* VerifyPlugin::clone() noexcept {
    return guarded(type_.name, static_cast<nvinfer1::IPluginV3*>(nullptr), [&] { return new VerifyPlugin(*this); });
}

int32_t VerifyPlugin::getNbOutputs() const noexcept { return static_cast<int32_t>(type_.outputs.size()); }

int32_t VerifyPlugin::getOutputDataTypes(DataType* types, int32_t outputs, const DataType* input_types,
                                         int32_t inputs) const noexcept {
    return guarded(type_.name, kFailed, [&] {
        check_count("inputs", inputs, inputs_);
        for (int32_t i = 0; i < inputs; ++i) {
            check_type(inputs_[i], input_types[i], input_types[0]);
        }
        std::fill_n(types, outputs, DataType::kINT32);
        return 0;
    });
}

int32_t VerifyPlugin::getOutputShapes(const DimsExprs* inputs, int32_t input_count, const DimsExprs*, int32_t,
                                      DimsExprs* outputs, int32_t output_count,
                                      nvinfer1::IExprBuilder& builder) noexcept {
    return guarded(type_.name, kFailed, [&] {
        checked_extents(input_count, [&](size_t i) { return constants_of(inputs[i]); });
        check_count("outputs", output_count, type_.outputs);
        for (int32_t i = 0; i < output_count; ++i) {
            const std::vector<Dim>& shape = type_.outputs[i].shape;
            outputs[i].nbDims = static_cast<int32_t>(shape.size());
            for (size_t j = 0; j < shape.size(); ++j) {
                outputs[i].d[j] = length_of(shape[j], inputs_, inputs, builder);
            }
        }
        return 0;
    });
}

bool VerifyPlugin::supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* tensors, int32_t inputs,
                                             int32_t outputs) noexcept {
    return guarded(type_.name, false, [&] {
        check_count("inputs", inputs, inputs_);
        check_count("outputs", outputs, type_.outputs);
        const Tensor& tensor = position < inputs ? inputs_[position] : type_.outputs[position - inputs];
        const PluginTensorDesc& desc = tensors[position].desc;
        return desc.format == nvinfer1::TensorFormat::kLINEAR && supports(tensor, desc.type, tensors[0].desc.type);
    });
}

int32_t VerifyPlugin::configurePlugin(const DynamicPluginTensorDesc* in, int32_t inputs, const DynamicPluginTensorDesc*,
                                      int32_t) noexcept {
    return guarded(type_.name, kFailed, [&] {
        checked_extents(inputs, [&](size_t i) { return in[i].min; });
        checked_extents(inputs, [&](size_t i) { return in[i].max; });
        return 0;
    });
}

size_t VerifyPlugin::getWorkspaceSize(const DynamicPluginTensorDesc* in, int32_t inputs, const DynamicPluginTensorDesc*,
                                      int32_t) const noexcept {
    return guarded(type_.name, size_t{0}, [&] {
        Call call{options_, checked_extents(inputs, [&](size_t i) { return in[i].max; })};
        for (size_t i = 0; i < inputs_.size(); ++i) {
            call.types[static_cast<int>(inputs_[i].role)] = in[i].desc.type;
        }
        return static_cast<size_t>(type_.workspace_bytes(call));
    });
}

int32_t VerifyPlugin::onShapeChange(const PluginTensorDesc* in, int32_t inputs, const PluginTensorDesc*,
                                    int32_t) noexcept {
    return guarded(type_.name, kFailed, [&] {
        checked_extents(inputs, [&](size_t i) { return in[i].dims; });
        return 0;
    });
}

int32_t VerifyPlugin::enqueue(const PluginTensorDesc* in, const PluginTensorDesc*, const void* const* inputs,
                              void* const* outputs, void* workspace, cudaStream_t stream) noexcept {
    return guarded(type_.name, kFailed, [&] {
        Call call{options_, extents_of(inputs_, [&](size_t i) { return in[i].dims; })};
        for (size_t i = 0; i < inputs_.size(); ++i) {
            const int role = static_cast<int>(inputs_[i].role);
            call.inputs[role] = inputs[i];
            call.types[role] = in[i].type;
        }
        for (size_t i = 0; i < type_.outputs.size(); ++i) {
            call.outputs[static_cast<int>(type_.outputs[i].role)] = outputs[i];
        }
        call.workspace = workspace;
        const int32_t error = type_.launch(call, stream);
        if (error != 0) {
            log_error(type_.name, trtspec_error(error));
        }
        return error;
    });
}

nvinfer1::IPluginV3* VerifyPlugin::attachToContext(nvinfer1::IPluginResourceContext*) noexcept { return clone(); }

const PluginFieldCollection* VerifyPlugin::getFieldsToSerialize() noexcept { return &serialized_; }

template <class DimsOf>
Extents VerifyPlugin::checked_extents(int32_t inputs, DimsOf dims) const {
    check_count("inputs", inputs, inputs_);
    const Extents extents = extents_of(inputs_, dims);
    check_tokens(type_, extents);
    check_columns(extents, Role::kTarget, Axis::kTargetColumns, options_.vocab);
    check_columns(extents, Role::kDraft, Axis::kDraftColumns,
                  options_.draft_vocab > 0 ? options_.draft_vocab : options_.vocab);
    check_columns(extents, Role::kDraftColumn, Axis::kIds, options_.vocab);
    return extents;
}

VerifyCreator::VerifyCreator(const PluginType& type)
    : type_(type), fields_(fields_of(type.fields, defaults_)), collection_(collection_of(fields_)) {}

nvinfer1::IPluginV3* VerifyCreator::createPlugin(const char*, const PluginFieldCollection* fields,
                                                 nvinfer1::TensorRTPhase) noexcept {
    return guarded(type_.name, static_cast<nvinfer1::IPluginV3*>(nullptr), [&]() -> nvinfer1::IPluginV3* {
        return new VerifyPlugin(type_, parse_options(type_.fields, *fields));
    });
}

}  // namespace trtspec::tensorrt
