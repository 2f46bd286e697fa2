// SPDX-License-Identifier: Apache-2.0
// Verification of one request's chain: positions are tested until a rejection, then the next token is drawn.
#pragma once

#include <cstdint>

#include "common/distribution.h"
#include "common/proposal.h"
#include "common/row.h"

namespace trtspec {

/// Inputs and outputs of one request's chain verification.
template <class T>
struct ChainRequest {
    Rows<T> target;  // length + 1 rows at least
    const int32_t* tokens;
    const uint32_t* uniforms;  // null for a greedy request
    int32_t length;
    int32_t draft_len;  // of the uniforms and the output
    Sampling sampling;
    int32_t* accepted;
    int32_t* output;  // or null
    int32_t* next;
    int32_t* status;
};

/// The result of the test of a drafted token.
enum class Test {
    accepted,
    rejected_deterministic,  // the next token is drawn from W without this one
    rejected_sampled,        // the next token is drawn from max(p - q, 0)
    bad_token,               // outside the vocabulary; the next token is drawn from W
    bad_draft,               // the draft's row is not a distribution; the same
};

TRTSPEC_HD inline int32_t status_of(Test test) {
    return test == Test::bad_token ? TRTSPEC_BAD_DRAFT : test == Test::bad_draft ? TRTSPEC_DRAFT_NONFINITE : 0;
}

template <class Team, class T>
TRTSPEC_HD void write_chain(
    Team& team, const ChainRequest<T>& request, int32_t accepted, int32_t next, int32_t status) {
    if (!team.leader()) {
        return;
    }
    *request.accepted = accepted;
    *request.next = next;
    *request.status = status;
    for (int32_t i = 0; request.output != nullptr && i <= request.draft_len; ++i) {
        request.output[i] = i < accepted ? request.tokens[i] : i == accepted ? next : -1;
    }
}

/// Tests the token at a position. A token with probability 0 in its draft row is deterministic.
template <class Team, class T, class Draft>
TRTSPEC_HD Test test_token(
    Team& team,
    const ChainRequest<T>& request,
    Draft& draft,
    Row<T> row,
    const Distribution& target,
    int32_t position) {
    const int32_t token = request.tokens[position];
    if (token < 0 || token >= row.size) {
        return Test::bad_token;
    }
    if (request.sampling.greedy) {
        return token == target.argmax ? Test::accepted : Test::rejected_deterministic;
    }
    const uint32_t uniform = request.uniforms[position];
    const uint64_t weight = target.weight(token, to_float(row.data[token]));
    if constexpr (Draft::kDrawn) {
        if (!draft.open(team, position, request.sampling)) {
            return Test::bad_draft;
        }
        const double draft_prob = draft.prob(token);
        if (draft_prob != 0.0) {
            if (Draft::is_prob(draft_prob) && mul(unit(uniform), draft_prob) < target.prob_of(weight)) {
                return Test::accepted;
            }
            return draft.is_sound(team) ? Test::rejected_sampled : Test::bad_draft;
        }
    }
    return share(uniform, target.total) < weight ? Test::accepted : Test::rejected_deterministic;
}

/// Draws the next token after a rejection; from W if there is no residual.
template <class Team, class T, class Draft>
TRTSPEC_HD int32_t draw_after(
    Test test,
    Team& team,
    const Draft& draft,
    Row<T> row,
    const Distribution& target,
    int32_t token,
    uint32_t uniform) {
    if constexpr (Draft::kDrawn) {
        if (test == Test::rejected_sampled) {
            return draft.with_probs(row.size, [&](auto draft_prob) {
                const auto rest = [=](int32_t id, float logit) {
                    return to_fixed(sub(target.prob(id, logit), draft_prob(id)));
                };
                const int32_t drawn = team.draw(row, rest, uniform);
                return drawn < 0 ? draw(team, row, target, uniform) : drawn;
            });
        }
    }
    if (test == Test::rejected_deterministic) {
        const auto rest = [=](int32_t id, float logit) { return id == token ? 0 : target.weight(id, logit); };
        const uint64_t sum = target.total - target.weight(token, to_float(row.data[token]));
        return sum == 0 ? draw(team, row, target, uniform) : draw(team, row, rest, sum, uniform);
    }
    return draw(team, row, target, uniform);
}

/// The token at the uniform of a chain's last column, which greedy requests do not need.
template <class Team, class T, class Draft>
TRTSPEC_HD int32_t next_token(
    Test test,
    Team& team,
    const ChainRequest<T>& request,
    const Draft& draft,
    Row<T> row,
    const Distribution& target,
    int32_t token) {
    if (request.sampling.greedy) {
        return target.argmax;
    }
    return draw_after(test, team, draft, row, target, token, request.uniforms[request.draft_len]);
}

/// Hints that the rows of a position are read several times if the request samples, and that the next may follow.
template <class Team, class T, class Draft>
TRTSPEC_HD void fetch_rows(Team& team, const ChainRequest<T>& request, const Draft& draft, int32_t position) {
    const bool samples = !request.sampling.greedy;
    if (samples) {
        team.stage(request.target[position]);
    }
    if (samples && position < request.length) {
        draft.stage(team, position);
    }
    if (position < request.length) {
        team.prefetch(request.target[position + 1]);
    }
    if (samples && position + 1 < request.length) {
        draft.prefetch(team, position + 1);
    }
}

/// Walks along the chain to the first rejected token, or past the last, and writes the results.
template <class Team, class T, class Draft>
TRTSPEC_HD void verify_chain(Team& team, const ChainRequest<T>& request, Draft draft) {
    for (int32_t position = 0;; ++position) {
        fetch_rows(team, request, draft, position);
        const Row<T> row = request.target[position];
        const Reading reading = read_target(team, row, request.sampling);
        if (reading.status != 0) {
            return write_chain(team, request, position, reading.next, reading.status);
        }
        const bool is_last = position == request.length;
        const Test test = is_last ? Test::accepted : test_token(team, request, draft, row, reading.target, position);
        if (is_last || test != Test::accepted) {
            const int32_t token = is_last ? -1 : request.tokens[position];
            const int32_t next = next_token(test, team, request, draft, row, reading.target, token);
            return write_chain(team, request, position, next, status_of(test));
        }
    }
}

}  // namespace trtspec
