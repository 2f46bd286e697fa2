// SPDX-License-Identifier: Apache-2.0
// Launches of one team per request, and the ABI's codes for CUDA errors.
#pragma once

#include <cuda_runtime.h>

#include "common/cuda_block.cuh"
#include "common/launch_plan.h"
#include "trtspec/verify.h"

namespace trtspec {

inline cudaError_t probe_device(DeviceLimits& limits) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&limits.major, cudaDevAttrComputeCapabilityMajor, device);
    }
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    return error;
}

inline int code_of(cudaError_t error) {
    if (error == cudaSuccess) {
        return TRTSPEC_OK;
    }
    // the code reports the error; clear it for the next call
    cudaGetLastError();
    const bool no_code = error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
                         error == cudaErrorUnsupportedPtxVersion || error == cudaErrorNoDevice ||
                         error == cudaErrorInsufficientDriver;
    return no_code ? TRTSPEC_NO_DEVICE_CODE : TRTSPEC_LAUNCH_FAILED;
}

/// Launches kernel(args, plan) with one team for each of `requests`.
template <class Args>
int launch_teams(void (*kernel)(Args, TeamLaunch), const Args& args, int requests, const TeamLaunch& plan,
                 void* stream) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes());
    if (error != cudaSuccess) {
        return code_of(error);
    }
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(plan.blocks);
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(requests) * static_cast<unsigned>(plan.blocks));
    config.blockDim = dim3(static_cast<unsigned>(plan.threads));
    config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes());
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &cluster;
    config.numAttrs = plan.blocks > 1 ? 1 : 0;
    return code_of(cudaLaunchKernelEx(&config, kernel, args, plan));
}

/// Within a kernel that `launch_teams` launched: calls body(team, request) in every thread of the request's team.
template <class Body>
__device__ void as_team(const TeamLaunch& plan, Body body) {
    CudaBlock block;
    ThreadTeam<CudaBlock> team(block, RowSlots{plan.slots, plan.slot_bytes}, plan.rows_at_once);
    body(team, static_cast<int>(blockIdx.x) / block.blocks());
    // no block ends while another may still read its shared memory
    team.barrier();
}

}  // namespace trtspec
