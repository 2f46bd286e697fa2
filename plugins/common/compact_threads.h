// SPDX-License-Identifier: Apache-2.0
// One row's moves within one plane of a cache by a block of threads, with 32 threads per slot's vector.
#pragma once

#include <cstdint>

#include "common/compact.h"
#include "common/thread_team.h"

namespace trtspec {

constexpr int kMostUnitBytes = 16;

/// Bytes per load or store: the largest power of two up to 16 that divides all addresses.
inline int unit_bytes_of(const trtspec_compact_args& args) {
    uint64_t bits = reinterpret_cast<uintptr_t>(args.cache) | static_cast<uint64_t>(args.vector_bytes) |
                    static_cast<uint64_t>(args.token_stride) | kMostUnitBytes;
    for (const int64_t stride : args.plane_strides) {
        bits |= static_cast<uint64_t>(stride);
    }
    bits |= static_cast<uint64_t>(args.block_table == nullptr ? args.row_stride : args.block_stride);
    return static_cast<int>(bits & (~bits + 1));
}

/// Moves a row's accepted slots, a few at a time: all of them are read before any is written, and later moves read from
/// slots after those written earlier.
template <class Unit, class Block>
TRTSPEC_HD void compact_plane(Block& block, const trtspec_compact_args& args, int32_t row, int64_t plane) {
    const int32_t* path = args.path + static_cast<int64_t>(row) * args.path_stride;
    const int32_t root = args.start[row];
    const int32_t len = args.path_len[row] < args.path_stride ? args.path_len[row] : args.path_stride;
    const int32_t units = args.vector_bytes / static_cast<int32_t>(sizeof(Unit));
    unsigned char* base = static_cast<unsigned char*>(args.cache) + plane_offset(args, plane);
    const int32_t at_once = block.threads() / kWarp;
    for (int32_t first = 0; first < len; first += at_once) {
        const int32_t i = first + block.thread() / kWarp;
        const bool moves = i < len && path[i] > i + 1;
        const Unit* from = nullptr;
        Unit* to = nullptr;
        if (moves) {
            from = reinterpret_cast<const Unit*>(base + slot_offset(args, row, root + path[i]));
            to = reinterpret_cast<Unit*>(base + slot_offset(args, row, root + i + 1));
        }
        for (int32_t ahead = 0; ahead < units; ahead += kWarp) {
            const int32_t unit = ahead + block.thread() % kWarp;
            const bool has_unit = moves && unit < units;
            const Unit held = has_unit ? from[unit] : Unit{};
            block.barrier();
            if (has_unit) {
                to[unit] = held;
            }
        }
    }
}

}  // namespace trtspec
