// SPDX-License-Identifier: Apache-2.0
// Verification of one request's chain as a whole: every prefix is offered its chance, and the longest that takes it
// stays. plugins/README.md has the rule.
#pragma once

#include <cstdint>

#include "common/chain.h"
#include "common/distribution.h"
#include "common/proposal.h"
#include "common/row.h"

namespace trtspec {

/// The place behind a prefix of `length` tokens, of whose draft mass the target covers the share `kept`. `draft` is open
/// at the row of the `token` that was drafted here; -1 where the chain ends.
template <class T, class Draft>
struct Place {
    int32_t length;
    double kept;
    Row<T> row;
    Reading reading;
    Draft draft;
    int32_t token;
    int32_t status;

    TRTSPEC_HD bool is_drawn() const {
        if constexpr (Draft::kDrawn) {
            return draft.prob(token) != 0.0;
        }
        return false;
    }

    /// Calls f(prob) with what the token was drawn from; one that its row gives no probability is deterministic.
    template <class F>
    TRTSPEC_HD auto with_proposal(F f) const {
        if constexpr (Draft::kDrawn) {
            if (is_drawn()) {
                return draft.with_probs(row.size, f);
            }
        }
        const int32_t chosen = token;
        return f([=](int32_t id) { return id == chosen ? 1.0 : 0.0; });
    }

    /// Calls f(weight) with the mass that the target has here beyond the draft's.
    template <class F>
    TRTSPEC_HD auto with_surplus(F f) const {
        const Distribution target = reading.target;
        const double share = kept;
        return with_proposal([&](auto draft_prob) {
            return f([=](int32_t id, float logit) {
                return to_fixed(sub(mul(share, target.prob(id, logit)), draft_prob(id)));
            });
        });
    }

    /// The share of the draft's mass that the target covers with the token, too.
    TRTSPEC_HD double kept_with_token() const {
        double drafted = 1.0;
        if constexpr (Draft::kDrawn) {
            drafted = is_drawn() ? draft.prob(token) : 1.0;
        }
        const double covered = mul(kept, reading.target.prob(token, to_float(row.data[token])));
        return covered < drafted ? div(covered, drafted) : 1.0;
    }
};

/// Whether the draft's row at a position is a distribution; it is open then.
template <class Team, class Draft>
TRTSPEC_HD bool open_whole(Team& team, Draft& draft, int32_t position, const Sampling& sampling) {
    if constexpr (Draft::kDrawn) {
        return draft.open(team, position, sampling) && draft.is_sound(team);
    }
    return true;
}

/// Reads the rows of a place. The chain ends where the target's or the draft's is none, or the token is none.
template <class Team, class T, class Draft>
TRTSPEC_HD Place<T, Draft> read_place(
    Team& team, const ChainRequest<T>& request, const Draft& draft, int32_t length, double kept) {
    fetch_rows(team, request, draft, length);
    const Row<T> row = request.target[length];
    const Reading reading = read_target(team, row, request.sampling);
    Place<T, Draft> place{length, kept, row, reading, draft, -1, reading.status};
    if (reading.status != 0 || length == request.length) {
        return place;
    }
    const int32_t token = request.tokens[length];
    if (token < 0 || token >= row.size) {
        place.status = TRTSPEC_BAD_DRAFT;
    } else if (!open_whole(team, place.draft, length, request.sampling)) {
        place.status = TRTSPEC_DRAFT_NONFINITE;
    } else {
        place.token = token;
    }
    return place;
}

/// Whether a prefix stays unless a longer one does.
template <class Team, class T, class Draft>
TRTSPEC_HD bool stays(Team& team, const Place<T, Draft>& place, uint32_t uniform) {
    if (place.token < 0 || place.kept == 1.0) {
        return unit(uniform) < place.kept;
    }
    const uint64_t fixed = place.with_surplus([&](auto weight) { return team.sum(place.row, weight); });
    const double surplus = from_fixed(fixed);
    return mul(unit(uniform), add(surplus, sub(1.0, place.kept))) < surplus;
}

/// Draws the token behind the prefix that stays; from W where the draft leaves nothing of it.
template <class Team, class T, class Draft>
TRTSPEC_HD int32_t draw_behind(Team& team, const Place<T, Draft>& place, uint32_t uniform) {
    if (place.reading.status != 0) {
        return place.reading.next;
    }
    int32_t drawn = -1;
    if (place.token >= 0) {
        drawn = place.with_surplus([&](auto weight) { return team.draw(place.row, weight, uniform); });
    }
    return drawn < 0 ? draw(team, place.row, place.reading.target, uniform) : drawn;
}

/// Goes down the chain as far as anything is left of its share, and writes the longest prefix that stays.
template <class Team, class T, class Draft>
TRTSPEC_HD void verify_block(Team& team, const ChainRequest<T>& request, Draft draft) {
    if (request.sampling.greedy) {
        return verify_chain(team, request, draft);
    }
    Place<T, Draft> place = read_place(team, request, draft, 0, 1.0);
    Place<T, Draft> best = place;
    int32_t status = place.status;
    while (place.token >= 0) {
        const double kept = place.kept_with_token();
        if (kept == 0.0) {
            break;
        }
        place = read_place(team, request, draft, place.length + 1, kept);
        status |= place.status;
        if (stays(team, place, request.uniforms[place.length - 1])) {
            best = place;
        }
    }
    write_chain(team, request, best.length, draw_behind(team, best, request.uniforms[request.draft_len]), status);
}

}  // namespace trtspec
