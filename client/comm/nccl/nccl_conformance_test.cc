#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/comm/communicator.h"
#include "client/comm/device_queue.h"
#include "client/comm/nccl/emulated/emulated_group.h"
#include "tests/conformance/communicator_conformance.h"

// NCCL's back end over emulated GPUs passes what all back ends pass, with spans
// of the CPU and with spans of its GPUs, whose memory is the host's here.

namespace coxswain {
namespace {

// A communicator of a group, with what it needs. Takes its callers' spans to
// be on its GPU, if it is to.
class Rank : public Communicator {
 public:
  Rank(std::unique_ptr<Communicator> inner, std::shared_ptr<EmulatedGpus> gpus,
       bool on_device)
      : Communicator(inner->rank(), inner->size()),
        gpus_(std::move(gpus)),
        on_device_(on_device),
        inner_(std::move(inner)) {}

  absl::string_view backend() const override { return inner_->backend(); }
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  int64_t wire_bytes() const override { return inner_->wire_bytes(); }
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override {
    return inner_->AllocateBuffer(count, dtype);
  }

 protected:
  WorkPtr DoAllReduce(Span span, ReduceOp op) override {
    return inner_->AllReduce(Placed(span), op);
  }
  WorkPtr DoBroadcast(Span span, int root) override {
    return inner_->Broadcast(Placed(span), root);
  }
  WorkPtr DoAgree(const CollectiveHeader& header) override {
    return inner_->Agree(header);
  }
  WorkPtr DoAllGather(Span input, Span output) override {
    return inner_->AllGather(Placed(input), Placed(output));
  }
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override {
    return inner_->ReduceScatter(Placed(input), Placed(output), op);
  }
  WorkPtr DoAllToAll(Span input, Span output) override {
    return inner_->AllToAll(Placed(input), Placed(output));
  }
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override {
    auto child = inner_->Split(ranks);
    if (!child.ok()) return child.status();
    return std::make_unique<Rank>(*std::move(child), gpus_, on_device_);
  }

 private:
  Span Placed(Span span) const {
    if (on_device_ && span.device.kind == Device::Kind::kCpu) {
      span.device = inner_->device_queue()->runtime().device();
    }
    return span;
  }

  const std::shared_ptr<EmulatedGpus> gpus_;
  const bool on_device_;
  const std::unique_ptr<Communicator> inner_;
};

// How the emulated NCCL behaves.
struct Manner {
  bool on_device = false;
  int version = 22809;
  int polls = 0;
};

CommunicatorCase NcclCase(const std::string& name, const Manner& manner) {
  CommunicatorCase result;
  result.name = name;
  result.make_group = [manner](int size, absl::Duration timeout) {
    auto gpus = std::make_shared<EmulatedGpus>(size, manner.version);
    gpus->nccl().SetPolls(manner.polls);
    std::vector<std::unique_ptr<Communicator>> group;
    for (auto& rank : gpus->ConnectAll(size, timeout)) {
      group.push_back(
          std::make_unique<Rank>(std::move(rank), gpus, manner.on_device));
    }
    return group;
  };
  result.messages = false;
  result.compares = false;  // docs/communicators.md
  result.has_wire = true;
  result.elsewhere.index = 99;
  return result;
}

Manner OnDevice() {
  Manner manner;
  manner.on_device = true;
  return manner;
}
Manner OldAndSlow() {
  Manner manner;
  manner.version = 21801;
  manner.polls = 3;
  return manner;
}

INSTANTIATE_TEST_SUITE_P(
    Backends, CommunicatorConformance,
    testing::Values(NcclCase("NcclHostSpans", Manner()),
                    NcclCase("NcclDeviceSpans", OnDevice()),
                    NcclCase("Nccl218InProgress", OldAndSlow())),
    CaseName);

}  // namespace
}  // namespace coxswain
