// SPDX-License-Identifier: Apache-2.0
#include "common/host.h"
#include "trtspec/verify.h"

extern "C" int trtspec_verify_chain_avx512(const trtspec_chain_args* args, int threads) __attribute__((weak));

extern "C" int trtspec_verify_chain_cpu(const trtspec_chain_args* args, int threads) {
    if (trtspec_verify_chain_avx512 != nullptr && trtspec::has_avx512()) {
        return trtspec_verify_chain_avx512(args, threads);
    }
    return trtspec::verify_on_host<trtspec_chain_args>(args, threads);
}
