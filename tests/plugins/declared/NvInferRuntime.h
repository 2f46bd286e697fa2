// SPDX-License-Identifier: Apache-2.0
// The part of TensorRT's C++ plugin interface that plugins/tensorrt uses, for machines without TensorRT's headers.
//
// The headers are not available from package registries, so tests declare the interface: names, enumerators, member order
// and the order of virtual functions are those of TensorRT 10 (-DNV_TENSORRT_MAJOR=10) and 11 (NVIDIA/TensorRT, include/,
// v10.0.0 to v11.1). Tests build networks with real TensorRT and a library compiled with these declarations, which would
// fail with a wrong layout. If TENSORRT_ROOT is set, NVIDIA's headers are used instead.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "NvInferVersion.h"

namespace nvinfer1 {

class IErrorRecorder;
class IGpuAllocator;
class IPluginResource;
class IPluginV3;

enum class DataType : int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBF16 = 7, kINT64 = 8 };
enum class TensorFormat : int32_t { kLINEAR = 0, kCHW32 = 5 };
enum class DimensionOperation : int32_t { kSUM = 0 };
enum class APILanguage : int32_t { kCPP = 0, kPYTHON = 1 };
enum class TensorRTPhase : int32_t { kBUILD = 0, kRUNTIME = 1 };
enum class PluginCapabilityType : int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };
enum class PluginFieldType : int32_t { kFLOAT32 = 1, kINT32 = 5, kUNKNOWN = 8 };

struct Dims {
    static constexpr int32_t MAX_DIMS = 8;
    int32_t nbDims;
    int64_t d[MAX_DIMS];
};

struct PluginTensorDesc {
    Dims dims;
    DataType type;
    TensorFormat format;
    float scale;
};

struct DynamicPluginTensorDesc {
    PluginTensorDesc desc;
    Dims min, max, opt;
};

struct PluginField {
    PluginField(const char* name = nullptr, const void* data = nullptr,
                PluginFieldType type = PluginFieldType::kUNKNOWN, int32_t length = 0) noexcept
        : name(name), data(data), type(type), length(length) {}

    const char* name;
    const void* data;
    PluginFieldType type;
    int32_t length;
};

struct PluginFieldCollection {
    int32_t nbFields = 0;
    const PluginField* fields = nullptr;
};

struct InterfaceInfo {
    const char* kind;
    int32_t major, minor;
};

namespace v_1_0 {

class IVersionedInterface {
public:
    virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
    virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
    virtual ~IVersionedInterface() noexcept = default;
};

#if NV_TENSORRT_MAJOR < 11
class ILogger {
public:
#else
class ILogger : public IVersionedInterface {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"ILogger", 1, 0}; }
#endif
    enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
    virtual void log(Severity severity, const char* message) noexcept = 0;
    virtual ~ILogger() = default;
};

#if NV_TENSORRT_MAJOR < 11
class ILoggerFinder {
public:
    virtual ILogger* findLogger() = 0;

protected:
    virtual ~ILoggerFinder() = default;
};
#else
class ILoggerFinder : public IVersionedInterface {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"ILoggerFinder", 1, 0}; }
    virtual ILogger* findLogger() = 0;

protected:
    ~ILoggerFinder() override = default;
};
#endif

class IPluginCapability : public IVersionedInterface {};
class IPluginCreatorInterface : public IVersionedInterface {};

}  // namespace v_1_0

using v_1_0::ILogger;
using v_1_0::ILoggerFinder;
using v_1_0::IPluginCapability;
using v_1_0::IPluginCreatorInterface;

// The builder's expressions call an implementation class, so that the classes can be extended.
class IDimensionExpr;

namespace apiv {

class VRoot {
public:
    virtual ~VRoot() noexcept = default;
};

class VDimensionExpr : public VRoot {
public:
    virtual bool isConstant() const = 0;
    virtual int64_t getConstantValue() const = 0;
    virtual bool isSizeTensor() const = 0;
};

class VExprBuilder : public VRoot {
public:
    virtual const IDimensionExpr* constant(int64_t value) = 0;
    virtual const IDimensionExpr* operation(DimensionOperation operation, const IDimensionExpr& first,
                                            const IDimensionExpr& second) = 0;
    virtual const IDimensionExpr* declareSizeTensor(int32_t output, const IDimensionExpr& opt,
                                                    const IDimensionExpr& upper) = 0;
};

}  // namespace apiv

class INoCopy {
protected:
    INoCopy() = default;
    virtual ~INoCopy() = default;
    INoCopy(const INoCopy&) = delete;
    INoCopy& operator=(const INoCopy&) = delete;
};

class IDimensionExpr : public INoCopy {
public:
    bool isConstant() const noexcept { return mImpl->isConstant(); }
    int64_t getConstantValue() const noexcept { return mImpl->getConstantValue(); }

protected:
    apiv::VDimensionExpr* mImpl;
    ~IDimensionExpr() noexcept override = default;
};

class IExprBuilder : public INoCopy {
public:
    const IDimensionExpr* constant(int64_t value) noexcept { return mImpl->constant(value); }
    const IDimensionExpr* operation(DimensionOperation operation, const IDimensionExpr& first,
                                    const IDimensionExpr& second) noexcept {
        return mImpl->operation(operation, first, second);
    }

protected:
    apiv::VExprBuilder* mImpl;
    ~IExprBuilder() noexcept override = default;
};

struct DimsExprs {
    int32_t nbDims;
    const IDimensionExpr* d[Dims::MAX_DIMS];
};

class IPluginResourceContext {
public:
    virtual IGpuAllocator* getGpuAllocator() const noexcept = 0;
    virtual IErrorRecorder* getErrorRecorder() const noexcept = 0;
    virtual ~IPluginResourceContext() noexcept = default;
};

class IPluginV3 : public v_1_0::IVersionedInterface {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
    virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept = 0;
    virtual IPluginV3* clone() noexcept = 0;
};

class IPluginV3OneCore : public IPluginCapability {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
    virtual const char* getPluginName() const noexcept = 0;
    virtual const char* getPluginVersion() const noexcept = 0;
    virtual const char* getPluginNamespace() const noexcept = 0;
};

class IPluginV3OneBuild : public IPluginCapability {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
    virtual int32_t configurePlugin(const DynamicPluginTensorDesc* in, int32_t inputs,
                                    const DynamicPluginTensorDesc* out, int32_t outputs) noexcept = 0;
    virtual int32_t getOutputDataTypes(DataType* types, int32_t outputs, const DataType* input_types,
                                       int32_t inputs) const noexcept = 0;
    virtual int32_t getOutputShapes(const DimsExprs* inputs, int32_t input_count, const DimsExprs* shape_inputs,
                                    int32_t shape_input_count, DimsExprs* outputs, int32_t output_count,
                                    IExprBuilder& builder) noexcept = 0;
    virtual bool supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* tensors, int32_t inputs,
                                           int32_t outputs) noexcept = 0;
    virtual int32_t getNbOutputs() const noexcept = 0;
    virtual size_t getWorkspaceSize(const DynamicPluginTensorDesc*, int32_t, const DynamicPluginTensorDesc*,
                                    int32_t) const noexcept {
        return 0;
    }
    virtual int32_t getValidTactics(int32_t*, int32_t) noexcept { return 0; }
    virtual int32_t getNbTactics() noexcept { return 0; }
    virtual const char* getTimingCacheID() noexcept { return nullptr; }
    virtual int32_t getFormatCombinationLimit() noexcept { return 100; }
    virtual const char* getMetadataString() noexcept { return nullptr; }
};

class IPluginV3OneRuntime : public IPluginCapability {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
    virtual int32_t setTactic(int32_t) noexcept { return 0; }
    virtual int32_t onShapeChange(const PluginTensorDesc* in, int32_t inputs, const PluginTensorDesc* out,
                                  int32_t outputs) noexcept = 0;
    virtual int32_t enqueue(const PluginTensorDesc* in, const PluginTensorDesc* out, const void* const* inputs,
                            void* const* outputs, void* workspace, cudaStream_t stream) noexcept = 0;
    virtual IPluginV3* attachToContext(IPluginResourceContext* context) noexcept = 0;
    virtual const PluginFieldCollection* getFieldsToSerialize() noexcept = 0;
};

class IPluginCreatorV3One : public IPluginCreatorInterface {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual IPluginV3* createPlugin(const char* name, const PluginFieldCollection* fields,
                                    TensorRTPhase phase) noexcept = 0;
    virtual const PluginFieldCollection* getFieldNames() noexcept = 0;
    virtual const char* getPluginName() const noexcept = 0;
    virtual const char* getPluginVersion() const noexcept = 0;
    virtual const char* getPluginNamespace() const noexcept = 0;
};

#if NV_TENSORRT_MAJOR < 11
class IPluginCreator;
#endif

class IPluginRegistry {
public:
    using PluginLibraryHandle = void*;

#if NV_TENSORRT_MAJOR < 11  // removed in 11, which changes the position of the other functions
    virtual bool registerCreator(IPluginCreator& creator, const char* plugin_namespace) noexcept = 0;
    virtual IPluginCreator* const* getPluginCreatorList(int32_t* count) const noexcept = 0;
    virtual IPluginCreator* getPluginCreator(const char* name, const char* version,
                                             const char* plugin_namespace = "") noexcept = 0;
#endif

protected:
    virtual ~IPluginRegistry() noexcept = default;

public:
    virtual void setErrorRecorder(IErrorRecorder* recorder) noexcept = 0;
    virtual IErrorRecorder* getErrorRecorder() const noexcept = 0;
#if NV_TENSORRT_MAJOR < 11
    virtual bool deregisterCreator(const IPluginCreator& creator) noexcept = 0;
#endif
    virtual bool isParentSearchEnabled() const = 0;
    virtual void setParentSearchEnabled(bool enabled) = 0;
    virtual PluginLibraryHandle loadLibrary(const char* path) noexcept = 0;
    virtual void deregisterLibrary(PluginLibraryHandle handle) noexcept = 0;
    virtual bool registerCreator(IPluginCreatorInterface& creator, const char* plugin_namespace) noexcept = 0;
    virtual IPluginCreatorInterface* const* getAllCreators(int32_t* count) const noexcept = 0;
    virtual IPluginCreatorInterface* getCreator(const char* name, const char* version,
                                                const char* plugin_namespace = "") noexcept = 0;
    virtual bool deregisterCreator(const IPluginCreatorInterface& creator) noexcept = 0;
    virtual IPluginResource* acquirePluginResource(const char* key, IPluginResource* resource) noexcept = 0;
    virtual int32_t releasePluginResource(const char* key) noexcept = 0;
};

}  // namespace nvinfer1
