/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of a matrix of weights to another format. plugins/quantize/README.md specifies the results.
 *
 * One call is the work of one thread on its caller's memory: nothing is allocated or kept. Rows are `*_stride` bytes
 * apart, values of a row are contiguous; both may be unaligned. With a return value other than TRTSPEC_OK (verify.h)
 * nothing was written.
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

/* The instruction set; the results do not depend on it. */
enum trtspec_instructions {
    TRTSPEC_FASTEST = 0,  /* the best one of this machine */
    TRTSPEC_PORTABLE = 1, /* the one of the whole library: AVX2 on x86 */
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
    int32_t target_dtype; /* for casts; quantized rows are TRTSPEC_FLOAT8_E4M3 */
    int32_t reserved;
    int64_t rows;
    int64_t columns;
    const void* source;
    int64_t source_stride;
    void* target;
    int64_t target_stride;
    float* scales; /* for casts: one, or null; for quantized rows: [rows] */
    trtspec_census* census;
} trtspec_quantize_args;

TRTSPEC_API int trtspec_quantize_cpu(const trtspec_quantize_args* args);

/* The fastest trtspec_instructions here; TRTSPEC_UNSUPPORTED_CPU if this machine cannot run the library. */
TRTSPEC_API int trtspec_quantize_instructions(void);

#ifdef __cplusplus
}
#endif
#endif
