/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of several streams of bytes at once. plugins/sha256/README.md says why.
 *
 * One call is one thread's work on memory of its caller: nothing is allocated or kept. A return value other than
 * TRTSPEC_OK (verify.h) is of the call, and no state was changed.
 */
#ifndef TRTSPEC_SHA256_H
#define TRTSPEC_SHA256_H

#include <stdint.h>

#include "trtspec/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

/* More at once are not faster. */
enum { TRTSPEC_SHA256_MOST_STREAMS = 3 };

/*
 * Take the next `blocks` blocks of 64 bytes of each of `streams` streams. `states` [streams] are the eight words of each
 * stream's state, in the order of FIPS 180-4; `data` [streams] need not be aligned. Padding is the caller's.
 * TRTSPEC_UNSUPPORTED_CPU where this machine has no instructions for SHA-256 that are used here.
 */
TRTSPEC_API int trtspec_sha256_blocks(
    uint32_t* const* states, const uint8_t* const* data, int64_t blocks, int32_t streams);

#ifdef __cplusplus
}
#endif
#endif
