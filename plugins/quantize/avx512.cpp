// SPDX-License-Identifier: Apache-2.0
// cpu.cpp for processors with AVX-512, in a separate namespace, because a linker keeps only one of equal templates.
#define trtspec trtspec_avx512
#include "common/quantize.h"

extern "C" int trtspec_quantize_avx512(const trtspec_quantize_args* args) { return trtspec::quantize(*args); }
