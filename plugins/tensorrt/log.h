// SPDX-License-Identifier: Apache-2.0
// Output of messages: to the logger of the registry that loaded the library, or else to stderr.
#pragma once

#include <NvInferRuntime.h>

namespace trtspec::tensorrt {

/// A function exported by the process's TensorRT; null if the headers' major version is not loaded. The library is not
/// linked with TensorRT, so that the same file supports programs with the full and with the lean runtime.
void* tensorrt_symbol(const char* name) noexcept;

/// Stores the logger finder that a registry passes to the libraries it loads.
void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;

void log_error(const char* plugin, const char* message) noexcept;

}  // namespace trtspec::tensorrt
