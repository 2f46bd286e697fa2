// SPDX-License-Identifier: Apache-2.0
// Verification of one request's chain as a whole: every prefix is tested, and the longest accepted one wins. The rule
// is in plugins/README.md.
#pragma once

#include <cstdint>

#include "common/chain.h"
#include "common/distribution.h"
#include "common/proposal.h"
#include "common/row.h"

namespace trtspec {

/// The place after a prefix of `length` tokens; the target covers the share `kept` of their draft mass. `draft` is open
/// at the row of the `token` that was drafted here; -1 at the end of the chain.
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

    /// Calls f(prob) with the distribution of the token; a token with probability 0 in its row is deterministic.
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

    /// Calls f(weight) with the target's mass in excess of the draft's.
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

    /// The covered share of the draft's mass, including the token.
    TRTSPEC_HD double kept_with_token() const {
        double drafted = 1.0;
        if constexpr (Draft::kDrawn) {
            drafted = is_drawn() ? draft.prob(token) : 1.0;
        }
        const double covered = mul(kept, reading.target.prob(token, to_float(row.data[token])));
        return covered < drafted ? div(covered, drafted) : 1.0;
    }
};

/// Opens the draft's row at a position; returns whether it is a distribution.
template <class Team, class Draft>
TRTSPEC_HD bool open_whole(Team& team, Draft& draft, int32_t position, const Sampling& sampling) {
    if constexpr (Draft::kDrawn) {
        return draft.open(team, position, sampling) && draft.is_sound(team);
    }
    return true;
}

/// Reads the rows of a place. The chain ends if the target's row, the draft's row or the token is invalid.
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

/// Whether a prefix is accepted unless a longer one is.
template <class Team, class T, class Draft>
TRTSPEC_HD bool stays(Team& team, const Place<T, Draft>& place, uint32_t uniform) {
    if (place.token < 0 || place.kept == 1.0) {
        return unit(uniform) < place.kept;
    }
    const uint64_t fixed = place.with_surplus([&](auto weight) { return team.sum(place.row, weight); });
    const double surplus = from_fixed(fixed);
    return mul(unit(uniform), add(surplus, sub(1.0, place.kept))) < surplus;
}

/// Draws the token after the accepted prefix; from W if there is no surplus.
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

/// Walks along the chain while its share is above 0, and writes the longest accepted prefix.
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
