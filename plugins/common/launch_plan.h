// SPDX-License-Identifier: Apache-2.0
// The number of blocks per request, and their use of shared memory: chosen by the vocabulary and the device, not by the
// batch, although results would not depend on it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/proposal.h"
#include "common/thread_team.h"
#include "trtspec/verify.h"

namespace trtspec {

constexpr int kMaxThreads = kWarp * kMaxWarps;

/// The launch of one team per request.
struct TeamLaunch {
    int blocks;        // per team
    int threads;       // per block
    int rows_at_once;  // rows read by a step of the walk
    int slots;
    int slot_bytes;

    int shared_bytes() const { return static_cast<int>(sizeof(TeamMemory)) + slots * slot_bytes; }
};

/// The properties of the current device that a launch depends on.
struct DeviceLimits {
    int major;
    int shared_bytes;
};

/// The rows of one kind that a step of the walk reads; none if `entries` is 0.
struct RowShape {
    int64_t entries;
    int entry_bytes;

    int64_t bytes() const { return entries * entry_bytes; }
};

inline RowShape shape_of(const trtspec_rows& rows) {
    return RowShape{rows.entries, rows.dtype == TRTSPEC_FLOAT32 ? 4 : 2};
}

/// The rows that a draft stages: none unless they are logits.
template <class Draft>
struct StagedRows {
    static RowShape shape(const trtspec_rows&) { return RowShape{0, 1}; }
};

template <class T>
struct StagedRows<FromLogits<T>> {
    static RowShape shape(const trtspec_rows& rows) { return shape_of(rows); }
};

/// Warps and blocks for a row of this size: doubled while some thread would have two vectors, first warps up to a full
/// block, then blocks up to a full cluster.
inline void choose_team(int64_t row_bytes, bool clusters, int& warps, int& blocks) {
    warps = 1;
    blocks = 1;
    const auto is_short = [&] { return row_bytes > int64_t{blocks} * warps * kWarp * kVectorBytes; };
    while (warps < kMaxWarps && is_short()) {
        warps *= 2;
    }
    while (clusters && blocks < kMaxBlocks && is_short()) {
        blocks *= 2;
    }
}

/// The part of a row in one block's shared memory.
inline int64_t slot_bytes_of(const RowShape& row, int warps, int blocks) {
    return int64_t{vectors_per_warp(row.entries, row.entry_bytes, blocks * warps)} * warps * kVectorBytes;
}

/// A launch for steps that read a target's row, and a draft's if there is one. Shared memory has the rows of two
/// steps if they fit, otherwise of one, otherwise none.
inline TeamLaunch plan_launch(const RowShape& target, const RowShape& draft, const DeviceLimits& limits) {
    const int rows = draft.entries > 0 ? 2 : 1;
    int warps = 0;
    int blocks = 0;
    choose_team(std::max(target.bytes(), draft.bytes()), limits.major >= 9, warps, blocks);
    const int64_t slot_bytes =
        std::max(slot_bytes_of(target, warps, blocks), slot_bytes_of(draft, warps, blocks));
    const int64_t room = limits.shared_bytes - static_cast<int64_t>(sizeof(TeamMemory));
    const int64_t fit = room / slot_bytes;
    const int slots = fit >= 2 * rows ? 2 * rows : fit >= rows ? rows : 0;
    return TeamLaunch{blocks, warps * kWarp, rows, slots, slots > 0 ? static_cast<int>(slot_bytes) : 0};
}

}  // namespace trtspec
