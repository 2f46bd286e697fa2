// SPDX-License-Identifier: Apache-2.0
// A batch on a GPU: one launch, with a team of threads per request.
#pragma once

#include <cstdint>

#include "common/launch.cuh"
#include "common/request.h"
#include "trtspec/verify.h"

namespace trtspec {

template <class Args, class T, class Draft>
__global__ void __launch_bounds__(kMaxThreads, 1)
    verify_kernel(const __grid_constant__ Args args, const __grid_constant__ TeamLaunch plan) {
    as_team(plan, [&](auto& team, int32_t request) { verify(team, args, request, Type<T>{}, Type<Draft>{}); });
}

/// The common part of all verifications: check the call, and launch its batch.
template <class Args, class Given>
int verify_on_device(const Given* given, void* stream) {
    Args args;
    int code = read_args(given, args);
    code = code == TRTSPEC_OK ? check_args(args) : code;
    if (code != TRTSPEC_OK || args.batch == 0) {
        return code;
    }
    DeviceLimits limits{};
    const cudaError_t error = probe_device(limits);
    if (error != cudaSuccess) {
        return code_of(error);
    }
    return with_types(args, [&](auto logits, auto draft) {
        using T = typename decltype(logits)::type;
        using Draft = typename decltype(draft)::type;
        const TeamLaunch plan = plan_launch(shape_of(args.target), StagedRows<Draft>::shape(args.draft), limits);
        return launch_teams(verify_kernel<Args, T, Draft>, args, args.batch, plan, stream);
    });
}

}  // namespace trtspec
