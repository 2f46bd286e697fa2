// SPDX-License-Identifier: Apache-2.0
// Checks of the processor for the instruction sets of the compiled code.
#pragma once

namespace trtspec {

/// Whether this machine supports the instruction set of this translation unit.
inline bool is_cpu_supported() {
#if defined(__x86_64__) && defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
    return true;
#endif
}

/// Whether this machine supports x86-64-v4.
inline bool has_avx512() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

}  // namespace trtspec
