// SPDX-License-Identifier: Apache-2.0
#include "common/processor.h"
#include "common/quantize.h"

extern "C" int trtspec_quantize_avx512(const trtspec_quantize_args* args) __attribute__((weak));

extern "C" int trtspec_quantize_instructions(void) {
    if (!trtspec::is_cpu_supported()) {
        return TRTSPEC_UNSUPPORTED_CPU;
    }
    return trtspec_quantize_avx512 != nullptr && trtspec::has_avx512() ? TRTSPEC_AVX512 : TRTSPEC_PORTABLE;
}

extern "C" int trtspec_quantize_cpu(const trtspec_quantize_args* args) {
    const int fastest = trtspec_quantize_instructions();
    if (args == nullptr) {
        return TRTSPEC_BAD_POINTER;
    }
    if (args->struct_size < sizeof(*args)) {
        return TRTSPEC_BAD_STRUCT_SIZE;
    }
    if (fastest < 0 || args->instructions < 0 || args->instructions > fastest) {
        return TRTSPEC_UNSUPPORTED_CPU;
    }
    const int code = trtspec::check_call(*args);
    if (code != TRTSPEC_OK) {
        return code;
    }
    const bool is_portable = (args->instructions == TRTSPEC_FASTEST ? fastest : args->instructions) == TRTSPEC_PORTABLE;
    return is_portable ? trtspec::quantize(*args) : trtspec_quantize_avx512(args);
}
