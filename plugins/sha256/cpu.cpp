// SPDX-License-Identifier: Apache-2.0
#include "trtspec/sha256.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <utility>

#define TRTSPEC_TARGET __attribute__((target("sha,sse4.1")))

namespace {

/// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
alignas(16) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr int64_t kBlockBytes = 64;

/// A state in the layout of the instructions: words A, B, E, F and C, D, G, H.
struct State {
    __m128i abef, cdgh;
};

TRTSPEC_TARGET inline State load(const uint32_t* words) {
    const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)), 0xB1);
    const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words + 4)), 0x1B);
    return {_mm_alignr_epi8(badc, hgfe, 8), _mm_blend_epi16(hgfe, badc, 0xF0)};
}

TRTSPEC_TARGET inline void store(const State& state, uint32_t* words) {
    const __m128i feba = _mm_shuffle_epi32(state.abef, 0x1B), dchg = _mm_shuffle_epi32(state.cdgh, 0xB1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(words), _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(words + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/// Four rounds; `words` are the last sixteen of the message schedule; the four used ones are advanced by sixteen.
template <int Quad>
TRTSPEC_TARGET inline void round4(State& state, __m128i (&words)[4]) {
    __m128i& now = words[Quad % 4];
    const __m128i sum = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds + 4 * Quad)));
    state.cdgh = _mm_sha256rnds2_epu32(state.cdgh, state.abef, sum);
    state.abef = _mm_sha256rnds2_epu32(state.abef, state.cdgh, _mm_shuffle_epi32(sum, 0x0E));
    if (Quad < 12) {
        const __m128i next = words[(Quad + 1) % 4], third = words[(Quad + 2) % 4], last = words[(Quad + 3) % 4];
        const __m128i seventh = _mm_alignr_epi8(last, third, 4);
        now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, next), seventh), last);
    }
}

template <int Quad, int Streams>
TRTSPEC_TARGET inline void round4_of_all(State (&states)[Streams], __m128i (&words)[Streams][4]) {
    for (int stream = 0; stream < Streams; ++stream) {
        round4<Quad>(states[stream], words[stream]);
    }
}

template <int Streams, int... Quads>
TRTSPEC_TARGET inline void rounds(
    State (&states)[Streams], __m128i (&words)[Streams][4], std::integer_sequence<int, Quads...>) {
    (round4_of_all<Quads>(states, words), ...);
}

template <int Streams>
TRTSPEC_TARGET void hash(uint32_t* const* states, const uint8_t* const* data, int64_t blocks) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    State now[Streams];
    for (int stream = 0; stream < Streams; ++stream) {
        now[stream] = load(states[stream]);
    }
    for (int64_t block = 0; block < blocks; ++block) {
        State next[Streams];
        __m128i words[Streams][4];
        for (int stream = 0; stream < Streams; ++stream) {
            next[stream] = now[stream];
            const auto* from = reinterpret_cast<const __m128i*>(data[stream] + block * kBlockBytes);
            for (int quad = 0; quad < 4; ++quad) {
                words[stream][quad] = _mm_shuffle_epi8(_mm_loadu_si128(from + quad), big_endian);
            }
        }
        rounds(next, words, std::make_integer_sequence<int, 16>());
        for (int stream = 0; stream < Streams; ++stream) {
            now[stream].abef = _mm_add_epi32(now[stream].abef, next[stream].abef);
            now[stream].cdgh = _mm_add_epi32(now[stream].cdgh, next[stream].cdgh);
        }
    }
    for (int stream = 0; stream < Streams; ++stream) {
        store(now[stream], states[stream]);
    }
}

/// cpuid's leaf 7, EBX bit 29; GCC's __builtin_cpu_supports supports "sha" only since version 14.
bool has_instructions() {
    unsigned leaf = 7, ebx = 0, subleaf = 0, edx = 0;
    __asm__ volatile("cpuid" : "+a"(leaf), "=b"(ebx), "+c"(subleaf), "=d"(edx));
    return (ebx >> 29 & 1) != 0 && __builtin_cpu_supports("sse4.1");
}

}  // namespace

extern "C" int trtspec_sha256_blocks(
    uint32_t* const* states, const uint8_t* const* data, int64_t blocks, int32_t streams) {
    static const bool is_supported = has_instructions();
    if (!is_supported) {
        return TRTSPEC_UNSUPPORTED_CPU;
    }
    if (states == nullptr || data == nullptr) {
        return TRTSPEC_BAD_POINTER;
    }
    if (blocks < 0) {
        return TRTSPEC_BAD_SIZE;
    }
    switch (streams) {
        case 1:
            hash<1>(states, data, blocks);
            return TRTSPEC_OK;
        case 2:
            hash<2>(states, data, blocks);
            return TRTSPEC_OK;
        case 3:
            hash<3>(states, data, blocks);
            return TRTSPEC_OK;
        default:
            return TRTSPEC_BAD_SIZE;
    }
}

#else

extern "C" int trtspec_sha256_blocks(uint32_t* const*, const uint8_t* const*, int64_t, int32_t) {
    return TRTSPEC_UNSUPPORTED_CPU;
}

#endif
