// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "common/device.cuh"
#include "trtspec/verify.h"

extern "C" int trtspec_verify_chain_cuda(const trtspec_chain_args* args, void* stream) {
    return trtspec::verify_on_device<trtspec_chain_args>(args, stream);
}

// a team has its workspace in shared memory
extern "C" uint64_t trtspec_verify_chain_workspace(const trtspec_chain_args*) { return 0; }
