// SPDX-License-Identifier: Apache-2.0
// A row of logits or probabilities in memory, and its entries as float32 and as sortable keys.
#pragma once

#include <cstdint>

#include "common/arithmetic.h"
#include "common/platform.h"

namespace trtspec {

struct Half {
    uint16_t bits;
};

struct Bfloat16 {
    uint16_t bits;
};

/// Sums of weights stay below 2^63 for vocabularies below this.
constexpr int32_t kVocabLimit = 1 << 19;

/// A row of one request: `size` contiguous entries.
template <class T>
struct Row {
    const T* data;
    int32_t size;
};

/// The rows of one request; `stride` counts entries.
template <class T>
struct Rows {
    const T* data;
    int64_t stride;
    int32_t size;

    TRTSPEC_HD Row<T> operator[](int32_t index) const { return Row<T>{data + index * stride, size}; }
};

/// The end of a descent through sorted entries: one of 256 bins (-1: beyond the last), and the weight before it.
struct Bin {
    int index;
    uint64_t before;
};

TRTSPEC_HD inline float to_float(float entry) { return entry; }

TRTSPEC_HD inline float to_float(Bfloat16 entry) { return bit_cast<float>(static_cast<uint32_t>(entry.bits) << 16); }

/// Without branches, for vectors, and without subnormal operands, which some callers' threads flush to zero.
TRTSPEC_HD inline float to_float(Half entry) {
    const uint32_t sign = (entry.bits & 0x8000u) << 16;
    const uint32_t magnitude = (entry.bits & 0x7fffu) << 13;
    const uint32_t exponent = magnitude & 0x0f800000u;
    const float subnormal = sub(bit_cast<float>(magnitude + (113u << 23)), bit_cast<float>(113u << 23));
    const uint32_t rebiased = magnitude + (exponent == 0x0f800000u ? 224u << 23 : 112u << 23);
    return bit_cast<float>(sign | (exponent == 0 ? bit_cast<uint32_t>(subnormal) : rebiased));
}

/// A key that sorts like the floats; -0 and +0 have the same key. The key of NaN is above all others.
TRTSPEC_HD inline uint32_t key_of(float entry) {
    const uint32_t bits = bit_cast<uint32_t>(add(entry, 0.0f));
    const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
    return entry != entry ? 0xffffffffu : key;
}

TRTSPEC_HD inline float entry_of(uint32_t key) {
    return bit_cast<float>(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

constexpr uint32_t kMinusInfinityKey = 0x007fffffu;
constexpr uint32_t kInfinityKey = 0xff800000u;

/// The largest entry of a row, the lowest id among equals.
struct Largest {
    uint32_t key;
    int32_t id;

    TRTSPEC_HD bool is_finite() const { return key > kMinusInfinityKey && key < kInfinityKey; }
    /// The row has NaN or +inf.
    TRTSPEC_HD bool is_above_finite() const { return key >= kInfinityKey; }
};

TRTSPEC_HD inline Largest unpack(uint64_t packed) {
    return Largest{static_cast<uint32_t>(packed >> 32), static_cast<int32_t>(~static_cast<uint32_t>(packed))};
}

TRTSPEC_HD inline uint64_t pack(uint32_t key, int32_t id) {
    return static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(~id);
}

template <class Team, class T>
TRTSPEC_HD Largest largest_of(Team& team, Row<T> row) {
    return team.largest(row, [](float entry) { return key_of(entry); });
}

/// The largest of the finite entries; without one, its key is below all finite ones.
template <class Team, class T>
TRTSPEC_HD Largest largest_finite_of(Team& team, Row<T> row) {
    return team.largest(row, [](float entry) {
        const uint32_t key = key_of(entry);
        return key < kInfinityKey ? key : 0;
    });
}

}  // namespace trtspec
