// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <cstdint>

#include "common/compact_threads.h"
#include "common/cuda_block.cuh"
#include "common/launch.cuh"
#include "common/request.h"
#include "trtspec/verify.h"

namespace trtspec {
namespace {

constexpr int kCompactThreads = 256;
constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

template <class Unit>
__global__ void __launch_bounds__(kCompactThreads) compact_kernel(const __grid_constant__ trtspec_compact_args args) {
    CudaBlock block;
    const int64_t planes = plane_count(args);
    compact_plane<Unit>(block, args, static_cast<int32_t>(blockIdx.x / planes), blockIdx.x % planes);
}

/// The kernel for this size of loads and stores in bytes.
void (*kernel_for(int unit_bytes))(trtspec_compact_args) {
    switch (unit_bytes) {
        case 16:
            return compact_kernel<uint4>;
        case 8:
            return compact_kernel<uint2>;
        case 4:
            return compact_kernel<uint32_t>;
        case 2:
            return compact_kernel<uint16_t>;
        default:
            return compact_kernel<uint8_t>;
    }
}

int compact_on_device(const trtspec_compact_args* given, void* stream) {
    trtspec_compact_args args;
    int code = read_args(given, args);
    code = code == TRTSPEC_OK ? check_args(args) : code;
    if (code != TRTSPEC_OK || args.batch == 0) {
        return code;
    }
    const int64_t blocks = plane_count(args) * args.batch;
    if (blocks > kMostBlocks) {
        return TRTSPEC_BAD_SIZE;
    }
    kernel_for(unit_bytes_of(args))<<<static_cast<unsigned>(blocks), kCompactThreads, 0,
                                      static_cast<cudaStream_t>(stream)>>>(args);
    return code_of(cudaGetLastError());
}

}  // namespace
}  // namespace trtspec

extern "C" int trtspec_compact_kv_cuda(const trtspec_compact_args* args, void* stream) {
    return trtspec::compact_on_device(args, stream);
}
