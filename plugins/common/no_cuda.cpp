// SPDX-License-Identifier: Apache-2.0
// The GPU functions of the interface in a library that was built without CUDA.
#include "trtspec/verify.h"

extern "C" {

int trtspec_verify_chain_cuda(const trtspec_chain_args*, void*) { return TRTSPEC_NO_DEVICE_CODE; }
int trtspec_verify_block_cuda(const trtspec_chain_args*, void*) { return TRTSPEC_NO_DEVICE_CODE; }
int trtspec_verify_tree_cuda(const trtspec_tree_args*, void*) { return TRTSPEC_NO_DEVICE_CODE; }
int trtspec_compact_kv_cuda(const trtspec_compact_args*, void*) { return TRTSPEC_NO_DEVICE_CODE; }

uint64_t trtspec_verify_chain_workspace(const trtspec_chain_args*) { return 0; }
uint64_t trtspec_verify_block_workspace(const trtspec_chain_args*) { return 0; }
uint64_t trtspec_verify_tree_workspace(const trtspec_tree_args*) { return 0; }
}
