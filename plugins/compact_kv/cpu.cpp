// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>

#include "common/compact.h"
#include "common/host.h"
#include "trtspec/verify.h"

extern "C" int trtspec_compact_kv_cpu(const trtspec_compact_args* given, int threads) {
    using namespace trtspec;
    trtspec_compact_args args;
    const int code = read_on_host(given, args);
    if (code != TRTSPEC_OK) {
        return code;
    }
    const int64_t planes = plane_count(args);
    const int64_t count = planes * args.batch;
#pragma omp parallel for num_threads(thread_count(threads))
    for (int64_t i = 0; i < count; ++i) {
        unsigned char* plane = static_cast<unsigned char*>(args.cache) + plane_offset(args, i % planes);
        for_each_move(args, static_cast<int32_t>(i / planes), [&](int64_t from, int64_t to) {
            memmove(plane + to, plane + from, static_cast<size_t>(args.vector_bytes));
        });
    }
    return TRTSPEC_OK;
}
