// SPDX-License-Identifier: Apache-2.0
// Formats of weights: conversion to float32 is exact; conversion from float32 rounds to nearest, ties to even. The code
// has no branches, tables or subnormal operands, so that loops are vectorized on every processor.
#pragma once

#include <cstdint>

#include "common/arithmetic.h"
#include "common/row.h"

namespace trtspec {

/// float8_e4m3fn: a sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, the largest value is 448.
struct E4m3 {
    uint8_t bits;
};

constexpr float kLargestE4m3 = 448.0f;

/// The patterns of a format with infinities; larger patterns, without the sign, are NaN.
template <class Unsigned, Unsigned kInfinity>
struct Patterns {
    using Bits = Unsigned;
    static constexpr Bits kInfinite = kInfinity;
    static constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
};

template <class T>
struct Format;
template <>
struct Format<float> : Patterns<uint32_t, 0x7f800000u> {};
template <>
struct Format<Half> : Patterns<uint16_t, 0x7c00u> {};
template <>
struct Format<Bfloat16> : Patterns<uint16_t, 0x7f80u> {};

inline float to_float(E4m3 entry) {
    const uint32_t sign = (entry.bits & 0x80u) << 24;
    const uint32_t magnitude = (entry.bits & 0x7fu) << 20;
    const float subnormal = sub(bit_cast<float>(magnitude + (121u << 23)), bit_cast<float>(121u << 23));
    const uint32_t normal = magnitude == 0x07f00000u ? 0x7fc00000u : magnitude + (120u << 23);
    return bit_cast<float>(sign | ((magnitude & 0x07800000u) == 0 ? bit_cast<uint32_t>(subnormal) : normal));
}

/// The pattern of a finite magnitude in a format with `kMantissa` mantissa bits and this bias. Subnormals are rounded
/// by adding a float whose last bit is worth the format's smallest value.
template <int kMantissa, int kBias>
inline int32_t narrowed(int32_t magnitude) {
    constexpr int kDropped = 23 - kMantissa;
    constexpr int32_t kLeastNormal = (128 - kBias) << 23;
    constexpr int32_t kAdded = (151 - kBias - kMantissa) << 23;
    const int32_t subnormal = bit_cast<int32_t>(add(bit_cast<float>(magnitude), bit_cast<float>(kAdded))) - kAdded;
    const int32_t rounded = magnitude + ((1 << (kDropped - 1)) - 1) + ((magnitude >> kDropped) & 1);
    const int32_t normal = (rounded >> kDropped) - ((127 - kBias) << kMantissa);
    return magnitude < kLeastNormal ? subnormal : normal;
}

inline int32_t lesser(int32_t a, int32_t b) { return a < b ? a : b; }

template <class T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
    return value;
}

/// Larger values become 448.
template <>
inline E4m3 from_float<E4m3>(float value) {
    const uint32_t bits = bit_cast<uint32_t>(value);
    const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
    const int32_t number = narrowed<3, 7>(lesser(magnitude, 0x43e00000));
    const int32_t pattern = magnitude > 0x7f800000 ? 0x7f : number;
    return E4m3{static_cast<uint8_t>(static_cast<uint32_t>(pattern) | (bits >> 31 << 7))};
}

/// Too large values become infinite. NaN has a single pattern, without a sign.
template <>
inline Half from_float<Half>(float value) {
    const uint32_t bits = bit_cast<uint32_t>(value);
    const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
    const int32_t number = narrowed<10, 15>(lesser(magnitude, 143 << 23));
    const uint32_t pattern = static_cast<uint32_t>(number) | (bits >> 31 << 15);
    return Half{static_cast<uint16_t>(magnitude > 0x7f800000 ? 0x7e00u : pattern)};
}

/// NaN has a single pattern, without a sign.
template <>
inline Bfloat16 from_float<Bfloat16>(float value) {
    const uint32_t bits = bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return Bfloat16{static_cast<uint16_t>(static_cast<int32_t>(bits & 0x7fffffffu) > 0x7f800000 ? 0x7fc0u : rounded)};
}

}  // namespace trtspec
