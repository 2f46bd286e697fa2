/* SPDX-License-Identifier: Apache-2.0
 *
 * Verification of drafted tokens: from logits to accepted tokens, with the same ids on every machine. plugins/README.md
 * specifies the results; this header is the interface.
 *
 * Every function takes one struct of plain fields. `struct_size` is sizeof the struct in the caller's version: fields
 * are only ever added at its end. Pointers refer to the device for *_cuda and to the host for *_cpu; those marked "or
 * null" are optional. Nothing is allocated or kept between calls, and rows do not depend on each other. With a return
 * value other than TRTSPEC_OK nothing was written; errors of a single request are reported in its `status`.
 */
#ifndef TRTSPEC_VERIFY_H
#define TRTSPEC_VERIFY_H

#include <stdint.h>

#if defined(__GNUC__)
#define TRTSPEC_API __attribute__((visibility("default")))
#else
#define TRTSPEC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TRTSPEC_ABI_VERSION 1

/* Return values. */
enum {
    TRTSPEC_OK = 0,
    TRTSPEC_BAD_STRUCT_SIZE = -1, /* smaller than this library's struct */
    TRTSPEC_BAD_SIZE = -2,        /* a count or stride is out of range */
    TRTSPEC_BAD_DTYPE = -3,       /* not a trtspec_dtype, or not the one required for the draft */
    TRTSPEC_BAD_KIND = -4,        /* draft_kind or mode is unknown, or the mode requires a missing draft */
    TRTSPEC_BAD_POINTER = -5,     /* null but required, or not aligned to its elements */
    TRTSPEC_BAD_WORKSPACE = -6,   /* smaller than the result of the size function */
    TRTSPEC_NO_DEVICE_CODE = -7,  /* the library has none for this GPU, or was built without CUDA */
    TRTSPEC_LAUNCH_FAILED = -8,   /* CUDA refused the launch */
    TRTSPEC_UNSUPPORTED_CPU = -9  /* the library was compiled for a newer instruction set than this CPU has */
};

/* The bits of a request's status; 0 without errors. */
enum {
    TRTSPEC_NONFINITE = 1,      /* NaN or +inf in a target row: the walk ends there, next is its largest finite */
    TRTSPEC_EMPTY = 2,          /* a target row without a finite logit: next is -1 */
    TRTSPEC_BAD_DRAFT = 4,      /* a drafted id outside the vocabulary: rejected */
    TRTSPEC_DRAFT_NONFINITE = 8 /* a draft row that is not a distribution: rejected, next from the target's row */
};

enum trtspec_dtype { TRTSPEC_NONE = 0, TRTSPEC_FLOAT32 = 1, TRTSPEC_FLOAT16 = 2, TRTSPEC_BFLOAT16 = 3 };

enum trtspec_draft_kind {
    TRTSPEC_DRAFT_CHOSEN = 0,       /* tokens are deterministic (ranked, looked up), without distributions */
    TRTSPEC_DRAFT_LOGITS = 1,       /* with the target's sampling parameters and dtype */
    TRTSPEC_DRAFT_PROBABILITIES = 2 /* used unchanged, float32 */
};

enum trtspec_tree_mode {
    TRTSPEC_TREE_POINT_MASS = 0, /* children are deterministic */
    TRTSPEC_TREE_RECURSIVE = 1,  /* children were sampled without replacement from their parent's draft row */
    TRTSPEC_TREE_TYPICAL = 2     /* lossy: accepts tokens that are probable enough */
};

/* Logits or probabilities [batch, rows, entries], entries contiguous; strides count elements and may be 0, to use one
 * row or request for all. */
typedef struct trtspec_rows {
    const void* data;
    int64_t request_stride;
    int64_t row_stride;
    int32_t dtype; /* trtspec_dtype */
    int32_t entries;
} trtspec_rows;

/* The sampling parameters of each request of a batch; null arrays are the same for all. */
typedef struct trtspec_sampling {
    const float* temperature; /* [batch] or null (1); 0 is greedy */
    const float* top_p;       /* [batch] or null (1: all) */
    const int32_t* top_k;     /* [batch] or null (0: all) */
    const uint32_t* uniforms; /* [batch, draft_len + 1] for a chain, [batch, nodes] for a tree; null: all are greedy */
} trtspec_sampling;

typedef struct trtspec_chain_args {
    uint32_t struct_size;
    int32_t batch;
    int32_t draft_len;
    int32_t draft_kind;           /* trtspec_draft_kind */
    trtspec_rows target;          /* [batch, draft_len + 1, vocab] logits */
    trtspec_rows draft;           /* [batch, draft_len, draft vocab], unless draft_kind is TRTSPEC_DRAFT_CHOSEN */
    const int32_t* draft_column;  /* [vocab] or null: the draft's column of each target id, -1 for none */
    const int32_t* tokens;        /* [batch, draft_len], target ids */
    const int32_t* lengths;       /* [batch] or null (draft_len) */
    trtspec_sampling sampling;
    int32_t* accepted;            /* out: [batch] */
    int32_t* output;              /* out: [batch, draft_len + 1] accepted tokens, the next one, then -1; or null */
    int32_t* next;                /* out: [batch] */
    int32_t* status;              /* out: [batch] */
    void* workspace;              /* of the size trtspec_verify_chain_workspace; null if that is 0 */
    uint64_t workspace_bytes;
} trtspec_chain_args;

typedef struct trtspec_tree_args {
    uint32_t struct_size;
    int32_t batch;
    int32_t nodes;                /* including the root, which is node 0 */
    int32_t mode;                 /* trtspec_tree_mode */
    int32_t draft_kind;           /* for the recursive mode; others ignore the draft */
    float threshold;              /* for the typical mode, like alpha */
    float alpha;
    int32_t reserved;             /* 0 */
    trtspec_rows target;          /* [batch, nodes, vocab] logits after each node */
    trtspec_rows draft;           /* [batch, nodes, draft vocab]: the distribution of each node's children */
    const int32_t* draft_column;  /* as in a chain */
    const int32_t* tokens;        /* [batch, nodes]; the root's is ignored */
    const int32_t* parents;       /* [batch, nodes]: a preceding node, or -1 for the root and unused nodes */
    const int32_t* limits;        /* [batch] or null: the maximum number of accepted tokens */
    trtspec_sampling sampling;
    int32_t* path;                /* out: [batch, nodes] the accepted nodes from the root down, then -1 */
    int32_t* path_len;            /* out: [batch] */
    int32_t* next;                /* out: [batch] */
    int32_t* status;              /* out: [batch] */
    void* workspace;
    uint64_t workspace_bytes;
} trtspec_tree_args;

/* Moves the cache entries of accepted nodes together: in each row, slot start + path[i] moves to slot start + 1 + i.
 * Paths go down a tree, so path[i] > i, and no slot is overwritten before it is read. A slot's vector is at
 *   cache + x * plane_strides[0] + y * plane_strides[1] + z * plane_strides[2]      0 <= x < planes[0] ...
 *   + row * row_stride + slot * token_stride                                        without block_table
 *   + block_table[row * table_stride + slot / block_tokens] * block_stride
 *   + slot % block_tokens * token_stride                                            with one
 * The planes are all other dimensions of the cache: keys and values, layers, heads. Strides are in bytes. */
typedef struct trtspec_compact_args {
    uint32_t struct_size;
    int32_t batch;
    void* cache;
    int32_t planes[3];
    int32_t vector_bytes;         /* of one slot in one plane */
    int64_t plane_strides[3];
    int64_t row_stride;
    int64_t token_stride;
    const int32_t* block_table;   /* [batch, table_stride] or null */
    int64_t table_stride;
    int64_t block_stride;
    int32_t block_tokens;
    int32_t path_stride;          /* of `path`, its nodes */
    const int32_t* path;          /* [batch, path_stride], as verify_tree writes it */
    const int32_t* path_len;      /* [batch] */
    const int32_t* start;         /* [batch]: the slot of the root */
} trtspec_compact_args;

TRTSPEC_API int trtspec_abi_version(void);

/* The message of a return value; never null. */
TRTSPEC_API const char* trtspec_error(int code);

/* verify_block takes the arguments of verify_chain, and accepts a chain as a whole.
 * `threads` 0: all threads of the machine. The result does not depend on their number. A library compiled without
 * OpenMP, such as the one in the Python wheel, uses one. */
TRTSPEC_API int trtspec_verify_chain_cpu(const trtspec_chain_args* args, int threads);
TRTSPEC_API int trtspec_verify_block_cpu(const trtspec_chain_args* args, int threads);
TRTSPEC_API int trtspec_verify_tree_cpu(const trtspec_tree_args* args, int threads);
TRTSPEC_API int trtspec_compact_kv_cpu(const trtspec_compact_args* args, int threads);

/* `stream` is a cudaStream_t of the current device; the call returns when the work is enqueued. In a library that was
 * built without CUDA these functions return TRTSPEC_NO_DEVICE_CODE. */
TRTSPEC_API int trtspec_verify_chain_cuda(const trtspec_chain_args* args, void* stream);
TRTSPEC_API int trtspec_verify_block_cuda(const trtspec_chain_args* args, void* stream);
TRTSPEC_API int trtspec_verify_tree_cuda(const trtspec_tree_args* args, void* stream);
TRTSPEC_API int trtspec_compact_kv_cuda(const trtspec_compact_args* args, void* stream);

/* Bytes of `workspace` that the *_cuda functions need on the current device; the *_cpu functions need none. */
TRTSPEC_API uint64_t trtspec_verify_chain_workspace(const trtspec_chain_args* args);
TRTSPEC_API uint64_t trtspec_verify_block_workspace(const trtspec_chain_args* args);
TRTSPEC_API uint64_t trtspec_verify_tree_workspace(const trtspec_tree_args* args);

#ifdef __cplusplus
}
#endif

#endif
