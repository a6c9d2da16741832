#include "client/torch/pipeline/tied_parameters.h"

#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/communicator.h"
#include "client/comm/work.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {

using ::torch::Tensor;

absl::StatusOr<std::unique_ptr<TiedParameters>> TiedParameters::Connect(
    Session& session, const MeshGroups& groups, const RankLayers& layers,
    const std::function<int(int layer)>& rank_of, absl::Duration timeout) {
  std::unique_ptr<TiedParameters> tied(new TiedParameters(timeout));
  const std::vector<int>& ranks = groups.pp->ranks();
  const int own = groups.pp->rank();
  for (const RankLayers::Shared& shared : layers.shared()) {
    const int other = rank_of(shared.other_layer);
    const auto [low, high] = std::minmax(own, other);
    Pair pair;
    pair.parameter = shared.parameter;
    // The pipeline's first rank tells it from that of other data.
    COXSWAIN_ASSIGN_OR_RETURN(
        pair.group, session.CreateGroup(
                        absl::StrCat("tied/", ranks[0], "/", low, "-", high),
                        {ranks[static_cast<size_t>(low)],
                         ranks[static_cast<size_t>(high)]}));
    pair.root = (own == low) == shared.is_first ? 0 : 1;
    tied->pairs_.push_back(std::move(pair));
  }
  return tied;
}

absl::Status TiedParameters::SumGradients() {
  for (const Pair& pair : pairs_) {
    Tensor dense;
    COXSWAIN_RETURN_IF_ERROR(Guarded("reading a tied gradient", [&] {
      Tensor& gradient = pair.parameter.mutable_grad();
      if (!gradient.defined()) gradient = ::torch::zeros_like(pair.parameter);
      dense = gradient.detach().contiguous();
    }));
    COXSWAIN_RETURN_IF_ERROR(
        WithPrefix("adding up tied gradients: ",
                   WaitHolding(pair.group->communicator().AllReduce(
                                   ElementsOf(dense), ReduceOp::kSum),
                               std::make_shared<Tensor>(dense), timeout_)));
    COXSWAIN_RETURN_IF_ERROR(Guarded("writing a tied gradient", [&] {
      const ::torch::NoGradGuard no_grad;
      Tensor& gradient = pair.parameter.mutable_grad();
      if (!gradient.is_alias_of(dense)) gradient.copy_(dense);
    }));
  }
  return absl::OkStatus();
}

absl::Status TiedParameters::CopyValues() {
  for (const Pair& pair : pairs_) {
    Tensor dense;
    COXSWAIN_RETURN_IF_ERROR(Guarded("reading a tied parameter", [&] {
      dense = pair.parameter.detach().contiguous();
    }));
    COXSWAIN_RETURN_IF_ERROR(WithPrefix(
        "copying tied parameters: ",
        WaitHolding(
            pair.group->communicator().Broadcast(ElementsOf(dense), pair.root),
            std::make_shared<Tensor>(dense), timeout_)));
    COXSWAIN_RETURN_IF_ERROR(Guarded("writing a tied parameter", [&] {
      const ::torch::NoGradGuard no_grad;
      Tensor parameter = pair.parameter.detach();
      if (!parameter.is_alias_of(dense)) parameter.copy_(dense);
    }));
  }
  return absl::OkStatus();
}

int64_t TiedParameters::payload_bytes() const {
  // Pairs of the same ranks have one group.
  std::set<const ProcessGroup*> groups;
  int64_t bytes = 0;
  for (const Pair& pair : pairs_) {
    if (!groups.insert(pair.group.get()).second) continue;
    bytes += pair.group->communicator().payload_bytes();
  }
  return bytes;
}

void TiedParameters::Abort(absl::string_view reason) {
  for (const Pair& pair : pairs_) pair.group->communicator().Abort(reason);
}

}  // namespace coxswain::torch
