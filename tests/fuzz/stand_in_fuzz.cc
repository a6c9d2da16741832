// The desk that ranks come to while no coordinator is there. Whatever they
// say, nobody hears anything once the visit is over.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/fake_clock.h"
#include "client/stand_in/stand_in_desk.h"
#include "schedule/plan.h"
#include "tests/fuzz/decoders.h"
#include "tests/fuzz/fuzz_bytes.h"
#include "tests/fuzz/message_damage.h"

namespace coxswain {
namespace {

constexpr int kRanks = 3;

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

class Desk {
 public:
  explicit Desk(FuzzBytes* bytes) : bytes_(bytes), desk_(Options()) {}

  void Act() {
    const int rank = static_cast<int>(bytes_->Below(kRanks));
    const size_t what = bytes_->Below(8);
    if (what == 0 || visits_.count(rank) == 0) {
      Arrive(rank);
    } else if (what == 1) {
      desk_.Depart(visits_[rank]);
      *over_[visits_[rank]] = true;
      visits_.erase(rank);
    } else {
      desk_.Hear(visits_[rank], Request(what)).IgnoreError();
    }
    clock_.Advance(absl::Milliseconds(bytes_->Byte()));
  }
  void Close() { desk_.Close(); }

 private:
  StandInDesk::Options Options() {
    StandInDesk::Options options;
    options.fence = Generation();
    options.world_size = kRanks;
    options.plan = NewestPlan;
    options.clock = &clock_;
    return options;
  }

  void Arrive(int rank) {
    v1::Hello hello;
    *hello.mutable_fence() = Generation();
    hello.set_rank(rank);
    DamageMessage(Words(), bytes_, &hello);
    const auto over = std::make_shared<bool>(false);
    StandInDesk::Ear ear;
    ear.on_event = [over](const v1::AttachEvent&) { COXSWAIN_CHECK(!*over); };
    ear.on_end = [over](const absl::Status& why) {
      COXSWAIN_CHECK(!*over && !why.ok());
      *over = true;
    };
    const auto visit = desk_.Arrive(hello, ear);
    if (!visit.ok()) return;
    visits_[hello.rank()] = *visit;
    over_[*visit] = over;
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
  std::map<int, StandInDesk::Visit> visits_;  // by rank
  std::map<StandInDesk::Visit, std::shared_ptr<bool>> over_;
  StandInDesk desk_;
};

}  // namespace

void FuzzStandIn(absl::string_view input) {
  FuzzBytes bytes(input);
  Desk desk(&bytes);
  while (!bytes.empty()) desk.Act();
  desk.Close();
}

}  // namespace coxswain
