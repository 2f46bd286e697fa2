// SPDX-License-Identifier: Apache-2.0
// From a row of logits to the distribution that its request samples from: integer weights, whose sum does not depend on
// the order. The specification is plugins/README.md; trtspec/kernels/bit_exact is the numpy equivalent.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/arithmetic.h"
#include "common/exp2_coefficients.h"
#include "common/row.h"
#include "trtspec/verify.h"

namespace trtspec {

constexpr int kWeightBits = 44;           // of the largest logit's weight, 2^44
constexpr float kLowestExponent = -45.0f;      // at and below this, weights are 0
constexpr uint32_t kLowestBits = 0xc2340000u;  // its bits

constexpr float kLargestFloat = 0x1.fffffep127f;

/// The sampling parameters of a request.
struct Sampling {
    float scale;    // log2(e) / temperature
    float top_p;    // 1 or more: all
    int32_t top_k;  // 0 or less: all
    bool greedy;
};

TRTSPEC_HD inline Sampling sampling_of(float temperature, int32_t top_k, float top_p, bool has_uniforms) {
    const float scale = div(1.44269504f, temperature);
    const bool is_sharp = !(temperature > 0.0f) || scale > kLargestFloat;
    return Sampling{scale, top_p, top_k, is_sharp || top_k == 1 || !has_uniforms};
}

/// 2^exponent in units of 2^-44, truncated, for an exponent in [-45, 0].
TRTSPEC_HD inline uint64_t exp2_weight(float exponent) {
    const float whole = floorf(exponent);
    const float part = sub(exponent, whole);
    float power = fma(TRTSPEC_EXP2_C5, part, TRTSPEC_EXP2_C4);
    power = fma(power, part, TRTSPEC_EXP2_C3);
    power = fma(power, part, TRTSPEC_EXP2_C2);
    power = fma(power, part, TRTSPEC_EXP2_C1);
    power = fma(power, part, 1.0f);
    power = power < 0x1.fffffep0f ? power : 0x1.fffffep0f;
    const uint64_t significand = (bit_cast<uint32_t>(power) & 0x7fffffu) | 0x800000u;
    return (significand << (kWeightBits - 23)) >> static_cast<uint32_t>(-static_cast<int32_t>(whole));
}

/// A row's distribution: the `weight` of each id, and their sum `total`; a single id if greedy.
struct Distribution {
    float largest;
    float scale;
    float cut;       // entries above it are kept,
    int32_t cut_id;  // and equal entries up to this id
    int32_t argmax;
    uint64_t total;
    double inverse;

    TRTSPEC_HD bool keeps(int32_t id, float logit) const {
        return (logit > cut) | ((logit == cut) & (id <= cut_id));
    }

    /// (x - largest) * scale, or the lowest exponent if it is below that or NaN (masked). It is never above 0 and is
    /// clamped by its bits, which decrease with the value: compilers vectorize this.
    TRTSPEC_HD float exponent(float logit) const {
        const uint32_t bits = bit_cast<uint32_t>(mul(sub(logit, largest), scale)) | 0x80000000u;
        return bit_cast<float>(bits < kLowestBits ? bits : kLowestBits);
    }

    TRTSPEC_HD uint64_t weight_of_kept(float logit) const { return exp2_weight(exponent(logit)); }

    TRTSPEC_HD uint64_t weight(int32_t id, float logit) const { return keeps(id, logit) ? weight_of_kept(logit) : 0; }

    TRTSPEC_HD double prob_of(uint64_t weight) const { return mul(to_double(weight), inverse); }

    TRTSPEC_HD double prob(int32_t id, float logit) const { return prob_of(weight(id, logit)); }
};

/// Keeps the entries of a row, in decreasing order and by id among equals, up to the first one at which the cumulative
/// `weight` is above `threshold`: found digit by digit of the key, then by counting equals. `weight` is the same for
/// equals, or 0 from some id on.
template <class Team, class T, class Weight>
TRTSPEC_HD void cut_above(Team& team, Row<T> row, Weight weight, uint64_t threshold, Distribution& target) {
    uint32_t prefix = 0;
    uint32_t known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        const auto digit = [=](int32_t, float logit) {
            const uint32_t key = key_of(logit);
            return (key & known) == prefix ? static_cast<int>(key >> shift & 0xffu) : -1;
        };
        const Bin bin = team.descend(row, digit, weight, threshold);
        if (bin.index < 0) {
            return;
        }
        threshold -= bin.before;
        prefix |= static_cast<uint32_t>(bin.index) << shift;
        known |= 0xffu << shift;
    }
    const float cut = entry_of(prefix);
    // an id before all others stands for the weight of the kept entries
    const uint64_t equals_before = threshold / weight(-1, cut);
    target.cut_id = team.select(row, [=](int32_t, float logit) -> uint64_t { return logit == cut; }, equals_before);
    target.cut = cut;
}

template <class Team, class T, class Weight>
TRTSPEC_HD void sum_up(Team& team, Row<T> row, Weight weight, Distribution& target) {
    target.total = team.sum(row, weight);
    target.inverse = inverse_of(target.total);
}

template <class Team, class T>
TRTSPEC_HD void sum_up_kept(Team& team, Row<T> row, Distribution& target) {
    const Distribution given = target;
    sum_up(team, row, [=](int32_t id, float logit) { return given.weight(id, logit); }, target);
}

template <class Team, class T>
TRTSPEC_HD void keep_top_k(Team& team, Row<T> row, int32_t top_k, Distribution& target) {
    if (top_k > 0 && top_k < row.size) {
        cut_above(team, row, [](int32_t, float) -> uint64_t { return 1; }, static_cast<uint64_t>(top_k) - 1, target);
        sum_up_kept(team, row, target);
    }
}

template <class Team, class T>
TRTSPEC_HD void keep_top_p(Team& team, Row<T> row, float top_p, Distribution& target) {
    if (top_p < 1.0f) {
        // an entry is kept while the weight before it is below the limit: up to where the sum is above limit - 1
        const double limit = mul(static_cast<double>(top_p), static_cast<double>(target.total));
        const uint64_t threshold = limit >= 1.0 ? static_cast<uint64_t>(limit) - 1 : 0;
        const Distribution given = target;
        cut_above(team, row, [=](int32_t id, float logit) { return given.weight(id, logit); }, threshold, target);
        sum_up_kept(team, row, target);
    }
}

/// The distribution of a row whose largest finite entry is known.
template <class Team, class T>
TRTSPEC_HD Distribution distribution_of(Team& team, Row<T> row, Largest largest, const Sampling& sampling) {
    const float top = entry_of(largest.key);
    Distribution target{top, sampling.scale, top, largest.id, largest.id, uint64_t{1} << kWeightBits, 0x1p-44};
    if (!sampling.greedy) {
        target.cut = -INFINITY;
        target.cut_id = row.size;
        if (sampling.top_k <= 0 || sampling.top_k >= row.size) {
            const Distribution all = target;
            sum_up(team, row, [=](int32_t, float logit) { return all.weight_of_kept(logit); }, target);
        }
        keep_top_k(team, row, sampling.top_k, target);
        keep_top_p(team, row, sampling.top_p, target);
    }
    return target;
}

/// A target's row after reading: its distribution, or the status and the token that ends the walk.
struct Reading {
    Distribution target;
    int32_t status;
    int32_t next;
};

template <class Team, class T>
TRTSPEC_HD Reading read_target(Team& team, Row<T> row, const Sampling& sampling) {
    Largest largest = largest_of(team, row);
    if (largest.is_finite()) {
        return Reading{distribution_of(team, row, largest, sampling), 0, -1};
    }
    int32_t status = 0;
    if (largest.is_above_finite()) {
        status = TRTSPEC_NONFINITE;
        largest = largest_finite_of(team, row);
    }
    return largest.is_finite() ? Reading{Distribution{}, status, largest.id}
                               : Reading{Distribution{}, status | TRTSPEC_EMPTY, -1};
}

/// The first id at which the cumulative `weight`, with this sum above 0, is above the uniform's share of the sum.
template <class Team, class T, class Weight>
TRTSPEC_HD int32_t draw(Team& team, Row<T> row, Weight weight, uint64_t sum, uint32_t uniform) {
    return team.select(row, weight, share(uniform, sum));
}

template <class Team, class T>
TRTSPEC_HD int32_t draw(Team& team, Row<T> row, const Distribution& target, uint32_t uniform) {
    return draw(team, row, [=](int32_t id, float logit) { return target.weight(id, logit); }, target.total, uniform);
}

}  // namespace trtspec
