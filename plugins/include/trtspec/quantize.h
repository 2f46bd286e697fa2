/* SPDX-License-Identifier: Apache-2.0
 *
 * A matrix of weights in another format: what a checkpoint's conversion does to each of its values. plugins/quantize/README.md
 * says what is computed.
 *
 * One call is one thread's work on memory of its caller: nothing is allocated or kept. Rows lie `*_stride` bytes apart,
 * values of a row next to each other; neither has to be aligned. A return value other than TRTSPEC_OK (verify.h) is of
 * the call, and nothing was written.
 */
#ifndef TRTSPEC_QUANTIZE_H
#define TRTSPEC_QUANTIZE_H

#include <stdint.h>

#include "trtspec/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The formats: those of trtspec_dtype, and float8_e4m3fn. */
enum { TRTSPEC_FLOAT8_E4M3 = 4 };

enum trtspec_quantize_operation {
    TRTSPEC_COUNT = 0,        /* the source into `census` */
    TRTSPEC_CAST = 1,         /* the source, divided by `scales[0]` unless that is null, into the target */
    TRTSPEC_QUANTIZE_ROWS = 2 /* each row's scale into `scales`, the row divided by it into the target; and `census` */
};

/* By what it is computed; the results are the same. */
enum trtspec_instructions {
    TRTSPEC_FASTEST = 0,  /* the best that this machine has */
    TRTSPEC_PORTABLE = 1, /* what the whole library was compiled for: AVX2 on x86 */
    TRTSPEC_AVX512 = 2
};

typedef struct trtspec_census {
    int64_t nans;
    int64_t infinities;
    uint32_t largest; /* the pattern of the largest finite magnitude */
    uint32_t reserved;
} trtspec_census;

typedef struct trtspec_quantize_args {
    uint32_t struct_size;
    int32_t operation;    /* trtspec_quantize_operation */
    int32_t instructions; /* trtspec_instructions */
    int32_t source_dtype;
    int32_t target_dtype; /* of a cast; quantized rows are TRTSPEC_FLOAT8_E4M3 */
    int32_t reserved;
    int64_t rows;
    int64_t columns;
    const void* source;
    int64_t source_stride;
    void* target;
    int64_t target_stride;
    float* scales; /* of a cast: one, or null; of quantized rows: [rows] */
    trtspec_census* census;
} trtspec_quantize_args;

TRTSPEC_API int trtspec_quantize_cpu(const trtspec_quantize_args* args);

/* Which of trtspec_instructions the fastest are here; TRTSPEC_UNSUPPORTED_CPU where this machine lacks the library's. */
TRTSPEC_API int trtspec_quantize_instructions(void);

#ifdef __cplusplus
}
#endif
#endif
