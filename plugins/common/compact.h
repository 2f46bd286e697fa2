// SPDX-License-Identifier: Apache-2.0
// Source and destination bytes of a path's moves in a cache, and the validation of a call.
#pragma once

#include <cstdint>

#include "common/platform.h"
#include "trtspec/verify.h"

namespace trtspec {

inline int check_args(const trtspec_compact_args& args) {
    if (args.batch < 0 || args.vector_bytes < 1 || args.path_stride < 1) {
        return TRTSPEC_BAD_SIZE;
    }
    for (const int32_t count : args.planes) {
        if (count < 1) {
            return TRTSPEC_BAD_SIZE;
        }
    }
    if (args.block_table != nullptr && (args.block_tokens < 1 || args.table_stride < 0)) {
        return TRTSPEC_BAD_SIZE;
    }
    const bool has_all = args.cache != nullptr && args.path != nullptr && args.path_len != nullptr;
    return has_all && args.start != nullptr ? TRTSPEC_OK : TRTSPEC_BAD_POINTER;
}

TRTSPEC_HD inline int64_t plane_count(const trtspec_compact_args& args) {
    return static_cast<int64_t>(args.planes[0]) * args.planes[1] * args.planes[2];
}

/// The byte offset of plane number `plane` in the cache; the last dimension varies fastest.
TRTSPEC_HD inline int64_t plane_offset(const trtspec_compact_args& args, int64_t plane) {
    const int64_t z = plane % args.planes[2];
    const int64_t y = plane / args.planes[2] % args.planes[1];
    const int64_t x = plane / args.planes[2] / args.planes[1];
    return x * args.plane_strides[0] + y * args.plane_strides[1] + z * args.plane_strides[2];
}

/// The byte offset of a row's slot within a plane.
TRTSPEC_HD inline int64_t slot_offset(const trtspec_compact_args& args, int32_t row, int32_t slot) {
    if (args.block_table == nullptr) {
        return row * args.row_stride + slot * args.token_stride;
    }
    const int64_t block = args.block_table[row * args.table_stride + slot / args.block_tokens];
    return block * args.block_stride + slot % args.block_tokens * args.token_stride;
}

/// Calls move(from, to) with the offsets of a row's slots, in an order in which no slot is written before it is read.
template <class Move>
TRTSPEC_HD void for_each_move(const trtspec_compact_args& args, int32_t row, Move move) {
    const int32_t* path = args.path + static_cast<int64_t>(row) * args.path_stride;
    for (int32_t i = 0; i < args.path_len[row] && i < args.path_stride; ++i) {
        if (path[i] > i + 1) {
            move(slot_offset(args, row, args.start[row] + path[i]), slot_offset(args, row, args.start[row] + i + 1));
        }
    }
}

}  // namespace trtspec
