// SPDX-License-Identifier: Apache-2.0
#include "common/host.h"
#include "trtspec/verify.h"

extern "C" int trtspec_verify_tree_cpu(const trtspec_tree_args* args, int threads) {
    return trtspec::verify_on_host(args, threads);
}
