// SPDX-License-Identifier: Apache-2.0
// The GPU kernels on emulated machines, with the library's C interface, but `*_cpu` instead of `*_cuda`. Launches are
// planned as for a real GPU, whose limits the test sets.

#include <algorithm>
#include <cstdint>
#include <exception>

#include "common/compact_threads.h"
#include "common/launch_plan.h"
#include "common/request.h"
#include "emulated_block.h"
#include "trtspec/verify.h"

namespace {

using emulation::EmulatedBlock;
using emulation::Machine;
using namespace trtspec;

DeviceLimits limits{9, 232448};
uint64_t seed = 0;
TeamLaunch last_plan{};

constexpr int kDeadlock = -100;

template <class Args, class T, class Draft>
void verify_batch(const Args& args, const TeamLaunch& plan) {
    Machine machine(plan.blocks, plan.threads, static_cast<size_t>(plan.shared_bytes()), seed);
    for (int32_t request = 0; request < args.batch; ++request) {
        machine.run([&](int rank, int thread) {
            EmulatedBlock block(machine, rank, thread);
            ThreadTeam<EmulatedBlock> team(block, RowSlots{plan.slots, plan.slot_bytes}, plan.rows_at_once);
            verify(team, args, request, Type<T>{}, Type<Draft>{});
        });
    }
}

template <class Args, class Given>
int verify_emulated(const Given* given) {
    Args args;
    int code = read_args(given, args);
    code = code == TRTSPEC_OK ? check_args(args) : code;
    if (code != TRTSPEC_OK) {
        return code;
    }
    try {
        with_types(args, [&](auto logits, auto draft) {
            using T = typename decltype(logits)::type;
            using Draft = typename decltype(draft)::type;
            last_plan = plan_launch(shape_of(args.target), StagedRows<Draft>::shape(args.draft), limits);
            verify_batch<Args, T, Draft>(args, last_plan);
        });
    } catch (const std::exception&) {
        return kDeadlock;
    }
    return TRTSPEC_OK;
}

template <int Bytes>
struct alignas(Bytes) Unit {
    unsigned char bytes[Bytes];
};

template <int Bytes>
void compact_batch(const trtspec_compact_args& args) {
    constexpr int kThreads = 64;
    const int64_t planes = plane_count(args);
    Machine machine(1, kThreads, 1, seed);
    for (int64_t i = 0; i < planes * args.batch; ++i) {
        machine.run([&](int rank, int thread) {
            EmulatedBlock block(machine, rank, thread);
            compact_plane<Unit<Bytes>>(block, args, static_cast<int32_t>(i / planes), i % planes);
        });
    }
}

void compact_in_units(const trtspec_compact_args& args) {
    switch (unit_bytes_of(args)) {
        case 16:
            return compact_batch<16>(args);
        case 8:
            return compact_batch<8>(args);
        case 4:
            return compact_batch<4>(args);
        case 2:
            return compact_batch<2>(args);
        default:
            return compact_batch<1>(args);
    }
}

}  // namespace

/// Sets the limits of the machine, and the seed of the order of its threads.
extern "C" void emulate(int major, int shared_bytes, uint64_t order) {
    limits = DeviceLimits{major, shared_bytes};
    seed = order;
}

/// The last launch: blocks and threads of a team, and rows in shared memory.
extern "C" void last_launch(int* blocks, int* threads, int* slots) {
    *blocks = last_plan.blocks;
    *threads = last_plan.threads;
    *slots = last_plan.slots;
}

extern "C" int trtspec_verify_chain_cpu(const trtspec_chain_args* args, int) {
    return verify_emulated<trtspec_chain_args>(args);
}

extern "C" int trtspec_verify_block_cpu(const trtspec_chain_args* args, int) { return verify_emulated<BlockArgs>(args); }

extern "C" int trtspec_verify_tree_cpu(const trtspec_tree_args* args, int) {
    return verify_emulated<trtspec_tree_args>(args);
}

extern "C" int trtspec_compact_kv_cpu(const trtspec_compact_args* given, int) {
    trtspec_compact_args args;
    int code = read_args(given, args);
    code = code == TRTSPEC_OK ? check_args(args) : code;
    if (code == TRTSPEC_OK) {
        compact_in_units(args);
    }
    return code;
}
