// SPDX-License-Identifier: Apache-2.0
// Verification of one request's tree: from the root down, in each of the three modes.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/distribution.h"
#include "common/proposal.h"
#include "common/row.h"
#include "trtspec/verify.h"

namespace trtspec {

/// Inputs and outputs of one request's tree verification. `path` has space for `nodes` numbers.
template <class T>
struct TreeRequest {
    Rows<T> target;
    const int32_t* tokens;
    const int32_t* parents;
    const uint32_t* uniforms;  // null for a greedy request
    int32_t nodes;
    int32_t limit;
    Sampling sampling;
    float threshold;  // for the typical mode, like alpha
    float alpha;
    int32_t* path;
    int32_t* path_len;
    int32_t* next;
    int32_t* status;
};

/// Whether a node has a token of the vocabulary.
template <class T>
TRTSPEC_HD bool has_token(const TreeRequest<T>& request, int32_t node) {
    return request.tokens[node] >= 0 && request.tokens[node] < request.target.size;
}

/// The position and the results of a walk.
struct Walk {
    int32_t node;
    int32_t depth;
    int32_t status;
};

/// A walk at its beginning; children with tokens outside the vocabulary are skipped, but reported in the status.
template <class T>
TRTSPEC_HD Walk start_walk(const TreeRequest<T>& request) {
    int32_t status = 0;
    for (int32_t node = 1; node < request.nodes; ++node) {
        const int32_t parent = request.parents[node];
        status |= parent >= 0 && parent < node && !has_token(request, node) ? TRTSPEC_BAD_DRAFT : 0;
    }
    return Walk{0, 0, status};
}

/// The first child of `node` after the node `previous`, or -1; children have higher numbers than their parents.
template <class T>
TRTSPEC_HD int32_t next_child(const TreeRequest<T>& request, int32_t node, int32_t previous) {
    int32_t child = previous + 1;
    while (child < request.nodes && !(request.parents[child] == node && has_token(request, child))) {
        ++child;
    }
    return child < request.nodes ? child : -1;
}

template <class T>
TRTSPEC_HD int32_t first_child(const TreeRequest<T>& request, const Walk& walk) {
    return walk.depth < request.limit ? next_child(request, walk.node, walk.node) : -1;
}

template <class Team, class T>
TRTSPEC_HD void step_down(Team& team, const TreeRequest<T>& request, int32_t child, Walk& walk) {
    if (team.leader()) {
        request.path[walk.depth] = child;
    }
    walk.node = child;
    ++walk.depth;
}

/// Writes the end of a walk, whose path is already written.
template <class Team, class T>
TRTSPEC_HD void write_end(Team& team, const TreeRequest<T>& request, const Walk& walk, int32_t next) {
    if (!team.leader()) {
        return;
    }
    *request.path_len = walk.depth;
    *request.next = next;
    *request.status = walk.status;
    for (int32_t i = walk.depth; i < request.nodes; ++i) {
        request.path[i] = -1;
    }
}

/// Reads a row of the target that a walk may read several times.
template <class Team, class T>
TRTSPEC_HD Reading read_node(Team& team, const TreeRequest<T>& request, Walk& walk) {
    const Row<T> row = request.target[walk.node];
    if (!request.sampling.greedy) {
        team.stage(row);
    }
    const Reading reading = read_target(team, row, request.sampling);
    walk.status |= reading.status;
    return reading;
}

/// Deterministic children: walks down as long as a child has the token drawn after its parent.
template <class Team, class T>
TRTSPEC_HD void walk_deterministic(Team& team, const TreeRequest<T>& request) {
    Walk walk = start_walk(request);
    while (true) {
        const Reading reading = read_node(team, request, walk);
        int32_t drawn = reading.status != 0 ? reading.next : reading.target.argmax;
        if (reading.status == 0 && !request.sampling.greedy) {
            drawn = draw(team, request.target[walk.node], reading.target, request.uniforms[walk.node]);
        }
        int32_t child = reading.status != 0 ? -1 : first_child(request, walk);
        while (child >= 0 && request.tokens[child] != drawn) {
            child = next_child(request, walk.node, child);
        }
        if (child < 0) {
            return write_end(team, request, walk, drawn);
        }
        step_down(team, request, child, walk);
    }
}

/// The residuals of a node's row and of the draft's row while children are rejected: the target's
/// T = max(a * p - b * q, 0), the draft's D = q * d, both 0 for the tokens of rejected children. Replacing T by
/// max(T - D, 0) only changes a and b, because T stays 0 where it is 0.
template <class T, class Draft>
struct Left {
    const TreeRequest<T>& request;
    Row<T> row;
    Distribution target;
    int32_t node;
    Draft draft;
    bool is_open = false;  // the draft's row
    double a = 1.0;
    double b = 0.0;
    double d = 1.0;
    uint64_t draft_mass = 0;     // of tokens that are not rejected; known after a rejection
    int32_t last_rejected = 0;   // the child up to which all were rejected; 0 for none
    uint64_t rejected_bits = 0;  // the rejected ids modulo 64

    TRTSPEC_HD bool has_rejected() const { return last_rejected > 0; }

    /// T of an id that was not rejected; negative values stand for 0.
    TRTSPEC_HD double left_prob(int32_t id, float logit, double draft_prob) const {
        return sub(mul(a, target.prob(id, logit)), mul(b, draft_prob));
    }

    /// Whether a child before the node `end` has the token.
    TRTSPEC_HD bool is_among(int32_t token, int32_t end) const {
        int32_t child = next_child(request, node, node);
        while (child >= 0 && child < end && request.tokens[child] != token) {
            child = next_child(request, node, child);
        }
        return child >= 0 && child < end;
    }

    /// A bit excludes almost all ids.
    TRTSPEC_HD bool was_rejected(int32_t id) const {
        return (rejected_bits >> (id & 63) & 1) != 0 && is_among(id, last_rejected + 1);
    }

    /// The sum of weight(id, logit) over the rejected tokens.
    template <class Weight>
    TRTSPEC_HD uint64_t sum_of_rejected(Weight weight) const {
        uint64_t sum = 0;
        int32_t child = next_child(request, node, node);
        for (; child >= 0 && child <= last_rejected; child = next_child(request, node, child)) {
            const int32_t token = request.tokens[child];
            sum += is_among(token, child) ? 0 : weight(token, to_float(row.data[token]));
        }
        return sum;
    }

    /// The sum of trunc((T - taken * q) * 2^62) over the tokens that are not rejected: modulo 2^64 it is the sum over
    /// all tokens minus that of the rejected ones, which avoids a lookup per id.
    template <class Team>
    TRTSPEC_HD uint64_t sum_without(Team& team, double taken) const {
        const Left left = *this;
        return draft.with_probs(row.size, [&](auto draft_prob) {
            const auto weight = [=](int32_t id, float logit) {
                const double prob = draft_prob(id);
                return to_fixed(sub(left.left_prob(id, logit, prob), mul(prob, taken)));
            };
            return team.sum(left.row, weight) - left.sum_of_rejected(weight);
        });
    }

    /// Whether a token is accepted; a token with probability 0 in the draft's row is deterministic.
    TRTSPEC_HD bool accepts(int32_t token, uint32_t uniform) const {
        const double draft_prob = draft.prob(token);
        const double drawn_from = mul(draft_prob, d);
        const double asked = drawn_from > 0.0 ? mul(unit(uniform), drawn_from) : unit(uniform);
        return asked < left_prob(token, to_float(row.data[token]), draft_prob);
    }

    /// Removes a child's token from both, and normalizes them.
    template <class Team>
    TRTSPEC_HD void reject(Team& team, int32_t child) {
        const int32_t token = request.tokens[child];
        const bool was_sampled = mul(draft.prob(token), d) > 0.0;
        const double taken = was_sampled ? d : 0.0;
        draft_mass = has_rejected() ? draft_mass : draft.total_mass(team);
        last_rejected = child;
        rejected_bits |= uint64_t{1} << (token & 63);
        const double rest = from_fixed(sum_without(team, taken));
        if (rest > 0.0) {
            a = div(a, rest);
            b = div(add(b, taken), rest);
        }
        if (was_sampled) {
            draft_mass -= draft.mass(token);
            d = draft_mass > 0 ? div(draft.unit(), static_cast<double>(draft_mass)) : 0.0;
        }
    }

    /// Draws the token after the last child.
    template <class Team>
    TRTSPEC_HD int32_t draw_next(Team& team, uint32_t uniform) const {
        const uint64_t sum = has_rejected() ? sum_without(team, 0.0) : 0;
        if (sum == 0) {
            return draw(team, row, target, uniform);
        }
        const Left left = *this;
        const auto weight = [=](int32_t id, float logit) {
            return left.was_rejected(id) ? 0 : to_fixed(left.left_prob(id, logit, left.draft.prob(id)));
        };
        return draw(team, row, weight, sum, uniform);
    }
};

/// Tests a node's children in order; returns the first accepted one, or -1, also for an unusable row of the draft.
template <class Team, class T, class Draft>
TRTSPEC_HD int32_t first_accepted(Team& team, Left<T, Draft>& left, Walk& walk) {
    const TreeRequest<T>& request = left.request;
    for (int32_t child = first_child(request, walk); child >= 0; child = next_child(request, walk.node, child)) {
        const int32_t token = request.tokens[child];
        if (left.was_rejected(token)) {
            continue;
        }
        left.is_open = left.is_open || left.draft.open(team, walk.node, request.sampling);
        const bool is_usable = left.is_open && Draft::is_prob(left.draft.prob(token));
        if (is_usable && left.accepts(token, request.uniforms[child])) {
            return child;
        }
        if (!is_usable || !(left.has_rejected() || left.draft.is_sound(team))) {
            walk.status |= TRTSPEC_DRAFT_NONFINITE;
            return -1;
        }
        left.reject(team, child);
    }
    return -1;
}

/// Children were sampled without replacement: each is tested after the rejection of its elder siblings.
template <class Team, class T, class Draft>
TRTSPEC_HD void walk_sampled(Team& team, const TreeRequest<T>& request, Draft draft) {
    Walk walk = start_walk(request);
    while (true) {
        const Reading reading = read_node(team, request, walk);
        if (reading.status != 0) {
            return write_end(team, request, walk, reading.next);
        }
        draft.stage(team, walk.node);
        Left<T, Draft> left{request, request.target[walk.node], reading.target, walk.node, draft};
        const int32_t child = first_accepted(team, left, walk);
        if (child < 0) {
            return write_end(team, request, walk, left.draw_next(team, request.uniforms[0]));
        }
        step_down(team, request, child, walk);
    }
}

/// 2 to the mean of log2(p), which is exp(-entropy): the mean in integers, to 2^-11.
template <class Team, class T>
TRTSPEC_HD double exp_of_minus_entropy(Team& team, Row<T> row, const Distribution& target) {
    const uint64_t spent = team.sum(row, [=](int32_t id, float logit) {
        const float scaled = rintf(mul(target.exponent(logit), -1024.0f));
        const uint64_t steps = static_cast<uint32_t>(static_cast<int32_t>(scaled));
        return (target.weight(id, logit) >> 16) * steps;
    });
    const double mean = mul(mul(static_cast<double>(spent), 64.0), target.inverse);
    const float exponent = static_cast<float>(-mean);
    return exponent >= kLowestExponent ? target.prob_of(exp2_weight(exponent)) : 0.0;
}

/// The bound that a typical child's probability exceeds, for a row that was read; 1 for an invalid row.
template <class Team, class T>
TRTSPEC_HD double typical_bound(Team& team, const TreeRequest<T>& request, Row<T> row, const Reading& reading) {
    if (reading.status != 0) {
        return 1.0;
    }
    const double bound = mul(static_cast<double>(request.alpha), exp_of_minus_entropy(team, row, reading.target));
    const double threshold = static_cast<double>(request.threshold);
    return bound < threshold ? bound : threshold;
}

/// Lossy: writes into `path` the depth of each accepted node, 0 for the others.
template <class Team, class T>
TRTSPEC_HD void mark_typical(Team& team, const TreeRequest<T>& request, int32_t& status) {
    for (int32_t node = 0; node < request.nodes && team.leader(); ++node) {
        request.path[node] = node == 0 ? 1 : 0;
    }
    for (int32_t node = 0; node < request.nodes; ++node) {
        team.barrier();
        Walk walk{node, request.path[node] - 1, 0};
        if (walk.depth < 0 || first_child(request, walk) < 0) {
            continue;
        }
        const Row<T> row = request.target[node];
        const Reading reading = read_node(team, request, walk);
        const double bound = typical_bound(team, request, row, reading);
        for (int32_t child = first_child(request, walk); child >= 0; child = next_child(request, node, child)) {
            const int32_t token = request.tokens[child];
            if (reading.target.prob(token, to_float(row.data[token])) > bound && team.leader()) {
                request.path[child] = walk.depth + 2;
            }
        }
        status |= walk.status;
    }
    team.barrier();
}

/// Lossy: the longest path of tokens that are probable enough.
template <class Team, class T>
TRTSPEC_HD void walk_typical(Team& team, const TreeRequest<T>& request) {
    Walk walk = start_walk(request);
    mark_typical(team, request, walk.status);
    for (int32_t node = 0; node < request.nodes; ++node) {
        if (request.path[node] - 1 > walk.depth) {
            walk = Walk{node, request.path[node] - 1, walk.status};
        }
    }
    team.barrier();
    const Reading reading = read_node(team, request, walk);
    const int32_t next = reading.status != 0
                             ? reading.next
                             : draw(team, request.target[walk.node], reading.target, request.uniforms[0]);
    if (team.leader()) {
        int32_t node = walk.node;
        for (int32_t i = walk.depth - 1; i >= 0; --i) {
            request.path[i] = node;
            node = request.parents[node];
        }
    }
    write_end(team, request, walk, next);
}

/// Greedy requests treat children as deterministic in every mode.
template <class Team, class T, class Draft>
TRTSPEC_HD void verify_tree(Team& team, const TreeRequest<T>& request, int32_t mode, Draft draft) {
    if constexpr (Draft::kDrawn) {
        if (mode == TRTSPEC_TREE_RECURSIVE && !request.sampling.greedy) {
            return walk_sampled(team, request, draft);
        }
    }
    if (mode == TRTSPEC_TREE_TYPICAL && !request.sampling.greedy) {
        return walk_typical(team, request);
    }
    walk_deterministic(team, request);
}

}  // namespace trtspec
