// SPDX-License-Identifier: Apache-2.0
// The team of threads: one request is processed by a block, or by a cluster of blocks, in lock step.
//
// Every thread runs the core's functions. An operation over a row splits it into one contiguous slice per warp, the
// slices in order; each thread folds a part of the warp's slice, and all threads return the same value. All sums are
// of integers, so results do not depend on the split. A thread reads only vectors of 16 bytes that it copied itself, so
// rows in shared memory do not need a barrier.
//
// `Block` is the underlying machine, one object per thread (`CudaBlock`; the tests have one that runs on the host):
//   thread(), threads(), rank(), blocks()    the position: within the block, and of the block within the team
//   shuffle(value, lane), first_lane(flag)   within a warp of 32 threads; the first lane with the flag, or -1
//   memory(), rows()                         the block's TeamMemory, followed by the bytes of its RowSlots
//   barrier(), team_barrier()                for all threads of the block; of all blocks of the team
//   peer(pointer, rank)                      the address in another block's shared memory
//   load_global(from), load_shared(from)     16 aligned bytes
//   copy_async(to, from)                     16 aligned bytes from global into shared memory, at some time before
//   commit(), wait(newer)                    ends a group of copies; waits for all but the `newer` last groups
//   add(counter, value)                      into shared memory, atomically among the block's threads
#pragma once

#include <cstdint>
#include <cstring>

#include "common/row.h"

namespace trtspec {

constexpr int kWarp = 32;
constexpr int kMaxWarps = 16;
constexpr int kMaxBlocks = 8;
constexpr int kBins = 256;
constexpr int kMaxSlots = 4;
constexpr int kVectorBytes = 16;

/// 16 bytes of a row.
struct alignas(kVectorBytes) Vector {
    uint32_t words[4];
};

/// Memory shared by a block's threads, in addition to rows. Memory used by other blocks is doubled: an operation writes
/// one copy while the slowest thread still reads the other, so one barrier per operation is enough.
struct alignas(128) TeamMemory {
    uint64_t partials[2][kMaxBlocks * kMaxWarps];  // a value of each of the team's warps
    uint64_t bins[2][kBins];                       // this block's histogram
    uint64_t merged[kBins];                        // the team's
    int32_t found[2];
};

/// The space in shared memory for slices of rows; with `count` 0, rows are read from global memory.
struct RowSlots {
    int count;
    int slot_bytes;
};

/// The vectors per warp for a row with `entries` entries, for any alignment of the row: whole lines of 128 bytes.
TRTSPEC_HD inline int vectors_per_warp(int64_t entries, int entry_bytes, int warps) {
    const int64_t per_vector = kVectorBytes / entry_bytes;
    const int64_t vectors = (entries + 2 * (per_vector - 1)) / per_vector;
    const int64_t share = (vectors + warps - 1) / warps;
    return static_cast<int>((share + 7) / 8 * 8);
}

template <class Block>
class ThreadTeam {
public:
    /// `rows_at_once`: the rows read by a step of the walk; if twice as many fit, the rows of the next step are
    /// prefetched.
    TRTSPEC_HD ThreadTeam(Block& block, RowSlots slots, int rows_at_once)
        : block_(block), slots_(slots), rows_at_once_(rows_at_once) {
        lane_ = block.thread() % kWarp;
        warps_ = block.threads() / kWarp;
        warp_ = block.rank() * warps_ + block.thread() / kWarp;
        clear_bins(0);
        // also ensures that no block writes into another before that one runs
        block_.team_barrier();
    }

    TRTSPEC_HD bool leader() const { return block_.rank() == 0 && block_.thread() == 0; }

    TRTSPEC_HD void barrier() { block_.team_barrier(); }

    /// Hints that the row will be read several times.
    template <class T>
    TRTSPEC_HD void stage(Row<T> row) {
        if (slots_.count > 0 && slot_of(row.data) < 0) {
            fetch(row);
        }
    }

    /// Hints that the row will be staged next.
    template <class T>
    TRTSPEC_HD void prefetch(Row<T> row) {
        if (slots_.count >= 2 * rows_at_once_ && slot_of(row.data) < 0) {
            fetch(row);
        }
    }

    /// The largest key(logit) of the row, and the first id that has it.
    template <class T, class Key>
    TRTSPEC_HD TRTSPEC_DEVICE_CALL Largest largest(Row<T> row, const Key& key) {
        uint64_t mine = 0;
        visit(row, [&](int32_t id, float logit) { mine = Larger{}(mine, pack(key(logit), id)); });
        return unpack(fold_team(mine, Larger{}));
    }

    /// The sum of f(id, logit) over the row.
    template <class T, class F>
    TRTSPEC_HD uint64_t sum(Row<T> row, const F& f) {
        return fold_team(sum_of_mine(row, f), Plus{});
    }

    /// The first id at which the sum of f over the ids up to it is above `threshold`; -1 where there is none.
    template <class T, class F>
    TRTSPEC_HD TRTSPEC_DEVICE_CALL int32_t select(Row<T> row, const F& f, uint64_t threshold) {
        return select_by(exchange(fold_warp(sum_of_mine(row, f), Plus{})), row, f, threshold);
    }

    /// The first id at which the sum of f over the ids up to it is above the uniform's share of all; -1 where all is 0.
    template <class T, class F>
    TRTSPEC_HD TRTSPEC_DEVICE_CALL int32_t draw(Row<T> row, const F& f, uint32_t uniform) {
        const uint64_t* partials = exchange(fold_warp(sum_of_mine(row, f), Plus{}));
        return select_by(partials, row, f, share(uniform, fold_partials(partials, Plus{})));
    }

    /// Sorts the row's entries into bins by digit(id, logit), 0 to 255 or -1 for none, and returns the first bin, from
    /// 255 down, at which the sum of weight(id, logit) over the bins down to it is above `threshold`.
    template <class T, class Digit, class Weight>
    TRTSPEC_HD TRTSPEC_DEVICE_CALL Bin descend(Row<T> row, const Digit& digit, const Weight& weight, uint64_t threshold) {
        uint64_t* bins = block_.memory().bins[bins_parity_];
        bins_parity_ ^= 1;
        visit(row, [&](int32_t id, float logit) {
            const int bin = digit(id, logit);
            if (bin >= 0) {
                // descending bins are in ascending order here
                block_.add(&bins[kBins - 1 - bin], weight(id, logit));
            }
        });
        block_.team_barrier();
        clear_bins(bins_parity_);
        for (int bin = block_.thread(); bin < kBins; bin += block_.threads()) {
            uint64_t all = 0;
            for (int rank = 0; rank < block_.blocks(); ++rank) {
                all += block_.peer(bins, rank)[bin];
            }
            block_.memory().merged[bin] = all;
        }
        block_.barrier();
        uint64_t before = 0;
        const int bin = first_above(block_.memory().merged, kBins, threshold, before);
        return Bin{bin < 0 ? -1 : kBins - 1 - bin, before};
    }

private:
    TRTSPEC_HD void clear_bins(int parity) {
        for (int bin = block_.thread(); bin < kBins; bin += block_.threads()) {
            block_.memory().bins[parity][bin] = 0;
        }
    }

    /// A warp's vectors of a row, counted from the row's first byte rounded down to 16; `lead` entries of the first
    /// vector precede the row.
    struct Slice {
        int begin;
        int end;
        int lead;
    };

    struct Slot {
        const void* row = nullptr;
        int group = 0;  // of asynchronous copies
    };

    struct Plus {
        TRTSPEC_HD uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
    };

    struct Larger {
        TRTSPEC_HD uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
    };

    template <class T>
    static constexpr int kPerVector = kVectorBytes / static_cast<int>(sizeof(T));

    TRTSPEC_HD int team_warps() const { return warps_ * block_.blocks(); }

    template <class T>
    TRTSPEC_HD Slice slice_of(Row<T> row) const {
        const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(row.data) % kVectorBytes / sizeof(T));
        const int vectors = (lead + row.size + kPerVector<T> - 1) / kPerVector<T>;
        const int share = vectors_per_warp(row.size, sizeof(T), team_warps());
        const int begin = warp_ * share;
        return Slice{begin, begin + share < vectors ? begin + share : vectors, lead};
    }

    /// Which slot holds the row, or -1. (Unrolled, so that the slots stay in registers.)
    TRTSPEC_HD int slot_of(const void* row) const {
        int found = -1;
        TRTSPEC_UNROLL
        for (int i = 0; i < kMaxSlots; ++i) {
            if (i < slots_.count && held_[i].row == row) {
                found = i;
            }
        }
        return found;
    }

    /// The position of this warp's vectors in a slot.
    TRTSPEC_HD unsigned char* slot_bytes(int slot, int share) const {
        return block_.rows() + static_cast<int64_t>(slot) * slots_.slot_bytes + (warp_ % warps_) * share * kVectorBytes;
    }

    /// Starts copying this thread's vectors of the row into the least recently filled slot.
    template <class T>
    TRTSPEC_HD void fetch(Row<T> row) {
        const Slice slice = slice_of(row);
        unsigned char* to = slot_bytes(next_slot_, vectors_per_warp(row.size, sizeof(T), team_warps()));
        for (int vector = slice.begin + lane_; vector < slice.end; vector += kWarp) {
            unsigned char* place = to + (vector - slice.begin) * kVectorBytes;
            const int first = vector * kPerVector<T> - slice.lead;
            if (first >= 0 && first + kPerVector<T> <= row.size) {
                block_.copy_async(place, row.data + first);
            } else {
                *reinterpret_cast<Vector*>(place) = load_partly(row, first);
            }
        }
        block_.commit();
        ++groups_;
        hold(next_slot_, row.data);
        next_slot_ = next_slot_ + 1 == slots_.count ? 0 : next_slot_ + 1;
    }

    TRTSPEC_HD void hold(int slot, const void* row) {
        TRTSPEC_UNROLL
        for (int i = 0; i < kMaxSlots; ++i) {
            if (i == slot) {
                held_[i] = Slot{row, groups_};
            }
        }
    }

    TRTSPEC_HD void wait_for(int slot) {
        int group = 0;
        TRTSPEC_UNROLL
        for (int i = 0; i < kMaxSlots; ++i) {
            group = i == slot ? held_[i].group : group;
        }
        block_.wait(groups_ - group);
    }

    /// A vector at the row's edge: entries outside the row are zero and not read.
    template <class T>
    TRTSPEC_HD static Vector load_partly(Row<T> row, int first) {
        T entries[kPerVector<T>] = {};
        TRTSPEC_UNROLL
        for (int i = 0; i < kPerVector<T>; ++i) {
            if (first + i >= 0 && first + i < row.size) {
                entries[i] = row.data[first + i];
            }
        }
        Vector vector;
        memcpy(&vector, entries, sizeof(vector));
        return vector;
    }

    /// Calls f(id, logit) for the entries of one vector.
    template <class T, class F>
    TRTSPEC_HD static void each_entry(const Vector& vector, int first, int size, const F& f) {
        T entries[kPerVector<T>];
        memcpy(entries, &vector, sizeof(vector));
        TRTSPEC_UNROLL
        for (int i = 0; i < kPerVector<T>; ++i) {
            if (first + i >= 0 && first + i < size) {
                f(first + i, to_float(entries[i]));
            }
        }
    }

    /// One vector of the row, from this warp's part of a slot (`staged`) if there is one.
    template <class T>
    TRTSPEC_HD Vector load(Row<T> row, const unsigned char* staged, const Slice& slice, int vector) const {
        const int first = vector * kPerVector<T> - slice.lead;
        if (staged != nullptr) {
            return block_.load_shared(staged + (vector - slice.begin) * kVectorBytes);
        }
        const bool whole = first >= 0 && first + kPerVector<T> <= row.size;
        return whole ? block_.load_global(row.data + first) : load_partly(row, first);
    }

    /// This warp's part of the slot with the row, after its copy is complete; null without one.
    template <class T>
    TRTSPEC_HD const unsigned char* staged(Row<T> row) {
        const int slot = slot_of(row.data);
        if (slot < 0) {
            return nullptr;
        }
        wait_for(slot);
        return slot_bytes(slot, vectors_per_warp(row.size, sizeof(T), team_warps()));
    }

    /// Calls f(id, logit) for this thread's part of the row.
    template <class T, class F>
    TRTSPEC_HD void visit(Row<T> row, const F& f) {
        const Slice slice = slice_of(row);
        const unsigned char* copied = staged(row);
        for (int vector = slice.begin + lane_; vector < slice.end; vector += kWarp) {
            each_entry<T>(load(row, copied, slice, vector), vector * kPerVector<T> - slice.lead, row.size, f);
        }
    }

    template <class T, class F>
    TRTSPEC_HD TRTSPEC_DEVICE_CALL uint64_t sum_of_mine(Row<T> row, const F& f) {
        uint64_t mine = 0;
        visit(row, [&](int32_t id, float logit) { mine += f(id, logit); });
        return mine;
    }

    /// Folds the lanes' values; every lane returns the same.
    template <class Fold>
    TRTSPEC_HD uint64_t fold_warp(uint64_t value, Fold fold) const {
        for (int distance = kWarp / 2; distance > 0; distance /= 2) {
            value = fold(value, block_.shuffle(value, lane_ ^ distance));
        }
        return value;
    }

    /// The sum over this lane and those before it.
    TRTSPEC_HD uint64_t sum_up_to(uint64_t value) const {
        for (int distance = 1; distance < kWarp; distance *= 2) {
            const uint64_t other = block_.shuffle(value, lane_ < distance ? lane_ : lane_ - distance);
            value += lane_ < distance ? 0 : other;
        }
        return value;
    }

    /// Sends this warp's value to every block, and returns the values of all the team's warps, in order.
    TRTSPEC_HD const uint64_t* exchange(uint64_t value) {
        parity_ ^= 1;
        uint64_t* partials = block_.memory().partials[parity_];
        if (lane_ < block_.blocks()) {
            block_.peer(partials, lane_)[warp_] = value;
        }
        block_.team_barrier();
        return partials;
    }

    template <class Fold>
    TRTSPEC_HD uint64_t fold_team(uint64_t mine, Fold fold) {
        return fold_partials(exchange(fold_warp(mine, fold)), fold);
    }

    template <class Fold>
    TRTSPEC_HD uint64_t fold_partials(const uint64_t* partials, Fold fold) {
        uint64_t all = 0;
        for (int i = lane_; i < team_warps(); i += kWarp) {
            all = fold(all, partials[i]);
        }
        return fold_warp(all, fold);
    }

    /// The first of `count` values with a cumulative sum above `threshold`, or -1; `before` is the sum up to it.
    /// Computed by all lanes of the warp, which return the same value.
    TRTSPEC_HD int first_above(const uint64_t* values, int count, uint64_t threshold, uint64_t& before) const {
        before = 0;
        for (int base = 0; base < count; base += kWarp) {
            const uint64_t value = base + lane_ < count ? values[base + lane_] : 0;
            const uint64_t sum = before + sum_up_to(value);
            const int lane = block_.first_lane(sum > threshold);
            if (lane >= 0) {
                before = block_.shuffle(sum - value, lane);
                return base + lane;
            }
            before = block_.shuffle(sum, kWarp - 1);
        }
        return -1;
    }

    /// One entry of a vector, selected without access to memory.
    template <class T>
    TRTSPEC_HD static T entry_of(const Vector& vector, int index) {
        const int word = index * static_cast<int>(sizeof(T)) / 4;
        const uint32_t low = (word & 1) != 0 ? vector.words[1] : vector.words[0];
        const uint32_t high = (word & 1) != 0 ? vector.words[3] : vector.words[2];
        const uint32_t bits = (word & 2) != 0 ? high : low;
        if constexpr (sizeof(T) == 4) {
            return bit_cast<T>(bits);
        } else {
            return bit_cast<T>(static_cast<uint16_t>(bits >> (index % 2 * 16)));
        }
    }

    /// `sum` and f over a vector's entries; `selected` becomes the first id at which that is above `threshold`.
    /// Not unrolled: the code of f is long, and this is used for few vectors.
    template <class T, class F>
    TRTSPEC_HD TRTSPEC_DEVICE_CALL static uint64_t add_up(Row<T> row, const F& f, Vector vector, int first, uint64_t sum,
                                                          uint64_t threshold, int32_t& selected) {
        selected = -1;
        TRTSPEC_NO_UNROLL
        for (int i = 0; i < kPerVector<T>; ++i) {
            const int32_t id = first + i;
            if (id >= 0 && id < row.size) {
                sum += f(id, to_float(entry_of<T>(vector, i)));
                selected = selected < 0 && sum > threshold ? id : selected;
            }
        }
        return sum;
    }

    /// `select`, given the sum of f in each warp's slice.
    template <class T, class F>
    TRTSPEC_HD int32_t select_by(const uint64_t* partials, Row<T> row, const F& f, uint64_t threshold) {
        uint64_t before = 0;
        const int owner = first_above(partials, team_warps(), threshold, before);
        if (owner < 0) {
            return -1;
        }
        int32_t* found = &block_.memory().found[parity_];
        if (warp_ == owner) {
            const int32_t id = select_in_slice(row, f, threshold, before);
            if (lane_ < block_.blocks()) {
                *block_.peer(found, lane_) = id;
            }
        }
        block_.team_barrier();
        return *found;
    }

    /// `select` within this warp's slice, which is known to contain the id; `before` is the sum before the slice.
    template <class T, class F>
    TRTSPEC_HD int32_t select_in_slice(Row<T> row, const F& f, uint64_t threshold, uint64_t before) {
        const Slice slice = slice_of(row);
        const unsigned char* copied = staged(row);
        for (int base = slice.begin; base < slice.end; base += kWarp) {
            const int vector = base + lane_;
            const int first = vector * kPerVector<T> - slice.lead;
            const Vector entries = vector < slice.end ? load(row, copied, slice, vector) : Vector{};
            int32_t selected = -1;
            const uint64_t mine = add_up(row, f, entries, first, 0, ~uint64_t{0}, selected);
            const uint64_t sum = before + sum_up_to(mine);
            const int owner = block_.first_lane(sum > threshold);
            if (owner >= 0) {
                add_up(row, f, entries, first, sum - mine, threshold, selected);
                return block_.shuffle(selected, owner);
            }
            before = block_.shuffle(sum, kWarp - 1);
        }
        return -1;
    }

    Block& block_;
    RowSlots slots_;
    int rows_at_once_;
    int lane_;
    int warps_;  // of one block
    int warp_;   // within the team
    int parity_ = 0;
    int bins_parity_ = 0;
    Slot held_[kMaxSlots];
    int next_slot_ = 0;
    int groups_ = 0;
};

}  // namespace trtspec
