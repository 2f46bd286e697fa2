// SPDX-License-Identifier: Apache-2.0
// The distributions of drafted tokens: one class per kind of draft, with the same members for draft rows.
//   kDrawn                                   whether there is a distribution at all
//   stage(team, row), prefetch(team, row)    the hints of a team
//   open(team, row, sampling)                opens a row; false if it is known not to be a distribution
//   prob(id)                                 the open row's probability of a target id; 0 without a column
//   with_probs(vocab, f)                     calls f(prob) for sums over all ids: the above, or a faster one
//   is_prob(value)                           whether the value is a probability
//   is_sound(team)                           whether all entries of the open row are probabilities
//   mass(id), total_mass(team), unit()       prob(id) as an integer, the sum of the open row, and the value of 1
#pragma once

#include <cstdint>

#include "common/distribution.h"
#include "common/row.h"

namespace trtspec {

/// Tokens are deterministic, such as looked-up ones.
struct Chosen {
    static constexpr bool kDrawn = false;

    template <class Team>
    TRTSPEC_HD void stage(Team&, int32_t) const {}
    template <class Team>
    TRTSPEC_HD void prefetch(Team&, int32_t) const {}
};

/// The entry of a draft row for a target id; without a map, ids are equal.
struct Columns {
    const int32_t* column_of;
    int32_t count;

    /// Whether every id is its own column.
    TRTSPEC_HD bool are_ids(int32_t vocab) const { return column_of == nullptr && count >= vocab; }

    /// -1 if the draft lacks the token.
    TRTSPEC_HD int32_t operator[](int32_t id) const {
        const int32_t column = column_of == nullptr ? id : column_of[id];
        return column >= 0 && column < count ? column : -1;
    }
};

/// Tokens were sampled from logits, with the target's sampling parameters.
template <class T>
class FromLogits {
public:
    static constexpr bool kDrawn = true;

    TRTSPEC_HD FromLogits(Rows<T> rows, const int32_t* column_of) : rows_(rows), columns_{column_of, rows.size} {}

    template <class Team>
    TRTSPEC_HD void stage(Team& team, int32_t row) const {
        team.stage(rows_[row]);
    }

    template <class Team>
    TRTSPEC_HD void prefetch(Team& team, int32_t row) const {
        team.prefetch(rows_[row]);
    }

    template <class Team>
    TRTSPEC_HD bool open(Team& team, int32_t row, const Sampling& sampling) {
        row_ = rows_[row];
        const Largest largest = largest_of(team, row_);
        if (!largest.is_finite()) {
            return false;
        }
        distribution_ = distribution_of(team, row_, largest, sampling);
        return true;
    }

    template <class Team>
    TRTSPEC_HD bool is_sound(Team&) const {
        return true;
    }

    TRTSPEC_HD uint64_t mass(int32_t id) const {
        const int32_t column = columns_[id];
        return column < 0 ? 0 : distribution_.weight(column, to_float(row_.data[column]));
    }

    template <class Team>
    TRTSPEC_HD uint64_t total_mass(Team&) const {
        return distribution_.total;
    }

    TRTSPEC_HD double unit() const { return static_cast<double>(distribution_.total); }

    TRTSPEC_HD double prob(int32_t id) const { return distribution_.prob_of(mass(id)); }

    template <class F>
    TRTSPEC_HD auto with_probs(int32_t vocab, F f) const {
        const FromLogits self = *this;
        if (columns_.are_ids(vocab)) {
            return f([=](int32_t id) { return self.distribution_.prob(id, to_float(self.row_.data[id])); });
        }
        return f([=](int32_t id) { return self.prob(id); });
    }

    TRTSPEC_HD static bool is_prob(double) { return true; }

private:
    Rows<T> rows_;
    Columns columns_;
    Row<T> row_{};
    Distribution distribution_{};
};

/// Tokens were drawn from given probabilities.
class FromProbabilities {
public:
    static constexpr bool kDrawn = true;

    TRTSPEC_HD FromProbabilities(Rows<float> rows, const int32_t* column_of)
        : rows_(rows), columns_{column_of, rows.size} {}

    template <class Team>
    TRTSPEC_HD void stage(Team&, int32_t) const {}
    template <class Team>
    TRTSPEC_HD void prefetch(Team&, int32_t) const {}

    template <class Team>
    TRTSPEC_HD bool open(Team&, int32_t row, const Sampling&) {
        row_ = rows_[row];
        return true;
    }

    /// Whether all entries are probabilities; before a rejection only one of them is read.
    template <class Team>
    TRTSPEC_HD bool is_sound(Team& team) const {
        return team.largest(row_, [](float entry) -> uint32_t { return is_prob(entry) ? 0 : 1; }).key == 0;
    }

    TRTSPEC_HD uint64_t mass(int32_t id) const { return to_fixed(prob(id)); }

    template <class Team>
    TRTSPEC_HD uint64_t total_mass(Team& team) const {
        return team.sum(row_, [](int32_t, float entry) { return to_fixed(entry); });
    }

    TRTSPEC_HD double unit() const { return 0x1p62; }

    TRTSPEC_HD double prob(int32_t id) const {
        const int32_t column = columns_[id];
        return column < 0 ? 0.0 : static_cast<double>(row_.data[column]);
    }

    template <class F>
    TRTSPEC_HD auto with_probs(int32_t vocab, F f) const {
        const FromProbabilities self = *this;
        if (columns_.are_ids(vocab)) {
            return f([=](int32_t id) { return static_cast<double>(self.row_.data[id]); });
        }
        return f([=](int32_t id) { return self.prob(id); });
    }

    TRTSPEC_HD static bool is_prob(double value) { return value >= 0.0 && value <= 1.0; }

private:
    Rows<float> rows_;
    Columns columns_;
    Row<float> row_{};
};

}  // namespace trtspec
