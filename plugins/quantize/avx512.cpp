// SPDX-License-Identifier: Apache-2.0
// cpu.cpp once more, for processors with AVX-512, in a namespace of its own: of equal templates a linker keeps only one.
#define trtspec trtspec_avx512
#include "common/quantize.h"

extern "C" int trtspec_quantize_avx512(const trtspec_quantize_args* args) { return trtspec::quantize(*args); }
