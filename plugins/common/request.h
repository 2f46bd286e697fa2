// SPDX-License-Identifier: Apache-2.0
// From the structs of the C interface to one request of a batch: checked once, then split on host or device.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/block.h"
#include "common/chain.h"
#include "common/proposal.h"
#include "common/row.h"
#include "common/tree.h"
#include "trtspec/verify.h"

namespace trtspec {

constexpr int32_t kRowLimit = 1 << 16;

/// The arguments of a chain that is accepted as a whole.
struct BlockArgs : trtspec_chain_args {};

/// A caller's struct with the fields of this library; a newer one may have more. `Args` are `Given`, or derived.
template <class Given, class Args>
int read_args(const Given* given, Args& args) {
    if (given == nullptr) {
        return TRTSPEC_BAD_POINTER;
    }
    if (given->struct_size < sizeof(Given)) {
        return TRTSPEC_BAD_STRUCT_SIZE;
    }
    static_cast<Given&>(args) = *given;
    return TRTSPEC_OK;
}

inline int check_rows(const trtspec_rows& rows) {
    if (rows.dtype < TRTSPEC_FLOAT32 || rows.dtype > TRTSPEC_BFLOAT16) {
        return TRTSPEC_BAD_DTYPE;
    }
    if (rows.entries < 1 || rows.entries >= kVocabLimit || rows.row_stride < 0 || rows.request_stride < 0) {
        return TRTSPEC_BAD_SIZE;
    }
    const uintptr_t entry_bytes = rows.dtype == TRTSPEC_FLOAT32 ? 4 : 2;
    const uintptr_t address = reinterpret_cast<uintptr_t>(rows.data);
    return address == 0 || address % entry_bytes != 0 ? TRTSPEC_BAD_POINTER : TRTSPEC_OK;
}

inline int check_draft(const trtspec_rows& draft, int32_t kind, const trtspec_rows& target) {
    if (kind == TRTSPEC_DRAFT_CHOSEN) {
        return TRTSPEC_OK;
    }
    if (kind != TRTSPEC_DRAFT_LOGITS && kind != TRTSPEC_DRAFT_PROBABILITIES) {
        return TRTSPEC_BAD_KIND;
    }
    const int code = check_rows(draft);
    const int32_t wanted = kind == TRTSPEC_DRAFT_LOGITS ? target.dtype : static_cast<int32_t>(TRTSPEC_FLOAT32);
    return code == TRTSPEC_OK && draft.dtype != wanted ? TRTSPEC_BAD_DTYPE : code;
}

inline int check_args(const trtspec_chain_args& args) {
    if (args.batch < 0 || args.draft_len < 0 || args.draft_len >= kRowLimit) {
        return TRTSPEC_BAD_SIZE;
    }
    const bool has_outputs = args.accepted != nullptr && args.next != nullptr && args.status != nullptr;
    if (!has_outputs || (args.tokens == nullptr && args.draft_len > 0)) {
        return TRTSPEC_BAD_POINTER;
    }
    const int code = check_rows(args.target);
    // without tokens the draft has no rows either
    return code != TRTSPEC_OK || args.draft_len == 0 ? code : check_draft(args.draft, args.draft_kind, args.target);
}

inline int check_args(const trtspec_tree_args& args) {
    if (args.batch < 0 || args.nodes < 1 || args.nodes > kRowLimit) {
        return TRTSPEC_BAD_SIZE;
    }
    if (args.mode < TRTSPEC_TREE_POINT_MASS || args.mode > TRTSPEC_TREE_TYPICAL) {
        return TRTSPEC_BAD_KIND;
    }
    const bool has_outputs = args.path != nullptr && args.path_len != nullptr && args.next != nullptr;
    if (!has_outputs || args.status == nullptr || args.tokens == nullptr || args.parents == nullptr) {
        return TRTSPEC_BAD_POINTER;
    }
    const int code = check_rows(args.target);
    if (code != TRTSPEC_OK || args.mode != TRTSPEC_TREE_RECURSIVE) {
        return code;
    }
    const bool has_draft = args.draft_kind != TRTSPEC_DRAFT_CHOSEN;
    return has_draft ? check_draft(args.draft, args.draft_kind, args.target) : TRTSPEC_BAD_KIND;
}

/// Whether any request of a batch may read its draft.
inline bool reads_draft(const trtspec_chain_args& args) {
    return args.sampling.uniforms != nullptr && args.draft_len > 0;
}

inline bool reads_draft(const trtspec_tree_args& args) {
    return args.sampling.uniforms != nullptr && args.mode == TRTSPEC_TREE_RECURSIVE;
}

/// Stands for a type among the arguments of a function.
template <class T>
struct Type {
    using type = T;
};

template <class T, class Args, class F>
auto with_draft_type(const Args& args, F f) {
    if (!reads_draft(args) || args.draft_kind == TRTSPEC_DRAFT_CHOSEN) {
        return f(Type<T>{}, Type<Chosen>{});
    }
    if (args.draft_kind == TRTSPEC_DRAFT_LOGITS) {
        return f(Type<T>{}, Type<FromLogits<T>>{});
    }
    return f(Type<T>{}, Type<FromProbabilities>{});
}

/// Calls f(Type<T>, Type<Draft>) with the types of the target's logits and of the draft.
template <class Args, class F>
auto with_types(const Args& args, F f) {
    switch (args.target.dtype) {
        case TRTSPEC_FLOAT32:
            return with_draft_type<float>(args, f);
        case TRTSPEC_FLOAT16:
            return with_draft_type<Half>(args, f);
        default:
            return with_draft_type<Bfloat16>(args, f);
    }
}

template <class T>
TRTSPEC_HD Rows<T> rows_of(const trtspec_rows& rows, int32_t request) {
    return Rows<T>{static_cast<const T*>(rows.data) + request * rows.request_stride, rows.row_stride, rows.entries};
}

TRTSPEC_HD inline Sampling sampling_of(const trtspec_sampling& sampling, int32_t request) {
    const float temperature = sampling.temperature != nullptr ? sampling.temperature[request] : 1.0f;
    const float top_p = sampling.top_p != nullptr ? sampling.top_p[request] : 1.0f;
    const int32_t top_k = sampling.top_k != nullptr ? sampling.top_k[request] : 0;
    return sampling_of(temperature, top_k, top_p, sampling.uniforms != nullptr);
}

template <class U>
TRTSPEC_HD U* row_of(U* matrix, int32_t row, int32_t columns) {
    return matrix == nullptr ? nullptr : matrix + static_cast<int64_t>(row) * columns;
}

/// The draft of one request.
template <class Args>
TRTSPEC_HD Chosen draft_of(const Args&, int32_t, Type<Chosen>) {
    return Chosen{};
}

template <class Args, class T>
TRTSPEC_HD FromLogits<T> draft_of(const Args& args, int32_t request, Type<FromLogits<T>>) {
    return FromLogits<T>(rows_of<T>(args.draft, request), args.draft_column);
}

template <class Args>
TRTSPEC_HD FromProbabilities draft_of(const Args& args, int32_t request, Type<FromProbabilities>) {
    return FromProbabilities(rows_of<float>(args.draft, request), args.draft_column);
}

template <class T>
TRTSPEC_HD ChainRequest<T> request_of(const trtspec_chain_args& args, int32_t index) {
    int32_t length = args.lengths != nullptr ? args.lengths[index] : args.draft_len;
    length = length > 0 ? length : 0;
    return ChainRequest<T>{
        rows_of<T>(args.target, index),
        row_of(args.tokens, index, args.draft_len),
        row_of(args.sampling.uniforms, index, args.draft_len + 1),
        length < args.draft_len ? length : args.draft_len,
        args.draft_len,
        sampling_of(args.sampling, index),
        args.accepted + index,
        row_of(args.output, index, args.draft_len + 1),
        args.next + index,
        args.status + index,
    };
}

template <class T>
TRTSPEC_HD TreeRequest<T> request_of(const trtspec_tree_args& args, int32_t index) {
    return TreeRequest<T>{
        rows_of<T>(args.target, index),
        row_of(args.tokens, index, args.nodes),
        row_of(args.parents, index, args.nodes),
        row_of(args.sampling.uniforms, index, args.nodes),
        args.nodes,
        args.limits != nullptr ? args.limits[index] : args.nodes,
        sampling_of(args.sampling, index),
        args.threshold,
        args.alpha,
        row_of(args.path, index, args.nodes),
        args.path_len + index,
        args.next + index,
        args.status + index,
    };
}

template <class Team, class T, class Draft>
TRTSPEC_HD void verify(Team& team, const trtspec_chain_args& args, int32_t index, Type<T>, Type<Draft> draft) {
    verify_chain(team, request_of<T>(args, index), draft_of(args, index, draft));
}

template <class Team, class T, class Draft>
TRTSPEC_HD void verify(Team& team, const BlockArgs& args, int32_t index, Type<T>, Type<Draft> draft) {
    verify_block(team, request_of<T>(args, index), draft_of(args, index, draft));
}

template <class Team, class T, class Draft>
TRTSPEC_HD void verify(Team& team, const trtspec_tree_args& args, int32_t index, Type<T>, Type<Draft> draft) {
    verify_tree(team, request_of<T>(args, index), args.mode, draft_of(args, index, draft));
}

}  // namespace trtspec
