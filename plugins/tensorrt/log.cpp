// SPDX-License-Identifier: Apache-2.0
#include "tensorrt/log.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>

#define TRTSPEC_QUOTED(text) #text
#define TRTSPEC_EXPANDED(macro) TRTSPEC_QUOTED(macro)
#define TRTSPEC_TENSORRT_MAJOR TRTSPEC_EXPANDED(NV_TENSORRT_MAJOR)

namespace trtspec::tensorrt {
namespace {

constexpr const char* kRuntimes[] = {
    "libnvinfer.so." TRTSPEC_TENSORRT_MAJOR,
    "libnvinfer_lean.so." TRTSPEC_TENSORRT_MAJOR,
#if NV_TENSORRT_MAJOR >= 11
    "libtensorrt_rtx.so.1",  // its registry has the layout of TensorRT 11's
#endif
};

std::atomic<nvinfer1::ILoggerFinder*> logger_finder{nullptr};

nvinfer1::ILogger* find_logger() {
    if (nvinfer1::ILoggerFinder* finder = logger_finder.load()) {
        return finder->findLogger();
    }
    const auto get = reinterpret_cast<nvinfer1::ILogger* (*)()>(tensorrt_symbol("getLogger"));
    return get == nullptr ? nullptr : get();
}

}  // namespace

void* tensorrt_symbol(const char* name) noexcept {
    // By file, not by symbol: a program may have loaded TensorRT with RTLD_LOCAL, as tritonserver does. Only this major
    // version: classes of other versions have another layout.
    for (const char* file : kRuntimes) {
        if (void* loaded = dlopen(file, RTLD_NOW | RTLD_NOLOAD)) {
            void* symbol = dlsym(loaded, name);
            dlclose(loaded);  // the program's own reference remains
            return symbol;
        }
    }
    return nullptr;
}

void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept { logger_finder.store(finder); }

void log_error(const char* plugin, const char* message) noexcept {
    char line[1024];
    std::snprintf(line, sizeof(line), "%s: %s", plugin, message);
    if (nvinfer1::ILogger* logger = find_logger()) {
        logger->log(nvinfer1::ILogger::Severity::kERROR, line);
    } else {
        std::fprintf(stderr, "%s\n", line);
    }
}

}  // namespace trtspec::tensorrt
