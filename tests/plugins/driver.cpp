// SPDX-License-Identifier: Apache-2.0
// Calls the C interface on random batches, with every array in memory of exactly its size, so that sanitizers detect
// out-of-bounds accesses. Reports results that depend on the number of threads, and prints a digest of all results, which
// must be equal for all builds.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "trtspec/quantize.h"
#include "trtspec/verify.h"

namespace {

using Ints = std::vector<int32_t>;

std::mt19937_64 generator(1);

int32_t below(int32_t end) { return static_cast<int32_t>(generator() % static_cast<uint64_t>(end)); }

/// Within [-8, 8], and exactly the same on all machines.
float random_logit() { return static_cast<float>(below(1 << 20)) / 65536.0f - 8.0f; }

uint64_t digest = 14695981039346656037u;

/// FNV-1a over 32-bit words.
template <class T>
void add_to_digest(const std::vector<T>& results) {
    for (const T result : results) {
        digest = (digest ^ static_cast<uint32_t>(result)) * 1099511628211u;
    }
}

void require(bool holds, const char* what) {
    if (!holds) {
        std::printf("%s\n", what);
        std::exit(1);
    }
}

/// A copy of a vector's elements in memory of exactly their size.
template <class T>
class Exact {
public:
    explicit Exact(const std::vector<T>& values) : data_(new T[values.size()]) {
        std::copy(values.begin(), values.end(), data_.get());
    }
    const T* get() const { return data_.get(); }

private:
    std::unique_ptr<T[]> data_;
};

/// Random bits, including NaN, infinities and subnormal numbers in half precision.
std::vector<uint16_t> random_bits(size_t count) {
    std::vector<uint16_t> bits(count);
    for (auto& each : bits) {
        each = static_cast<uint16_t>(generator());
    }
    return bits;
}

std::vector<float> random_logits(size_t count) {
    static const float odd[] = {-INFINITY, INFINITY, NAN, -0.0f, 3e38f, -3e38f, 1e-40f};
    std::vector<float> logits(count);
    for (auto& each : logits) {
        each = below(40) == 0 ? odd[below(7)] : random_logit();
    }
    return logits;
}

std::vector<float> random_choices(int32_t count, std::vector<float> choices) {
    std::vector<float> chosen(static_cast<size_t>(count));
    for (auto& each : chosen) {
        each = choices[static_cast<size_t>(below(static_cast<int32_t>(choices.size())))];
    }
    return chosen;
}

Ints random_ints(size_t count, int32_t from, int32_t end) {
    Ints ints(count);
    for (auto& each : ints) {
        each = from + below(end - from);
    }
    return ints;
}

/// A batch of `rows` rows per request, with the common inputs of chains and trees.
struct Batch {
    int32_t size = 1 + below(4);
    int32_t rows = 1 + below(9);
    int32_t vocab = 1 + below(3000);
    int32_t draft_vocab = 1 + below(vocab);
    bool has_columns = below(2) == 0;
    bool is_half = below(2) == 0;
    int32_t draft_kind = below(3);
    size_t count = static_cast<size_t>(size * rows);
    Exact<float> floats{random_logits(count * static_cast<size_t>(vocab))};
    Exact<uint16_t> halves{random_bits(count * static_cast<size_t>(vocab))};
    Exact<int32_t> columns{random_ints(static_cast<size_t>(vocab), -1, draft_vocab)};
    Exact<int32_t> tokens{random_ints(count, -1, vocab + 1)};
    Exact<int32_t> parents{random_ints(count, -1, rows)};
    Exact<int32_t> lengths{random_ints(static_cast<size_t>(size), -1, rows + 2)};
    Exact<float> temperature{random_choices(size, {0.0f, 0.5f, 1.0f, 1e-39f, INFINITY, NAN, -1.0f})};
    Exact<float> top_p{random_choices(size, {1.0f, 0.9f, 0.2f, 0.0f, -1.0f, NAN})};
    Exact<int32_t> top_k{random_ints(static_cast<size_t>(size), -1, 60)};
    Exact<int32_t> uniforms{random_ints(count, INT32_MIN / 2, INT32_MAX / 2)};

    trtspec_rows logits(int32_t entries) const {
        const void* data = is_half ? static_cast<const void*>(halves.get()) : floats.get();
        const int32_t dtype = is_half ? TRTSPEC_FLOAT16 + below(2) : TRTSPEC_FLOAT32;
        return {data, static_cast<int64_t>(rows) * entries, entries, dtype, entries};
    }

    trtspec_rows draft(const trtspec_rows& target) const {
        const int32_t entries = has_columns ? draft_vocab : vocab;
        trtspec_rows rows_of_draft = logits(entries);
        rows_of_draft.dtype = target.dtype;
        if (draft_kind == TRTSPEC_DRAFT_PROBABILITIES) {
            rows_of_draft.data = floats.get();
            rows_of_draft.dtype = TRTSPEC_FLOAT32;
        }
        return rows_of_draft;
    }

    template <class Args>
    void fill(Args& args) const {
        args.struct_size = sizeof(Args);
        args.batch = size;
        args.draft_kind = draft_kind;
        args.target = logits(vocab);
        args.draft = draft(args.target);
        args.draft_column = has_columns ? columns.get() : nullptr;
        args.tokens = tokens.get();
        args.sampling = {temperature.get(), top_p.get(), top_k.get(),
                         reinterpret_cast<const uint32_t*>(uniforms.get())};
    }
};

using VerifyChains = int (*)(const trtspec_chain_args*, int);

Ints verify_chains(VerifyChains verify, const Batch& batch, trtspec_chain_args args, int threads) {
    const size_t size = static_cast<size_t>(batch.size);
    Ints accepted(size), next(size), status(size), output(batch.count);
    args.accepted = accepted.data();
    args.next = next.data();
    args.status = status.data();
    args.output = output.data();
    require(verify(&args, threads) == TRTSPEC_OK, "a batch of chains is refused");
    output.insert(output.end(), next.begin(), next.end());
    output.insert(output.end(), status.begin(), status.end());
    return output;
}

Ints verify_tree(const Batch& batch, trtspec_tree_args args, int threads) {
    const size_t size = static_cast<size_t>(batch.size);
    Ints path_len(size), next(size), status(size), path(batch.count);
    args.path_len = path_len.data();
    args.next = next.data();
    args.status = status.data();
    args.path = path.data();
    require(trtspec_verify_tree_cpu(&args, threads) == TRTSPEC_OK, "verify_tree refuses a batch");
    path.insert(path.end(), next.begin(), next.end());
    path.insert(path.end(), status.begin(), status.end());
    return path;
}

void verify_random_batch() {
    const Batch batch;
    trtspec_chain_args chain = {};
    batch.fill(chain);
    chain.draft_len = batch.rows - 1;
    chain.lengths = batch.lengths.get();
    for (const VerifyChains verify : {trtspec_verify_chain_cpu, trtspec_verify_block_cpu}) {
        const Ints of_chain = verify_chains(verify, batch, chain, 1);
        require(of_chain == verify_chains(verify, batch, chain, 3), "threads change a chain");
        add_to_digest(of_chain);
    }

    trtspec_tree_args tree = {};
    batch.fill(tree);
    tree.nodes = batch.rows;
    tree.mode = batch.draft_kind == TRTSPEC_DRAFT_CHOSEN ? 2 * below(2) : below(3);
    tree.threshold = 0.09f;
    tree.alpha = 0.3f;
    tree.parents = batch.parents.get();
    tree.limits = batch.lengths.get();
    const Ints of_tree = verify_tree(batch, tree, 1);
    require(of_tree == verify_tree(batch, tree, 3), "threads change a tree");
    add_to_digest(of_tree);
}

void compact_random_cache() {
    const int32_t batch = 1 + below(3), slots = 12, values = 1 + below(9), planes = 1 + below(3);
    std::vector<unsigned char> cache(static_cast<size_t>(planes * batch * slots * values));
    const Exact<int32_t> path({1, 3, 4, -1}), path_len({3, 3, 3}), start({0, 7, 2});
    trtspec_compact_args args = {};
    args.struct_size = sizeof(args);
    args.batch = batch;
    args.cache = cache.data();
    args.planes[0] = planes;
    args.planes[1] = args.planes[2] = 1;
    args.vector_bytes = values;
    args.plane_strides[0] = static_cast<int64_t>(batch) * slots * values;
    args.row_stride = static_cast<int64_t>(slots) * values;
    args.token_stride = values;
    std::vector<int32_t> paths;
    for (int32_t row = 0; row < batch; ++row) {
        paths.insert(paths.end(), path.get(), path.get() + 4);
    }
    args.path_stride = 4;
    args.path = paths.data();
    args.path_len = path_len.get();
    args.start = start.get();
    require(trtspec_compact_kv_cpu(&args, 2) == TRTSPEC_OK, "compact_kv refuses a cache");
}

/// Quantizes random bits, including NaN, infinities and subnormal numbers, at unaligned addresses.
void quantize_random_matrix() {
    const size_t rows = static_cast<size_t>(below(4)), columns = static_cast<size_t>(below(200)), count = rows * columns;
    const int32_t dtype = TRTSPEC_FLOAT32 + below(3);
    const size_t item = dtype == TRTSPEC_FLOAT32 ? 4 : 2;
    std::vector<unsigned char> weights(1 + count * item), target(1 + count * 4);
    for (auto& each : weights) {
        each = static_cast<unsigned char>(generator());
    }
    std::vector<float> scales(rows + 1, 0.37f);
    trtspec_census census = {};
    trtspec_quantize_args args = {};
    args.struct_size = sizeof(args);
    args.source_dtype = dtype;
    args.rows = static_cast<int64_t>(rows);
    args.columns = static_cast<int64_t>(columns);
    args.source = weights.data() + 1;
    args.source_stride = static_cast<int64_t>(columns * item);
    args.target = target.data() + 1;
    args.scales = scales.data();
    args.census = &census;
    for (args.operation = TRTSPEC_COUNT; args.operation <= TRTSPEC_QUANTIZE_ROWS; ++args.operation) {
        args.target_dtype = TRTSPEC_FLOAT32 + below(4);
        args.target_stride = args.operation == TRTSPEC_CAST ? args.columns * 4 : args.columns;
        require(trtspec_quantize_cpu(&args) == TRTSPEC_OK, "quantize refuses a matrix");
        add_to_digest(target);
        add_to_digest(std::vector<int64_t>{census.nans, census.infinities, census.largest});
    }
}

}  // namespace

int main() {
    for (int i = 0; i < 300; ++i) {
        verify_random_batch();
        compact_random_cache();
        quantize_random_matrix();
    }
    std::printf("clean %016llx\n", static_cast<unsigned long long>(digest));
}
