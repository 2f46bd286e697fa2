// SPDX-License-Identifier: Apache-2.0
// TrtspecVerifyChain: verify_chain as a TensorRT plugin.
#include "common/request.h"
#include "tensorrt/type.h"

namespace trtspec::tensorrt {
namespace {

constexpr Dim kRowsOfChain{Axis::kTokens, 1};

std::vector<Tensor> inputs_of(const Options& options) {
    std::vector<Tensor> inputs = {
        {Role::kTarget, Type::kLogits, {{Axis::kBatch}, kRowsOfChain, {Axis::kTargetColumns}}},
        {Role::kTokens, Type::kInt, {{Axis::kBatch}, {Axis::kTokens}}},
        {Role::kLengths, Type::kInt, {{Axis::kBatch}}},
    };
    append_draft(options, inputs);
    append_sampling(options, kRowsOfChain, inputs);
    return inputs;
}

trtspec_chain_args args_of(const Call& call) {
    trtspec_chain_args args{};
    args.struct_size = sizeof(args);
    args.batch = call.extent(Axis::kBatch);
    args.draft_len = call.extent(Axis::kTokens);
    args.draft_kind = call.options.draft_kind;
    args.target = target_rows_of(call, args.draft_len + 1);
    args.draft = draft_rows_of(call, args.draft_len);
    args.draft_column = call.input<int32_t>(Role::kDraftColumn);
    args.tokens = call.input<int32_t>(Role::kTokens);
    args.lengths = call.input<int32_t>(Role::kLengths);
    args.sampling = sampling_of(call);
    args.accepted = call.output(Role::kAccepted);
    args.output = call.output(Role::kOutput);
    args.next = call.output(Role::kNext);
    args.status = call.output(Role::kStatus);
    args.workspace = call.workspace;
    args.workspace_bytes = trtspec_verify_chain_workspace(&args);
    return args;
}

uint64_t workspace_bytes(const Call& call) { return args_of(call).workspace_bytes; }

int32_t launch(const Call& call, cudaStream_t stream) {
    const trtspec_chain_args args = args_of(call);
    return trtspec_verify_chain_cuda(&args, stream);
}

}  // namespace

const PluginType& chain_type() {
    static const PluginType type{
        "TrtspecVerifyChain",
        shared_fields(),
        [](const Options&) {},
        inputs_of,
        {
            {Role::kAccepted, Type::kInt, {{Axis::kBatch}}},
            {Role::kOutput, Type::kInt, {{Axis::kBatch}, kRowsOfChain}},
            {Role::kNext, Type::kInt, {{Axis::kBatch}}},
            {Role::kStatus, Type::kInt, {{Axis::kBatch}}},
        },
        kRowLimit - 1,
        workspace_bytes,
        launch,
    };
    return type;
}

}  // namespace trtspec::tensorrt
