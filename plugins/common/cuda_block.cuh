// SPDX-License-Identifier: Apache-2.0
// The machine of a team of threads: a block of a CUDA kernel, in a cluster if the launch has clusters.
#pragma once

#include <cooperative_groups.h>
#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "common/thread_team.h"

namespace trtspec {

/// `ThreadTeam` documents the members. Without clusters (before sm_90) a team is a single block.
class CudaBlock {
public:
    __device__ int thread() const { return static_cast<int>(threadIdx.x); }
    __device__ int threads() const { return static_cast<int>(blockDim.x); }

#if defined(_CG_HAS_CLUSTER_GROUP)
    __device__ int rank() const { return static_cast<int>(cooperative_groups::this_cluster().block_rank()); }
    __device__ int blocks() const { return static_cast<int>(cooperative_groups::this_cluster().num_blocks()); }
    /// A block alone uses one kind of barrier: with both in turn, compute-sanitizer's synccheck reported divergence.
    __device__ void team_barrier() const {
        if (blocks() == 1) {
            __syncthreads();
        } else {
            cooperative_groups::this_cluster().sync();
        }
    }

    template <class T>
    __device__ T* peer(T* mine, int rank) const {
        return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
    }
#else
    __device__ int rank() const { return 0; }
    __device__ int blocks() const { return 1; }
    __device__ void team_barrier() const { __syncthreads(); }

    template <class T>
    __device__ T* peer(T* mine, int) const {
        return mine;
    }
#endif

    __device__ TeamMemory& memory() const { return *reinterpret_cast<TeamMemory*>(shared_bytes()); }
    __device__ unsigned char* rows() const { return shared_bytes() + sizeof(TeamMemory); }

    __device__ void barrier() const { __syncthreads(); }

    __device__ int32_t shuffle(int32_t value, int lane) const { return __shfl_sync(kAllLanes, value, lane); }

    __device__ uint64_t shuffle(uint64_t value, int lane) const {
        return __shfl_sync(kAllLanes, static_cast<unsigned long long>(value), lane);
    }

    __device__ int first_lane(bool flag) const {
        return __ffs(static_cast<int>(__ballot_sync(kAllLanes, flag))) - 1;
    }

    __device__ Vector load_global(const void* from) const { return vector_of(__ldg(static_cast<const uint4*>(from))); }

    __device__ Vector load_shared(const void* from) const { return vector_of(*static_cast<const uint4*>(from)); }

    __device__ void copy_async(void* to, const void* from) const { __pipeline_memcpy_async(to, from, kVectorBytes); }
    __device__ void commit() const { __pipeline_commit(); }
    __device__ void wait(int newer) const { __pipeline_wait_prior(newer); }

    /// Shared memory lacks a native 64-bit atomic addition (only a retry loop), so this uses two of 32 bits. The thread
    /// that causes an overflow of the lower word carries it, so the sum is correct when all threads are done.
    __device__ void add(uint64_t* counter, uint64_t value) const {
        uint32_t* words = reinterpret_cast<uint32_t*>(counter);
        const uint32_t low = static_cast<uint32_t>(value);
        const uint32_t before = atomicAdd(&words[0], low);
        const uint32_t carry = before + low < before ? 1 : 0;
        const uint32_t high = static_cast<uint32_t>(value >> 32) + carry;
        if (high != 0) {
            atomicAdd(&words[1], high);
        }
    }

private:
    static constexpr unsigned kAllLanes = 0xffffffffu;

    /// Referenced here instead of passed, so that the compiler knows that it is shared memory.
    __device__ static unsigned char* shared_bytes() {
        extern __shared__ __align__(alignof(TeamMemory)) unsigned char bytes[];
        return bytes;
    }

    __device__ static Vector vector_of(uint4 words) { return Vector{{words.x, words.y, words.z, words.w}}; }
};

}  // namespace trtspec
