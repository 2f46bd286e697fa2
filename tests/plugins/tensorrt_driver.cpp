// SPDX-License-Identifier: Apache-2.0
// Replaces TensorRT for its plugins: makes TensorRT's calls on a machine that has only its headers. Instead of a launch
// on a GPU, the C++ library computes in this process, with tensors in host memory.
//
// Tensors are passed as text: "float32[2,4,7] int32[2,3] ..."; a letter stands for an extent unknown to the network.
// Results are text too, which is valid until the next call; null is a rejection, with its reason in `message`.
#include <NvInferRuntime.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tensorrt/plugin.h"
#include "trtspec/verify.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace nvinfer1;

EXPORT void setLoggerFinder(ILoggerFinder* finder);
EXPORT IPluginCreatorInterface* const* getCreators(int32_t& count);

#ifndef TRTSPEC_WITH_CUDA  // if defined, the driver is linked with a library with CUDA kernels
// Linked with --wrap: the plugins call these functions.
#define WRAPPED(name) EXPORT __typeof__(trtspec_##name) __wrap_trtspec_##name;

WRAPPED(verify_chain_cuda)
WRAPPED(verify_tree_cuda)
WRAPPED(verify_chain_workspace)
WRAPPED(verify_tree_workspace)

int __wrap_trtspec_verify_chain_cuda(const trtspec_chain_args* args, void*) {
    return trtspec_verify_chain_cpu(args, 1);
}
int __wrap_trtspec_verify_tree_cuda(const trtspec_tree_args* args, void*) {
    return trtspec_verify_tree_cpu(args, 1);
}

// A function of the sizes, to detect a plugin that confuses them.
uint64_t __wrap_trtspec_verify_chain_workspace(const trtspec_chain_args* args) {
    return 100 * args->batch + 10 * args->draft_len + args->target.dtype;
}
uint64_t __wrap_trtspec_verify_tree_workspace(const trtspec_tree_args* args) {
    return 100 * args->batch + 10 * args->nodes + args->target.dtype;
}
#endif

namespace {

std::string answer;
std::string said;

class Logger final : public ILogger {
    void log(Severity, const char* message) noexcept override { said = message; }
} logger;

class Finder final : public ILoggerFinder {
    ILogger* findLogger() override { return &logger; }
} finder;

/// A dimension of a network: a number, or an expression as text.
class Dimension final : public IDimensionExpr, public apiv::VDimensionExpr {
public:
    explicit Dimension(std::string text) : text(std::move(text)) { mImpl = this; }
    ~Dimension() noexcept override = default;

    const std::string text;

private:
    bool isConstant() const noexcept override { return text.find_first_not_of("0123456789") == std::string::npos; }
    int64_t getConstantValue() const noexcept override { return std::atoll(text.c_str()); }
    bool isSizeTensor() const noexcept override { return false; }
};

const std::string& text_of(const IDimensionExpr& dimension) { return static_cast<const Dimension&>(dimension).text; }

class Builder final : public IExprBuilder, public apiv::VExprBuilder {
public:
    Builder() { mImpl = this; }
    ~Builder() noexcept override = default;

    const IDimensionExpr* named(std::string text) {
        dimensions_.emplace_back(std::move(text));
        return &dimensions_.back();
    }

private:
    const IDimensionExpr* constant(int64_t value) noexcept override { return named(std::to_string(value)); }
    const IDimensionExpr* declareSizeTensor(int32_t, const IDimensionExpr&, const IDimensionExpr&) override {
        return nullptr;
    }
    const IDimensionExpr* operation(DimensionOperation operation, const IDimensionExpr& first,
                                    const IDimensionExpr& second) noexcept override {
        return operation == DimensionOperation::kSUM ? named(text_of(first) + "+" + text_of(second)) : nullptr;
    }

    std::deque<Dimension> dimensions_;
};

struct Described {
    DataType type;
    std::vector<std::string> shape;
};

DataType type_named(const std::string& name) {
    if (name == "float32") return DataType::kFLOAT;
    if (name == "float16") return DataType::kHALF;
    if (name == "bfloat16") return DataType::kBF16;
    if (name == "int32") return DataType::kINT32;
    if (name == "int64") return DataType::kINT64;
    std::abort();
}

std::vector<Described> parse(const char* text) {
    std::vector<Described> all;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        const size_t open = word.find('[');
        Described one{type_named(word.substr(0, open)), {}};
        std::istringstream extents(word.substr(open + 1, word.size() - open - 2));
        for (std::string extent; std::getline(extents, extent, ',');) {
            one.shape.push_back(extent);
        }
        all.push_back(one);
    }
    return all;
}

std::vector<DynamicPluginTensorDesc> dynamic_of(const char* tensors) {
    std::vector<DynamicPluginTensorDesc> all;
    for (const Described& one : parse(tensors)) {
        DynamicPluginTensorDesc desc{};
        desc.desc.type = one.type;
        desc.desc.format = TensorFormat::kLINEAR;
        desc.desc.dims.nbDims = static_cast<int32_t>(one.shape.size());
        for (size_t i = 0; i < one.shape.size(); ++i) {
            desc.desc.dims.d[i] = std::atoll(one.shape[i].c_str());
        }
        desc.min = desc.max = desc.opt = desc.desc.dims;
        all.push_back(desc);
    }
    return all;
}

std::vector<PluginTensorDesc> concrete_of(const char* tensors) {
    std::vector<PluginTensorDesc> all;
    for (const DynamicPluginTensorDesc& desc : dynamic_of(tensors)) {
        all.push_back(desc.desc);
    }
    return all;
}

IPluginV3* plugin_of(void* handle) { return static_cast<IPluginV3*>(handle); }

IPluginV3OneBuild& build_of(void* handle) {
    IPluginCapability* build = plugin_of(handle)->getCapabilityInterface(PluginCapabilityType::kBUILD);
    return *static_cast<IPluginV3OneBuild*>(build);
}

IPluginV3OneRuntime& runtime_of(void* handle) {
    IPluginCapability* runtime = plugin_of(handle)->getCapabilityInterface(PluginCapabilityType::kRUNTIME);
    return *static_cast<IPluginV3OneRuntime*>(runtime);
}

IPluginCreatorV3One* creator_named(const std::string& name) {
    int32_t count = 0;
    IPluginCreatorInterface* const* creators = getCreators(count);
    for (int32_t i = 0; i < count; ++i) {
        auto* creator = static_cast<IPluginCreatorV3One*>(creators[i]);
        if (creator->getPluginName() == name) {
            return creator;
        }
    }
    return nullptr;
}

const char* answered(const std::string& text) {
    answer = text;
    return answer.c_str();
}

std::string text_of(const PluginFieldCollection& fields) {
    std::ostringstream text;
    for (int32_t i = 0; i < fields.nbFields; ++i) {
        const PluginField& field = fields.fields[i];
        text << (i > 0 ? " " : "") << field.name << "=";
        if (field.type == PluginFieldType::kINT32) {
            text << *static_cast<const int32_t*>(field.data);
        } else {
            text << *static_cast<const float*>(field.data);
        }
    }
    return text.str();
}

}  // namespace

EXPORT const char* message() { return said.c_str(); }

/// A plugin with fields such as "vocab=7 alpha=0.5": int32 without a decimal point, else float32.
EXPORT void* create(const char* name, const char* fields) {
    setLoggerFinder(&finder);
    std::deque<std::string> names;
    std::deque<int32_t> integers;
    std::deque<float> reals;
    std::vector<PluginField> given;
    std::istringstream words(fields);
    for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        const std::string value = word.substr(equals + 1);
        names.push_back(word.substr(0, equals));
        if (value.find('.') == std::string::npos) {
            integers.push_back(std::stoi(value));
            given.emplace_back(names.back().c_str(), &integers.back(), PluginFieldType::kINT32, 1);
        } else {
            reals.push_back(std::stof(value));
            given.emplace_back(names.back().c_str(), &reals.back(), PluginFieldType::kFLOAT32, 1);
        }
    }
    const PluginFieldCollection collection{static_cast<int32_t>(given.size()), given.data()};
    return creator_named(name)->createPlugin("a layer", &collection, TensorRTPhase::kBUILD);
}

EXPORT void destroy(void* plugin) { delete plugin_of(plugin); }

EXPORT void* cloned(void* plugin) { return plugin_of(plugin)->clone(); }

/// A plugin created from the serialized fields of another one, as in the execution of a plan.
EXPORT void* from_plan(void* plugin) {
    const auto& core = *static_cast<IPluginV3OneCore*>(plugin_of(plugin)->getCapabilityInterface(
        PluginCapabilityType::kCORE));
    const PluginFieldCollection* kept = runtime_of(plugin).getFieldsToSerialize();
    std::unique_ptr<IPluginV3> loaded(
        creator_named(core.getPluginName())->createPlugin("a layer", kept, TensorRTPhase::kRUNTIME));
    return runtime_of(loaded.get()).attachToContext(nullptr);
}

/// The plugin's serialized fields in a plan.
EXPORT const char* kept_fields(void* plugin) { return answered(text_of(*runtime_of(plugin).getFieldsToSerialize())); }

EXPORT const char* known_fields(const char* name) { return answered(text_of(*creator_named(name)->getFieldNames())); }

/// The names of the inputs, then of the outputs.
EXPORT const char* tensor_names(void* plugin) {
    const auto& verify = *static_cast<trtspec::tensorrt::VerifyPlugin*>(plugin_of(plugin));
    std::string names;
    for (const trtspec::tensorrt::Tensor& tensor : verify.input_tensors()) {
        names += std::string(name_of(tensor.role)) + " ";
    }
    names += "->";
    for (const trtspec::tensorrt::Tensor& tensor : verify.output_tensors()) {
        names += std::string(" ") + name_of(tensor.role);
    }
    return answered(names);
}

/// Whether the plugin supports the tensor at `position` of `tensors`, the last `outputs` of which are outputs; `linear` 0
/// queries another format.
EXPORT int supported(void* plugin, int position, const char* tensors, int outputs, int linear) {
    std::vector<DynamicPluginTensorDesc> all = dynamic_of(tensors);
    all[position].desc.format = linear ? TensorFormat::kLINEAR : TensorFormat::kCHW32;
    const int inputs = static_cast<int>(all.size()) - outputs;
    return build_of(plugin).supportsFormatCombination(position, all.data(), inputs, outputs);
}

EXPORT const char* output_shapes(void* plugin, const char* inputs) {
    Builder builder;
    std::vector<DimsExprs> shapes;
    std::vector<DataType> input_types;
    for (const Described& one : parse(inputs)) {
        input_types.push_back(one.type);
        DimsExprs shape{static_cast<int32_t>(one.shape.size()), {}};
        for (size_t i = 0; i < one.shape.size(); ++i) {
            shape.d[i] = builder.named(one.shape[i]);
        }
        shapes.push_back(shape);
    }
    std::vector<DimsExprs> outputs(build_of(plugin).getNbOutputs());
    std::vector<DataType> types(outputs.size());
    const auto count = static_cast<int32_t>(outputs.size());
    if (build_of(plugin).getOutputShapes(shapes.data(), static_cast<int32_t>(shapes.size()), nullptr, 0, outputs.data(),
                                         count, builder) != 0 ||
        build_of(plugin).getOutputDataTypes(types.data(), count, input_types.data(),
                                            static_cast<int32_t>(input_types.size())) != 0) {
        return nullptr;
    }
    std::string text;
    for (size_t i = 0; i < outputs.size(); ++i) {
        text += std::string(i > 0 ? " " : "") + (types[i] == DataType::kINT32 ? "int32[" : "?[");
        for (int32_t j = 0; j < outputs[i].nbDims; ++j) {
            text += (j > 0 ? "," : "") + text_of(*outputs[i].d[j]);
        }
        text += "]";
    }
    return answered(text);
}

EXPORT int configure(void* plugin, const char* inputs) {
    const auto all = dynamic_of(inputs);
    return build_of(plugin).configurePlugin(all.data(), static_cast<int32_t>(all.size()), nullptr, 0);
}

EXPORT uint64_t workspace(void* plugin, const char* inputs) {
    const auto all = dynamic_of(inputs);
    return build_of(plugin).getWorkspaceSize(all.data(), static_cast<int32_t>(all.size()), nullptr, 0);
}

/// Pointers refer to the memory of the computation: host memory here, device memory with CUDA kernels.
EXPORT int launch(void* plugin, const char* inputs, const void* const* data, void* const* outputs, void* space) {
    const auto all = concrete_of(inputs);
    IPluginV3OneRuntime& runtime = runtime_of(plugin);
    const int changed = runtime.onShapeChange(all.data(), static_cast<int32_t>(all.size()), nullptr, 0);
    return changed != 0 ? changed : runtime.enqueue(all.data(), nullptr, data, outputs, space, nullptr);
}
