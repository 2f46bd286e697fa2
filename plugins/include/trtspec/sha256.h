/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of several streams of bytes in parallel; see plugins/sha256/README.md.
 *
 * One call is the work of one thread on its caller's memory: nothing is allocated or kept. With a return value other
 * than TRTSPEC_OK (verify.h) no state was changed.
 */
#ifndef TRTSPEC_SHA256_H
#define TRTSPEC_SHA256_H

#include <stdint.h>

#include "trtspec/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

/* More streams are not faster. */
enum { TRTSPEC_SHA256_MOST_STREAMS = 3 };

/*
 * Hash the next `blocks` blocks of 64 bytes of each of `streams` streams. `states` [streams] are the eight words of the
 * streams' states, in the order of FIPS 180-4; `data` [streams] may be unaligned. The caller adds the padding.
 * Returns TRTSPEC_UNSUPPORTED_CPU if this machine lacks the SHA-256 instructions.
 */
TRTSPEC_API int trtspec_sha256_blocks(
    uint32_t* const* states, const uint8_t* const* data, int64_t blocks, int32_t streams);

#ifdef __cplusplus
}
#endif
#endif
