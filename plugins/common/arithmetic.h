// SPDX-License-Identifier: Apache-2.0
// Arithmetic with equal results everywhere: every operation is rounded to nearest separately, and multiplications and
// additions are fused only explicitly. The host compiles with -ffp-contract=off; the device's intrinsics are never
// contracted.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/platform.h"

namespace trtspec {

#if defined(__CUDA_ARCH__)
TRTSPEC_HD inline float add(float a, float b) { return __fadd_rn(a, b); }
TRTSPEC_HD inline float sub(float a, float b) { return __fsub_rn(a, b); }
TRTSPEC_HD inline float mul(float a, float b) { return __fmul_rn(a, b); }
TRTSPEC_HD inline float div(float a, float b) { return __fdiv_rn(a, b); }
TRTSPEC_HD inline float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TRTSPEC_HD inline double add(double a, double b) { return __dadd_rn(a, b); }
TRTSPEC_HD inline double sub(double a, double b) { return __dsub_rn(a, b); }
TRTSPEC_HD inline double mul(double a, double b) { return __dmul_rn(a, b); }
TRTSPEC_HD inline double div(double a, double b) { return __ddiv_rn(a, b); }
#else
TRTSPEC_HD inline float add(float a, float b) { return a + b; }
TRTSPEC_HD inline float sub(float a, float b) { return a - b; }
TRTSPEC_HD inline float mul(float a, float b) { return a * b; }
TRTSPEC_HD inline float div(float a, float b) { return a / b; }
TRTSPEC_HD inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
TRTSPEC_HD inline double add(double a, double b) { return a + b; }
TRTSPEC_HD inline double sub(double a, double b) { return a - b; }
TRTSPEC_HD inline double mul(double a, double b) { return a * b; }
TRTSPEC_HD inline double div(double a, double b) { return a / b; }
#endif

template <class To, class From>
TRTSPEC_HD inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

/// 1 / total, for probabilities weight * inverse.
TRTSPEC_HD inline double inverse_of(uint64_t total) { return div(1.0, static_cast<double>(total)); }

/// u = uniform / 2^32, exactly.
TRTSPEC_HD inline double unit(uint32_t uniform) { return mul(static_cast<double>(uniform), 0x1p-32); }

/// floor(u * sum): a draw from integer weights with this sum < 2^63 selects the first id whose cumulative weight is
/// above it. u < weight / sum is equivalent to share(u, sum) < weight.
TRTSPEC_HD inline uint64_t share(uint32_t uniform, uint64_t sum) {
    return (sum >> 32) * uniform + ((sum & 0xffffffffu) * uniform >> 32);
}

/// A double below 2^52, exactly; unlike a conversion, this can be vectorized on every machine.
TRTSPEC_HD inline double to_double(uint64_t below_2_52) {
    return sub(bit_cast<double>(below_2_52 | 0x4330000000000000u), 0x1p52);
}

/// trunc(value * 2^62) of a value clamped to [0, 1], computed on the bits, which sort like positive floats: the
/// significand with its leading 1, shifted into place.
TRTSPEC_HD inline uint64_t to_fixed(double value) {
    constexpr int64_t kOne = int64_t{1023} << 52;
    const int64_t signed_bits = bit_cast<int64_t>(value);
    const int64_t positive = signed_bits > 0 ? signed_bits : 0;
    const uint64_t bits = static_cast<uint64_t>(positive < kOne ? positive : kOne);
    const uint64_t significand = (bits & 0xfffffffffffffu) | 0x10000000000000u;
    const uint64_t places_below_one = 1023 - (bits >> 52);  // for 0 the shift exceeds all bits
    return (significand << 10) >> (places_below_one < 63 ? places_below_one : 63);
}

/// The inverse of `to_fixed`, except for rounding.
TRTSPEC_HD inline double from_fixed(uint64_t fixed) { return mul(static_cast<double>(fixed), 0x1p-62); }

}  // namespace trtspec
