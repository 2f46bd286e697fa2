// SPDX-License-Identifier: Apache-2.0
// The team of a host: one request is processed by one thread, or by several that divide rows into blocks. Loops over a
// block are written for vectorization; block sums are integers, so the division does not affect the results.
#pragma once

#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "common/row.h"

namespace trtspec {

template <class T>
inline void convert(const T* from, int32_t count, float* to) {
    for (int32_t j = 0; j < count; ++j) {
        to[j] = to_float(from[j]);
    }
}

#if defined(__F16C__)
/// With the hardware instruction, which is equal to `to_float` for every half.
inline void convert(const Half* from, int32_t count, float* to) {
    int32_t j = 0;
    for (; j + 8 <= count; j += 8) {
        _mm256_storeu_ps(to + j, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + j))));
    }
    convert<Half>(from + j, count - j, to + j);
}
#endif

class HostTeam {
public:
    explicit HostTeam(int threads) : threads_(threads) {}

    bool leader() const { return true; }
    void barrier() const {}

    template <class T>
    void stage(Row<T>) const {}
    template <class T>
    void prefetch(Row<T>) const {}

    /// The largest key(entry) of the row, and the first id that has it; keys alone use vectors better than pairs.
    template <class T, class Key>
    Largest largest(Row<T> row, Key key) const {
        uint64_t found = 0;
        const int32_t blocks = blocks_of(row);
#pragma omp parallel for num_threads(threads_) if (threads_ > 1) reduction(max : found)
        for (int32_t i = 0; i < blocks; ++i) {
            const uint64_t mine = pack(largest_in(Block(row, i), key), i);
            found = mine > found ? mine : found;
        }
        const Largest block = unpack(found);
        return Largest{block.key, first_within(Block(row, block.id), key, block.key)};
    }

    /// The sum of f(id, entry) over the row.
    template <class T, class F>
    uint64_t sum(Row<T> row, F f) const {
        uint64_t sum = 0;
        const int32_t blocks = blocks_of(row);
#pragma omp parallel for num_threads(threads_) if (threads_ > 1) reduction(+ : sum)
        for (int32_t i = 0; i < blocks; ++i) {
            sum += sum_of(Block(row, i), f);
        }
        return sum;
    }

    /// The first id at which the sum of f over the ids up to it is above `threshold`; -1 where there is none.
    template <class T, class F>
    int32_t select(Row<T> row, F f, uint64_t threshold) const {
        const int32_t blocks = blocks_of(row);
        for (int32_t begin = 0; begin < blocks; begin += kBlocksAhead) {
            uint64_t sums[kBlocksAhead];
            const int32_t count = blocks - begin < kBlocksAhead ? blocks - begin : kBlocksAhead;
#pragma omp parallel for num_threads(threads_) if (threads_ > 1)
            for (int32_t i = 0; i < count; ++i) {
                sums[i] = sum_of(Block(row, begin + i), f);
            }
            for (int32_t i = 0; i < count; ++i) {
                if (sums[i] > threshold) {
                    return select_within(Block(row, begin + i), f, threshold);
                }
                threshold -= sums[i];
            }
        }
        return -1;
    }

    /// The first id at which the sum of f over the ids up to it is above the uniform's share of all; -1 where all is 0.
    template <class T, class F>
    int32_t draw(Row<T> row, F f, uint32_t uniform) const {
        uint64_t sums[kMostBlocks];
        uint64_t sum = 0;
        const int32_t blocks = blocks_of(row);
#pragma omp parallel for num_threads(threads_) if (threads_ > 1) reduction(+ : sum)
        for (int32_t i = 0; i < blocks; ++i) {
            sums[i] = sum_of(Block(row, i), f);
            sum += sums[i];
        }
        uint64_t threshold = share(uniform, sum);
        int32_t i = 0;
        while (i < blocks && sums[i] <= threshold) {
            threshold -= sums[i++];
        }
        return i < blocks ? select_within(Block(row, i), f, threshold) : -1;
    }

    /// Sorts the row's entries into bins by digit(id, entry), 0 to 255 or -1 for none, and returns the first bin, from
    /// 255 down, at which the sum of weight(id, entry) over the bins down to it is above `threshold`.
    template <class T, class Digit, class Weight>
    Bin descend(Row<T> row, Digit digit, Weight weight, uint64_t threshold) const {
        uint64_t bins[kLanes * kBins] = {};
        const int32_t blocks = blocks_of(row);
#pragma omp parallel for num_threads(threads_) if (threads_ > 1) reduction(+ : bins)
        for (int32_t i = 0; i < blocks; ++i) {
            add_up(Block(row, i), digit, weight, bins);
        }
        uint64_t before = 0;
        for (int bin = kBins - 1; bin >= 0; --bin) {
            uint64_t sum = 0;
            for (int lane = 0; lane < kLanes; ++lane) {
                sum += bins[lane * kBins + bin];
            }
            if (before + sum > threshold) {
                return Bin{bin, before};
            }
            before += sum;
        }
        return Bin{-1, before};
    }

private:
    static constexpr int kBins = 256;
    static constexpr int kLanes = 4;  // of bins: neighbours often have the same bin, and lanes avoid the dependency
    static constexpr int32_t kBlockEntries = 1024;
    static constexpr int32_t kBlocksAhead = 16;
    static constexpr int32_t kMostBlocks = kVocabLimit / kBlockEntries;

    /// A part of a row, as floats.
    struct Block {
        int32_t first;
        int32_t size;
        const float* entries;
        float converted[kBlockEntries];

        template <class T>
        Block(Row<T> row, int32_t index) : Block(row.size, index) {
            convert(row.data + first, size, converted);
            entries = converted;
        }

        Block(Row<float> row, int32_t index) : Block(row.size, index) { entries = row.data + first; }

        Block(const Block&) = delete;
        Block& operator=(const Block&) = delete;

    private:
        Block(int32_t row_size, int32_t index)
            : first(index * kBlockEntries),
              size(row_size - first < kBlockEntries ? row_size - first : kBlockEntries) {}
    };

    template <class T>
    static int32_t blocks_of(Row<T> row) {
        return (row.size + kBlockEntries - 1) / kBlockEntries;
    }

    template <class Key>
    static uint32_t largest_in(const Block& block, Key key) {
        uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
        for (int32_t j = 0; j < block.size; ++j) {
            const uint32_t value = key(block.entries[j]);
            largest = value > largest ? value : largest;
        }
        return largest;
    }

    template <class Key>
    static int32_t first_within(const Block& block, Key key, uint32_t wanted) {
        int32_t j = 0;
        while (key(block.entries[j]) != wanted) {
            ++j;
        }
        return block.first + j;
    }

    template <class F>
    static uint64_t sum_of(const Block& block, F f) {
        uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int32_t j = 0; j < block.size; ++j) {
            sum += f(block.first + j, block.entries[j]);
        }
        return sum;
    }

    template <class F>
    static int32_t select_within(const Block& block, F f, uint64_t threshold) {
        int32_t j = 0;
        for (uint64_t sum = 0; (sum += f(block.first + j, block.entries[j])) <= threshold;) {
            ++j;
        }
        return block.first + j;
    }

    template <class Digit, class Weight>
    static void add_up(const Block& block, Digit digit, Weight weight, uint64_t* bins) {
        int32_t digits[kBlockEntries];
        int32_t sorted = 0;
#pragma omp simd reduction(+ : sorted)
        for (int32_t j = 0; j < block.size; ++j) {
            digits[j] = digit(block.first + j, block.entries[j]);
            sorted += digits[j] >= 0;
        }
        uint64_t weights[kBlockEntries];
        // for few entries it is faster not to compute all weights
        const bool all = sorted > block.size / 8;
#pragma omp simd
        for (int32_t j = 0; j < (all ? block.size : 0); ++j) {
            weights[j] = weight(block.first + j, block.entries[j]);
        }
        for (int32_t j = 0; j < (sorted > 0 ? block.size : 0); ++j) {
            if (digits[j] >= 0) {
                bins[j % kLanes * kBins + digits[j]] += all ? weights[j] : weight(block.first + j, block.entries[j]);
            }
        }
    }

    int threads_;
};

}  // namespace trtspec
