// SPDX-License-Identifier: Apache-2.0
// A verification as a TensorRT plugin: all answers to TensorRT are derived from a PluginType, which is data.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <vector>

#include "tensorrt/type.h"

namespace trtspec::tensorrt {

/// The version of the fields and tensors in registries and plans.
constexpr const char* kPluginVersion = "1";
constexpr const char* kPluginNamespace = "";

class VerifyPlugin final : public nvinfer1::IPluginV3,
                           public nvinfer1::IPluginV3OneCore,
                           public nvinfer1::IPluginV3OneBuild,
                           public nvinfer1::IPluginV3OneRuntime {
public:
    /// Throws Refused if the options contradict each other. The type must outlive the plugin.
    VerifyPlugin(const PluginType& type, const Options& options);
    VerifyPlugin(const VerifyPlugin& other);
    VerifyPlugin& operator=(const VerifyPlugin&) = delete;

    const std::vector<Tensor>& input_tensors() const { return inputs_; }
    const std::vector<Tensor>& output_tensors() const { return type_.outputs; }

    nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType capability) noexcept override;
    nvinfer1::IPluginV3* clone() noexcept override;

    const char* getPluginName() const noexcept override { return type_.name; }
    const char* getPluginVersion() const noexcept override { return kPluginVersion; }
    const char* getPluginNamespace() const noexcept override { return kPluginNamespace; }

    int32_t getNbOutputs() const noexcept override;
    int32_t getOutputDataTypes(nvinfer1::DataType* types, int32_t outputs, const nvinfer1::DataType* input_types,
                               int32_t inputs) const noexcept override;
    int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count,
                            const nvinfer1::DimsExprs* shape_inputs, int32_t shape_input_count,
                            nvinfer1::DimsExprs* outputs, int32_t output_count,
                            nvinfer1::IExprBuilder& builder) noexcept override;
    bool supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors, int32_t inputs,
                                   int32_t outputs) noexcept override;
    int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* in, int32_t inputs,
                            const nvinfer1::DynamicPluginTensorDesc* out, int32_t outputs) noexcept override;
    size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* in, int32_t inputs,
                            const nvinfer1::DynamicPluginTensorDesc* out, int32_t outputs) const noexcept override;

    int32_t onShapeChange(const nvinfer1::PluginTensorDesc* in, int32_t inputs, const nvinfer1::PluginTensorDesc* out,
                          int32_t outputs) noexcept override;
    int32_t enqueue(const nvinfer1::PluginTensorDesc* in, const nvinfer1::PluginTensorDesc* out,
                    const void* const* inputs, void* const* outputs, void* workspace,
                    cudaStream_t stream) noexcept override;
    nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
    const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

private:
    /// The axes' lengths; throws Refused unless they agree and have space for every id.
    template <class DimsOf>
    Extents checked_extents(int32_t inputs, DimsOf dims) const;

    const PluginType& type_;
    const Options options_;
    const std::vector<Tensor> inputs_;
    const std::vector<nvinfer1::PluginField> field_values_;
    const nvinfer1::PluginFieldCollection serialized_;
};

class VerifyCreator final : public nvinfer1::IPluginCreatorV3One {
public:
    /// The type must outlive the creator.
    explicit VerifyCreator(const PluginType& type);

    nvinfer1::IPluginV3* createPlugin(const char* name, const nvinfer1::PluginFieldCollection* fields,
                                      nvinfer1::TensorRTPhase phase) noexcept override;
    const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
    const char* getPluginName() const noexcept override { return type_.name; }
    const char* getPluginVersion() const noexcept override { return kPluginVersion; }
    const char* getPluginNamespace() const noexcept override { return kPluginNamespace; }

private:
    const PluginType& type_;
    const Options defaults_;
    const std::vector<nvinfer1::PluginField> fields_;
    const nvinfer1::PluginFieldCollection collection_;
};

}  // namespace trtspec::tensorrt
