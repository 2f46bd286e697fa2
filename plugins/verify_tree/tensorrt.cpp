// SPDX-License-Identifier: Apache-2.0
// TrtspecVerifyTree: verify_tree as a TensorRT plugin.
#include "common/request.h"
#include "tensorrt/type.h"

namespace trtspec::tensorrt {
namespace {

constexpr Dim kNodes{Axis::kTokens};

Fields fields() {
    Fields all = shared_fields();
    all.push_back({"mode", &Options::mode, TRTSPEC_TREE_POINT_MASS, TRTSPEC_TREE_TYPICAL});
    all.push_back({"threshold", &Options::threshold, 0, 1});
    all.push_back({"alpha", &Options::alpha, 0, 1});
    return all;
}

void check(const Options& options) {
    const bool drawn = options.mode == TRTSPEC_TREE_RECURSIVE;
    if (drawn != (options.draft_kind != TRTSPEC_DRAFT_CHOSEN)) {
        throw Refused(drawn ? "field mode 1 (recursive) needs a draft tensor: set draft_kind"
                            : "field draft_kind must be 0 in this mode, which does not look at the draft");
    }
}

std::vector<Tensor> inputs_of(const Options& options) {
    std::vector<Tensor> inputs = {
        {Role::kTarget, Type::kLogits, {{Axis::kBatch}, kNodes, {Axis::kTargetColumns}}},
        {Role::kTokens, Type::kInt, {{Axis::kBatch}, kNodes}},
        {Role::kParents, Type::kInt, {{Axis::kBatch}, kNodes}},
        {Role::kLimits, Type::kInt, {{Axis::kBatch}}},
    };
    append_draft(options, inputs);
    append_sampling(options, kNodes, inputs);
    return inputs;
}

trtspec_tree_args args_of(const Call& call) {
    trtspec_tree_args args{};
    args.struct_size = sizeof(args);
    args.batch = call.extent(Axis::kBatch);
    args.nodes = call.extent(Axis::kTokens);
    args.mode = call.options.mode;
    args.draft_kind = call.options.draft_kind;
    args.threshold = call.options.threshold;
    args.alpha = call.options.alpha;
    args.target = target_rows_of(call, args.nodes);
    args.draft = draft_rows_of(call, args.nodes);
    args.draft_column = call.input<int32_t>(Role::kDraftColumn);
    args.tokens = call.input<int32_t>(Role::kTokens);
    args.parents = call.input<int32_t>(Role::kParents);
    args.limits = call.input<int32_t>(Role::kLimits);
    args.sampling = sampling_of(call);
    args.path = call.output(Role::kPath);
    args.path_len = call.output(Role::kPathLen);
    args.next = call.output(Role::kNext);
    args.status = call.output(Role::kStatus);
    args.workspace = call.workspace;
    args.workspace_bytes = trtspec_verify_tree_workspace(&args);
    return args;
}

uint64_t workspace_bytes(const Call& call) { return args_of(call).workspace_bytes; }

int32_t launch(const Call& call, cudaStream_t stream) {
    const trtspec_tree_args args = args_of(call);
    return trtspec_verify_tree_cuda(&args, stream);
}

}  // namespace

const PluginType& tree_type() {
    static const PluginType type{
        "TrtspecVerifyTree",
        fields(),
        check,
        inputs_of,
        {
            {Role::kPath, Type::kInt, {{Axis::kBatch}, kNodes}},
            {Role::kPathLen, Type::kInt, {{Axis::kBatch}}},
            {Role::kNext, Type::kInt, {{Axis::kBatch}}},
            {Role::kStatus, Type::kInt, {{Axis::kBatch}}},
        },
        kRowLimit,
        workspace_bytes,
        launch,
    };
    return type;
}

}  // namespace trtspec::tensorrt
