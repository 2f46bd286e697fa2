// SPDX-License-Identifier: Apache-2.0
// Registration of the library's creators. The same file must support two ways:
//   - a program that only opens it (tritonserver, trtexec --staticPlugins) expects it to register its creators then;
//   - IPluginRegistry::loadLibrary (Python, trtexec --dynamicPlugins, plans that carry their plugins) opens it too, but
//     then requests the creators and fails if one of them is already registered, or if there is none.
// Therefore they are registered when the library is opened, and deregistered when they are requested.
#include <NvInferRuntime.h>

#include <array>
#include <vector>

#include "tensorrt/log.h"
#include "tensorrt/plugin.h"
#include "tensorrt/type.h"

namespace trtspec::tensorrt {
namespace {

using nvinfer1::IPluginCreatorInterface;
using nvinfer1::IPluginRegistry;

const std::array<IPluginCreatorInterface*, 2>& creators() {
    static VerifyCreator chain(chain_type());
    static VerifyCreator tree(tree_type());
    static const std::array<IPluginCreatorInterface*, 2> all{&chain, &tree};
    return all;
}

/// The registration in the process's registry. It is not undone at exit, when the registry may not exist any more.
class Registration {
public:
    Registration() {
        const auto get = reinterpret_cast<IPluginRegistry* (*)()>(tensorrt_symbol("getPluginRegistry"));
        registry_ = get == nullptr ? nullptr : get();
        for (IPluginCreatorInterface* creator : creators()) {
            // false if another copy of the library has already registered an equivalent creator
            if (registry_ != nullptr && registry_->registerCreator(*creator, kPluginNamespace)) {
                registered_.push_back(creator);
            }
        }
    }

    void withdraw() noexcept {
        for (IPluginCreatorInterface* creator : registered_) {
            registry_->deregisterCreator(*creator);
        }
        registered_.clear();
    }

private:
    IPluginRegistry* registry_;
    std::vector<IPluginCreatorInterface*> registered_;
};

Registration registration;

}  // namespace
}  // namespace trtspec::tensorrt

#define TRTSPEC_EXPORT extern "C" __attribute__((visibility("default")))

TRTSPEC_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) { trtspec::tensorrt::set_logger_finder(finder); }

TRTSPEC_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    using namespace trtspec::tensorrt;
    registration.withdraw();
    count = static_cast<int32_t>(creators().size());
    return creators().data();
}
