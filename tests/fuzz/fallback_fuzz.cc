// The fallback coordinator. Whatever ranks send, nothing is sent to them once
// their attachment has ended.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/fake_clock.h"
#include "client/fallback/fallback_coordinator.h"
#include "schedule/plan.h"
#include "tests/fuzz/decoders.h"
#include "tests/fuzz/fuzz_bytes.h"
#include "tests/fuzz/message_damage.h"

namespace coxswain {
namespace {

constexpr int kFallbackRanks = 3;

const std::vector<std::string>& Words() {
  static const auto* const words = new std::vector<std::string>{
      "train", "eval", "allreduce", "powersgd(rank=2)", "mnist", "a-cluster"};
  return *words;
}

v1::Fence Generation() {
  v1::Fence fence;
  fence.set_cluster_id("a-cluster");
  fence.set_job("mnist");
  fence.set_generation(3);
  return fence;
}

schedule::Plan NewestPlan() {
  schedule::Plan plan;
  plan.version = 1;
  plan.accumulation_steps = 1;
  plan.hook = "allreduce";
  return plan;
}

class Ranks {
 public:
  explicit Ranks(FuzzBytes* bytes) : bytes_(bytes), coordinator_(Options()) {}

  void Act() {
    const int rank = static_cast<int>(bytes_->Below(kFallbackRanks));
    const size_t what = bytes_->Below(8);
    if (what == 0 || attachments_.count(rank) == 0) {
      Attach(rank);
    } else if (what == 1) {
      coordinator_.Detach(attachments_[rank]);
      *over_[attachments_[rank]] = true;
      attachments_.erase(rank);
    } else {
      coordinator_.Handle(attachments_[rank], Request(what)).IgnoreError();
    }
    clock_.Advance(absl::Milliseconds(bytes_->Byte()));
  }
  void Close() { coordinator_.Close(); }

 private:
  FallbackCoordinator::Options Options() {
    FallbackCoordinator::Options options;
    options.fence = Generation();
    options.world_size = kFallbackRanks;
    options.plan = NewestPlan;
    options.clock = &clock_;
    return options;
  }

  void Attach(int rank) {
    v1::Hello hello;
    *hello.mutable_fence() = Generation();
    hello.set_rank(rank);
    DamageMessage(Words(), bytes_, &hello);
    const auto over = std::make_shared<bool>(false);
    FallbackCoordinator::Callbacks callbacks;
    callbacks.on_event = [over](const v1::AttachEvent&) {
      COXSWAIN_CHECK(!*over);
    };
    callbacks.on_end = [over](const absl::Status& why) {
      COXSWAIN_CHECK(!*over && !why.ok());
      *over = true;
    };
    const auto attachment = coordinator_.Attach(hello, callbacks);
    if (!attachment.ok()) return;
    attachments_[hello.rank()] = *attachment;
    over_[*attachment] = over;
  }

  v1::AttachRequest Request(size_t what) {
    v1::AttachRequest request;
    if (what == 2) {
      request.mutable_position()->mutable_last()->set_stream("train");
      request.mutable_position()->mutable_last()->set_round(
          static_cast<int64_t>(bytes_->Below(4)));
      request.mutable_position()->mutable_last()->set_commit(true);
    } else if (what == 3) {
      request.mutable_vote()->set_stream("train");
      request.mutable_vote()->set_round(Round());
      request.mutable_vote()->set_commit(true);
    } else {
      FillTicket(request.mutable_ticket());
    }
    DamageMessage(Words(), bytes_, &request);
    return request;
  }
  void FillTicket(v1::Ticket* ticket) {
    ticket->set_stream("train");
    ticket->set_round(Round());
    ticket->set_step(ticket->round());
    ticket->set_micro_batches(1);
    ticket->set_window(1);
    ticket->set_weight(1);
    ticket->set_plan_version(1);
    ticket->set_hook("allreduce");
  }
  int64_t Round() { return static_cast<int64_t>(bytes_->Below(4)); }

  FuzzBytes* const bytes_;
  FakeClock clock_;
  std::map<int, FallbackCoordinator::AttachmentId> attachments_;  // by rank
  std::map<FallbackCoordinator::AttachmentId, std::shared_ptr<bool>> over_;
  FallbackCoordinator coordinator_;
};

}  // namespace

void FuzzFallback(absl::string_view input) {
  FuzzBytes bytes(input);
  Ranks ranks(&bytes);
  while (!bytes.empty()) ranks.Act();
  ranks.Close();
}

}  // namespace coxswain
