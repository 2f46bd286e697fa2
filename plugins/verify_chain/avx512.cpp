// SPDX-License-Identifier: Apache-2.0
// cpu.cpp for processors with AVX-512, in a separate namespace, because a linker keeps only one of equal templates.
#define trtspec trtspec_avx512
#include "common/host.h"
#include "trtspec/verify.h"

extern "C" int trtspec_verify_chain_avx512(const trtspec_chain_args* args, int threads) {
    return trtspec::verify_on_host<trtspec_chain_args>(args, threads);
}
