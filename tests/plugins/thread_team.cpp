// SPDX-License-Identifier: Apache-2.0
// The operations of `ThreadTeam` on an emulated machine, compared with plain loops.

#include "common/thread_team.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "emulated_block.h"

namespace {

using emulation::EmulatedBlock;
using emulation::Machine;
using trtspec::Bin;
using trtspec::Largest;
using trtspec::Row;
using trtspec::ThreadTeam;

/// Memory that ends, or begins, at an inaccessible page.
class Fenced {
public:
    Fenced(size_t bytes, bool at_end) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t room = (bytes + page - 1) / page * page;
        mapped_ = room + 2 * page;
        base_ = static_cast<unsigned char*>(mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(base_ + page, room, PROT_READ | PROT_WRITE);
        data_ = base_ + page + (at_end ? room - bytes : 0);
    }

    Fenced(const Fenced&) = delete;
    Fenced& operator=(const Fenced&) = delete;

    ~Fenced() { munmap(base_, mapped_); }

    unsigned char* data() { return data_; }

private:
    unsigned char* base_;
    unsigned char* data_;
    size_t mapped_;
};

template <class T>
T entry_of_integer(uint32_t value);

template <>
float entry_of_integer<float>(uint32_t value) {
    return static_cast<float>(value);
}

/// The upper half of a float's bits: exact below 256.
template <>
trtspec::Bfloat16 entry_of_integer<trtspec::Bfloat16>(uint32_t value) {
    const float number = static_cast<float>(value);
    return trtspec::Bfloat16{static_cast<uint16_t>(trtspec::bit_cast<uint32_t>(number) >> 16)};
}

/// A weight that distinguishes ids and values, and is often zero.
uint64_t weight(int32_t id, float logit) {
    return id % 5 == 0 ? 0 : static_cast<uint64_t>(logit * 64.0f) * 0x100000001ull + static_cast<uint64_t>(id);
}

/// Often equal, so that the id decides.
uint32_t key(float logit) { return static_cast<uint32_t>(logit) / 4; }

int digit(int32_t id, float logit) { return id % 7 == 0 ? -1 : static_cast<int>(logit); }

uint64_t nothing(int32_t, float) { return 0; }
uint64_t one(int32_t, float) { return 1; }

constexpr uint32_t kUniforms[] = {0, 0x40000000u, 0xffffffffu};

/// The results of the operations for a row.
struct Answers {
    uint64_t largest;  // with its id, as the team packs them
    uint64_t sum;
    std::vector<int32_t> drawn;
    std::vector<int32_t> selected;
    std::vector<Bin> bins;

    bool operator==(const Answers& other) const {
        const auto same = [](const Bin& a, const Bin& b) { return a.index == b.index && a.before == b.before; };
        return largest == other.largest && sum == other.sum && drawn == other.drawn && selected == other.selected &&
               bins.size() == other.bins.size() &&
               std::equal(bins.begin(), bins.end(), other.bins.begin(), same);
    }
};

/// Rows begin with different values, so that leftovers of the previous row are not the correct result.
uint64_t threshold_of(const std::vector<uint64_t>& thresholds, size_t row, size_t turn) {
    return thresholds[(row + turn) % thresholds.size()];
}

template <class T>
Answers plainly(const std::vector<Row<T>>& rows, const std::vector<uint64_t>& thresholds) {
    Answers answers{};
    for (size_t i = 0; i < rows.size(); ++i) {
        const Row<T> row = rows[i];
        std::vector<uint64_t> bins(trtspec::kBins);
        uint64_t sum = 0;
        std::vector<uint64_t> sums;
        for (int id = 0; id < row.size; ++id) {
            const float logit = trtspec::to_float(row.data[id]);
            const uint64_t packed = trtspec::pack(key(logit), id);
            answers.largest = std::max(answers.largest, packed);
            sums.push_back(sum += weight(id, logit));
            if (digit(id, logit) >= 0) {
                bins[digit(id, logit)] += weight(id, logit);
            }
        }
        answers.sum += sum;
        for (const uint32_t uniform : kUniforms) {
            const auto above = std::upper_bound(sums.begin(), sums.end(), trtspec::share(uniform, sum));
            answers.drawn.push_back(above == sums.end() ? -1 : static_cast<int32_t>(above - sums.begin()));
            answers.drawn.push_back(static_cast<int32_t>(trtspec::share(uniform, static_cast<uint64_t>(row.size))));
        }
        answers.drawn.push_back(-1);  // of zero weights
        for (size_t turn = 0; turn < thresholds.size(); ++turn) {
            const uint64_t threshold = threshold_of(thresholds, i, turn);
            const auto above = std::upper_bound(sums.begin(), sums.end(), threshold);
            answers.selected.push_back(above == sums.end() ? -1 : static_cast<int32_t>(above - sums.begin()));
            uint64_t before = 0;
            int bin = trtspec::kBins - 1;
            while (bin >= 0 && before + bins[bin] <= threshold) {
                before += bins[bin--];
            }
            answers.bins.push_back(Bin{bin, before});
        }
    }
    return answers;
}

template <class T, class Team>
Answers in_team(Team& team, const std::vector<Row<T>>& rows, const std::vector<uint64_t>& thresholds) {
    Answers answers{};
    for (size_t i = 0; i < rows.size(); ++i) {
        const Row<T> row = rows[i];
        team.stage(row);
        if (i + 1 < rows.size()) {
            team.prefetch(rows[i + 1]);
        }
        const Largest largest = team.largest(row, key);
        answers.largest = std::max(answers.largest, trtspec::pack(largest.key, largest.id));
        answers.sum += team.sum(row, weight);
        for (const uint32_t uniform : kUniforms) {
            answers.drawn.push_back(team.draw(row, weight, uniform));
            answers.drawn.push_back(team.draw(row, one, uniform));
        }
        answers.drawn.push_back(team.draw(row, nothing, kUniforms[1]));
        for (size_t turn = 0; turn < thresholds.size(); ++turn) {
            const uint64_t threshold = threshold_of(thresholds, i, turn);
            answers.selected.push_back(team.select(row, weight, threshold));
            answers.bins.push_back(team.descend(row, digit, weight, threshold));
        }
    }
    return answers;
}

template <class T>
std::string compare(int blocks, int threads, int slots, int size, int lead, bool at_end, uint64_t seed) {
    std::mt19937_64 random(seed);
    constexpr int kRows = 3;
    Fenced memory((static_cast<size_t>(kRows) * size + lead) * sizeof(T), at_end);
    std::vector<Row<T>> rows;
    for (int i = 0; i < kRows; ++i) {
        T* data = reinterpret_cast<T*>(memory.data()) + lead + static_cast<size_t>(i) * size;
        std::generate_n(data, size, [&] { return entry_of_integer<T>(random() % trtspec::kBins); });
        rows.push_back(Row<T>{data, size});
    }
    uint64_t sum = 0;
    for (int id = 0; id < size; ++id) {
        sum += weight(id, trtspec::to_float(rows[1].data[id]));
    }
    const std::vector<uint64_t> thresholds = {0, sum / 3, sum - (sum > 0), sum, ~0ull};
    const Answers expected = plainly(rows, thresholds);

    const int slot_bytes = trtspec::vectors_per_warp(size, sizeof(T), blocks * threads / 32) * (threads / 32) * 16;
    Machine machine(blocks, threads, sizeof(trtspec::TeamMemory) + static_cast<size_t>(slots) * slot_bytes, seed);
    std::vector<int> wrong(static_cast<size_t>(blocks) * threads);
    machine.run([&](int rank, int thread) {
        EmulatedBlock block(machine, rank, thread);
        ThreadTeam<EmulatedBlock> team(block, trtspec::RowSlots{slots, slot_bytes}, 1);
        wrong[rank * threads + thread] = in_team(team, rows, thresholds) == expected ? 0 : 1;
    });
    const auto count = std::count(wrong.begin(), wrong.end(), 1);
    return count == 0 ? "" : std::to_string(count) + " threads differ";
}

}  // namespace

/// Writes the error, or "", into `message`.
extern "C" void compare_team(int blocks, int threads, int slots, int entry_bytes, int size, int lead, int at_end,
                             uint64_t seed, char* message, int room) {
    std::string wrong;
    try {
        wrong = entry_bytes == 4 ? compare<float>(blocks, threads, slots, size, lead, at_end != 0, seed)
                                 : compare<trtspec::Bfloat16>(blocks, threads, slots, size, lead, at_end != 0, seed);
    } catch (const std::exception& error) {
        wrong = error.what();
    }
    std::snprintf(message, static_cast<size_t>(room), "%s", wrong.c_str());
}
