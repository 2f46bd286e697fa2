// SPDX-License-Identifier: Apache-2.0
// Where messages go: to the logger of whoever loaded the library, or else to stderr.
#pragma once

#include <NvInferRuntime.h>

namespace trtspec::tensorrt {

/// A function that the process's TensorRT exports; null where none of the headers' major version is loaded. The library
/// is not linked with TensorRT: the same file then serves programs with the full runtime and with the lean one.
void* tensorrt_symbol(const char* name) noexcept;

/// Takes over the finder that a registry hands to the libraries it loads.
void set_logger_finder(nvinfer1::ILoggerFinder* finder) noexcept;

void log_error(const char* plugin, const char* message) noexcept;

}  // namespace trtspec::tensorrt
