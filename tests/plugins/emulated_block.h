// SPDX-License-Identifier: Apache-2.0
// Blocks of threads on the host: the machine of `ThreadTeam` (plugins/common/thread_team.h), without a GPU.
//
// Each thread is a fiber that runs until it waits for others. The next warp, and how far it runs, are drawn with a seed,
// so that code that depends on an order without a barrier has different results with another seed. Asynchronous copies
// happen as late as possible. Shared memory is filled with garbage before a kernel starts. `run` throws on a deadlock.
#pragma once

#include <csetjmp>
#include <ucontext.h>

#include <algorithm>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/thread_team.h"

namespace emulation {

/// A barrier among a fixed number of fibers.
struct Meeting {
    int expected = 0;
    int arrived = 0;
    uint64_t generation = 0;
};

/// `context` starts it; later switches between running fibers are jumps, which avoid system calls.
struct Fiber {
    ucontext_t context;
    std::jmp_buf place;
    bool started = false;
    std::unique_ptr<unsigned char[]> stack;
    const Meeting* waits_for = nullptr;
    uint64_t generation = 0;
    bool done = false;
};

/// The threads of one team.
class Machine {
public:
    Machine(int blocks, int threads, size_t shared_bytes, uint64_t seed)
        : blocks_(blocks), threads_(threads), order_(seed) {
        team_.expected = blocks * threads;
        in_block_.resize(blocks, Meeting{threads});
        in_warp_.resize(blocks * threads / trtspec::kWarp, Meeting{trtspec::kWarp});
        mail_.resize(2 * blocks * threads);
        const size_t rounded = (shared_bytes + 127) / 128 * 128;
        for (int rank = 0; rank < blocks; ++rank) {
            shared_.push_back(static_cast<unsigned char*>(std::aligned_alloc(128, rounded)));
            std::memset(shared_.back(), 0xA5, rounded);
        }
    }

    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    ~Machine() {
        for (unsigned char* memory : shared_) {
            std::free(memory);
        }
    }

    /// Runs body(block, thread) in every thread, to the end.
    void run(const std::function<void(int, int)>& body) {
        body_ = &body;
        fibers_.resize(static_cast<size_t>(blocks_) * threads_);
        for (size_t i = 0; i < fibers_.size(); ++i) {
            prepare(fibers_[i], i);
        }
        while (true) {
            const std::vector<size_t> ready = ready_among(0, fibers_.size());
            if (ready.empty()) {
                break;
            }
            run_warp(ready[order_() % ready.size()] / trtspec::kWarp * trtspec::kWarp);
        }
        const auto is_done = [](const Fiber& fiber) { return fiber.done; };
        if (!std::all_of(fibers_.begin(), fibers_.end(), is_done)) {
            throw std::runtime_error("threads wait for each other for ever");
        }
    }

    void meet(Meeting& meeting) {
        if (++meeting.arrived == meeting.expected) {
            meeting.arrived = 0;
            ++meeting.generation;
            return;
        }
        Fiber& fiber = fibers_[current_];
        fiber.waits_for = &meeting;
        fiber.generation = meeting.generation;
        if (_setjmp(fiber.place) == 0) {
            _longjmp(scheduler_, 1);
        }
    }

    int blocks() const { return blocks_; }
    int threads() const { return threads_; }
    unsigned char* shared(int rank) { return shared_[rank]; }
    uint64_t* mail(int parity) { return mail_.data() + static_cast<size_t>(parity) * blocks_ * threads_; }
    Meeting& team() { return team_; }
    Meeting& in_block(int rank) { return in_block_[rank]; }
    Meeting& in_warp(int warp) { return in_warp_[warp]; }

private:
    static constexpr size_t kStackBytes = 64 * 1024;

    static bool may_run(const Fiber& fiber) {
        return fiber.waits_for == nullptr || fiber.waits_for->generation != fiber.generation;
    }

    /// In a random order.
    std::vector<size_t> ready_among(size_t begin, size_t end) {
        std::vector<size_t> ready;
        for (size_t i = begin; i < end; ++i) {
            if (!fibers_[i].done && may_run(fibers_[i])) {
                ready.push_back(i);
            }
        }
        std::shuffle(ready.begin(), ready.end(), order_);
        return ready;
    }

    /// Runs a warp as far as possible without others, so that the first warp at a barrier gets far ahead of the last.
    void run_warp(size_t begin) {
        std::vector<size_t> ready;
        while (!(ready = ready_among(begin, begin + trtspec::kWarp)).empty()) {
            for (const size_t i : ready) {
                resume(i);
            }
        }
    }

    void resume(size_t index) {
        current_ = index;
        Fiber& fiber = fibers_[index];
        if (_setjmp(scheduler_) != 0) {
            return;
        }
        if (fiber.started) {
            _longjmp(fiber.place, 1);
        }
        fiber.started = true;
        setcontext(&fiber.context);
    }

    void prepare(Fiber& fiber, size_t index) {
        if (fiber.stack == nullptr) {
            fiber.stack.reset(new unsigned char[kStackBytes]);
        }
        fiber.started = false;
        fiber.done = false;
        fiber.waits_for = nullptr;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        const auto self = reinterpret_cast<uintptr_t>(this);
        makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Machine::enter), 3, static_cast<unsigned>(self),
                    static_cast<unsigned>(self >> 32), static_cast<unsigned>(index));
    }

    static void enter(unsigned low, unsigned high, unsigned index) {
        auto* self = reinterpret_cast<Machine*>(static_cast<uintptr_t>(high) << 32 | low);
        (*self->body_)(static_cast<int>(index) / self->threads_, static_cast<int>(index) % self->threads_);
        self->fibers_[index].done = true;
        _longjmp(self->scheduler_, 1);
    }

    int blocks_;
    int threads_;
    std::mt19937_64 order_;
    const std::function<void(int, int)>* body_ = nullptr;
    std::vector<Fiber> fibers_;
    size_t current_ = 0;
    std::jmp_buf scheduler_;
    Meeting team_;
    std::vector<Meeting> in_block_;
    std::vector<Meeting> in_warp_;
    std::vector<uint64_t> mail_;
    std::vector<unsigned char*> shared_;
};

/// One thread's view of the machine, with the operations of `CudaBlock`.
class EmulatedBlock {
public:
    EmulatedBlock(Machine& machine, int rank, int thread) : machine_(machine), rank_(rank), thread_(thread) {}

    int thread() const { return thread_; }
    int threads() const { return machine_.threads(); }
    int rank() const { return rank_; }
    int blocks() const { return machine_.blocks(); }

    trtspec::TeamMemory& memory() { return *reinterpret_cast<trtspec::TeamMemory*>(machine_.shared(rank_)); }
    unsigned char* rows() { return machine_.shared(rank_) + sizeof(trtspec::TeamMemory); }

    void barrier() { machine_.meet(machine_.in_block(rank_)); }
    void team_barrier() { machine_.meet(machine_.team()); }

    template <class T>
    T* peer(T* mine, int rank) {
        const auto offset = reinterpret_cast<unsigned char*>(mine) - machine_.shared(rank_);
        return reinterpret_cast<T*>(machine_.shared(rank) + offset);
    }

    template <class T>
    T shuffle(T value, int lane) {
        return static_cast<T>(post(static_cast<uint64_t>(value))[lane]);
    }

    int first_lane(bool flag) {
        const uint64_t* flags = post(flag ? 1 : 0);
        for (int lane = 0; lane < trtspec::kWarp; ++lane) {
            if (flags[lane] != 0) {
                return lane;
            }
        }
        return -1;
    }

    trtspec::Vector load_global(const void* from) const { return load(from); }
    trtspec::Vector load_shared(const void* from) const { return load(from); }

    void copy_async(void* to, const void* from) { open_.push_back({to, from}); }

    void commit() {
        groups_.push_back(std::move(open_));
        open_.clear();
    }

    void wait(int newer) {
        while (static_cast<int>(groups_.size()) > newer) {
            for (const auto& [to, from] : groups_.front()) {
                const trtspec::Vector vector = load(from);
                std::memcpy(to, &vector, sizeof(vector));
            }
            groups_.pop_front();
        }
    }

    void add(uint64_t* counter, uint64_t value) { *counter += value; }

private:
    /// Sends a value to the warp, and returns the values of all lanes.
    const uint64_t* post(uint64_t value) {
        parity_ ^= 1;
        const int index = rank_ * threads() + thread_;
        uint64_t* mail = machine_.mail(parity_);
        mail[index] = value;
        machine_.meet(machine_.in_warp(index / trtspec::kWarp));
        return mail + index / trtspec::kWarp * trtspec::kWarp;
    }

    static trtspec::Vector load(const void* from) {
        if (reinterpret_cast<uintptr_t>(from) % trtspec::kVectorBytes != 0) {
            std::abort();  // like the GPU
        }
        trtspec::Vector vector;
        std::memcpy(&vector, from, sizeof(vector));
        return vector;
    }

    Machine& machine_;
    int rank_;
    int thread_;
    int parity_ = 0;
    std::vector<std::pair<void*, const void*>> open_;
    std::deque<std::vector<std::pair<void*, const void*>>> groups_;
};

}  // namespace emulation
