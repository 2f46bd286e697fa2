// SPDX-License-Identifier: Apache-2.0
// A batch on the host: requests are distributed over threads, or, with fewer requests than threads, each row is.
#pragma once

#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "common/host_team.h"
#include "common/processor.h"
#include "common/request.h"
#include "trtspec/verify.h"

namespace trtspec {

inline int thread_count([[maybe_unused]] int wanted) {
#ifdef _OPENMP
    return wanted > 0 ? wanted : omp_get_max_threads();
#else
    return 1;
#endif
}

/// Calls f(index, team) for each request, in any order.
template <class F>
void for_each_request(int32_t batch, int threads, F f) {
    if (batch < threads) {
        HostTeam team(threads);
        for (int32_t index = 0; index < batch; ++index) {
            f(index, team);
        }
        return;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (int32_t index = 0; index < batch; ++index) {
        HostTeam team(1);
        f(index, team);
    }
}

/// Checks a caller's struct; a return value other than TRTSPEC_OK ends the call.
template <class Given, class Args>
int read_on_host(const Given* given, Args& args) {
    if (!is_cpu_supported()) {
        return TRTSPEC_UNSUPPORTED_CPU;
    }
    const int code = read_args(given, args);
    return code == TRTSPEC_OK ? check_args(args) : code;
}

/// The common part of all verifications.
template <class Args, class Given>
int verify_on_host(const Given* given, int threads) {
    Args args;
    const int code = read_on_host(given, args);
    if (code != TRTSPEC_OK) {
        return code;
    }
    with_types(args, [&](auto logits, auto draft) {
        for_each_request(args.batch, thread_count(threads), [&](int32_t index, HostTeam& team) {
            verify(team, args, index, logits, draft);
        });
    });
    return TRTSPEC_OK;
}

}  // namespace trtspec
