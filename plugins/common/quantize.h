// SPDX-License-Identifier: Apache-2.0
// The operations of trtspec/quantize.h, row by row. Loops are written for vectorization; entries are copied from and to
// memory, because it may be unaligned.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/formats.h"
#include "trtspec/quantize.h"

namespace trtspec {

constexpr float kScaleOfZeros = 1.0f;

template <class T>
inline T entry_at(const unsigned char* row, int64_t index) {
    T entry;
    memcpy(&entry, row + index * static_cast<int64_t>(sizeof(T)), sizeof(entry));
    return entry;
}

/// A matrix in memory; the stride counts bytes.
template <class Byte>
struct Matrix {
    Byte* data;
    int64_t stride;

    Byte* operator[](int64_t row) const { return data + row * stride; }
};

using Source = Matrix<const unsigned char>;
using Target = Matrix<unsigned char>;

/// The largest pattern without its sign.
template <class T>
inline typename Format<T>::Bits largest_in(const unsigned char* row, int64_t columns) {
    using Bits = typename Format<T>::Bits;
    Bits largest = 0;
    for (int64_t j = 0; j < columns; ++j) {
        const Bits magnitude = entry_at<Bits>(row, j) & Format<T>::kMagnitude;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/// Adds a row to the census, and returns its largest finite pattern. Only rows with non-finite values are read twice.
template <class T>
inline typename Format<T>::Bits count_row(const unsigned char* row, int64_t columns, trtspec_census& census) {
    using Bits = typename Format<T>::Bits;
    constexpr Bits kInfinite = Format<T>::kInfinite;
    Bits largest = largest_in<T>(row, columns);
    if (largest >= kInfinite) {
        largest = 0;
        for (int64_t j = 0; j < columns; ++j) {
            const Bits magnitude = entry_at<Bits>(row, j) & Format<T>::kMagnitude;
            census.nans += magnitude > kInfinite;
            census.infinities += magnitude == kInfinite;
            largest = magnitude < kInfinite && magnitude > largest ? magnitude : largest;
        }
    }
    census.largest = largest > census.largest ? largest : census.largest;
    return largest;
}

/// The scale of a row with this largest magnitude; the scale of zeros if the quotient underflows to 0.
inline float scale_of(float largest) {
    const float scale = div(largest, kLargestE4m3);
    return scale > 0 ? scale : kScaleOfZeros;
}

template <class From, class To, bool kScaled>
inline void cast_row(const unsigned char* __restrict from, int64_t columns, float scale, unsigned char* __restrict to) {
    for (int64_t j = 0; j < columns; ++j) {
        const float value = to_float(entry_at<From>(from, j));
        const To entry = from_float<To>(kScaled ? div(value, scale) : value);
        memcpy(to + j * static_cast<int64_t>(sizeof(To)), &entry, sizeof(entry));
    }
}

template <class T>
int count(const trtspec_quantize_args& args, Source source) {
    trtspec_census census = {};
    for (int64_t row = 0; row < args.rows; ++row) {
        count_row<T>(source[row], args.columns, census);
    }
    *args.census = census;
    return TRTSPEC_OK;
}

template <class From, class To>
int cast(const trtspec_quantize_args& args, Source source, Target target) {
    for (int64_t row = 0; row < args.rows; ++row) {
        if (args.scales == nullptr) {
            cast_row<From, To, false>(source[row], args.columns, 1.0f, target[row]);
        } else {
            cast_row<From, To, true>(source[row], args.columns, args.scales[0], target[row]);
        }
    }
    return TRTSPEC_OK;
}

template <class T>
int quantize_rows(const trtspec_quantize_args& args, Source source, Target target) {
    trtspec_census census = {};
    for (int64_t row = 0; row < args.rows; ++row) {
        const T largest = bit_cast<T>(count_row<T>(source[row], args.columns, census));
        args.scales[row] = scale_of(to_float(largest));
        cast_row<T, E4m3, true>(source[row], args.columns, args.scales[row], target[row]);
    }
    *args.census = census;
    return TRTSPEC_OK;
}

/// Calls f(T()) with the type of a 16-bit or 32-bit format.
template <class F>
int with_wide(int32_t dtype, F f) {
    switch (dtype) {
        case TRTSPEC_FLOAT32:
            return f(float());
        case TRTSPEC_FLOAT16:
            return f(Half());
        case TRTSPEC_BFLOAT16:
            return f(Bfloat16());
        default:
            return TRTSPEC_BAD_DTYPE;
    }
}

template <class F>
int with_format(int32_t dtype, F f) {
    return dtype == TRTSPEC_FLOAT8_E4M3 ? f(E4m3()) : with_wide(dtype, f);
}

/// The error code of a call, independent of the formats.
inline int check_call(const trtspec_quantize_args& args) {
    const bool is_cast = args.operation == TRTSPEC_CAST, is_count = args.operation == TRTSPEC_COUNT;
    if (!is_cast && !is_count && args.operation != TRTSPEC_QUANTIZE_ROWS) {
        return TRTSPEC_BAD_KIND;
    }
    if (args.rows < 0 || args.columns < 0) {
        return TRTSPEC_BAD_SIZE;
    }
    const bool has_entries = args.rows > 0 && args.columns > 0;
    const bool lacks_entries = args.source == nullptr || (!is_count && args.target == nullptr);
    const bool lacks_census = !is_cast && args.census == nullptr;
    const bool lacks_scales = !is_cast && !is_count && args.rows > 0 && args.scales == nullptr;
    return (has_entries && lacks_entries) || lacks_census || lacks_scales ? TRTSPEC_BAD_POINTER : TRTSPEC_OK;
}

/// Runs a call that passed `check_call`.
inline int quantize(const trtspec_quantize_args& args) {
    const Source source{static_cast<const unsigned char*>(args.source), args.source_stride};
    const Target target{static_cast<unsigned char*>(args.target), args.target_stride};
    if (args.operation == TRTSPEC_CAST) {
        return with_format(args.source_dtype, [&](auto from) {
            return with_format(args.target_dtype,
                               [&](auto to) { return cast<decltype(from), decltype(to)>(args, source, target); });
        });
    }
    return with_wide(args.source_dtype, [&](auto from) {
        using From = decltype(from);
        return args.operation == TRTSPEC_COUNT ? count<From>(args, source) : quantize_rows<From>(args, source, target);
    });
}

}  // namespace trtspec
