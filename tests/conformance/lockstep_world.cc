#include "tests/conformance/lockstep_world.h"

#include <algorithm>

#include "absl/strings/string_view.h"

namespace coxswain {
namespace {

class LockstepCommunicator : public Communicator {
 public:
  LockstepCommunicator(int rank, int size, std::shared_ptr<LockstepWorld> world)
      : Communicator(rank, size), world_(std::move(world)) {}

  absl::string_view backend() const override { return "lockstep"; }
  void Abort(absl::string_view reason) override {
    world_->Abort(absl::AbortedError(reason));
  }
  int64_t wire_bytes() const override { return 0; }

 protected:
  WorkPtr DoAllReduce(Span span, ReduceOp op) override {
    return Start({HeaderOf(CollectiveKind::kAllReduce, span, op), span, {}});
  }
  WorkPtr DoBroadcast(Span span, int root) override {
    return Start(
        {HeaderOf(CollectiveKind::kBroadcast, span, ReduceOp::kSum, root),
         span,
         {}});
  }
  WorkPtr DoAgree(const CollectiveHeader& header) override {
    return Start({header, {}, {}});
  }
  WorkPtr DoAllGather(Span input, Span output) override {
    return Start({HeaderOf(CollectiveKind::kAllGather, input), input, output});
  }
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override {
    return Start(
        {HeaderOf(CollectiveKind::kReduceScatter, input, op), input, output});
  }
  WorkPtr DoAllToAll(Span input, Span output) override {
    return Start({HeaderOf(CollectiveKind::kAllToAll, input), input, output});
  }

  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override {
    const auto self = std::find(ranks.begin(), ranks.end(), rank());
    return world_->Group(ranks, splits_[ranks]++)
        ->MakeRank(static_cast<int>(self - ranks.begin()));
  }

 private:
  WorkPtr Start(CollectivePart part) {
    part.header.sequence = next_++;
    return world_->Meet(rank(), part);
  }

  const std::shared_ptr<LockstepWorld> world_;
  uint64_t next_ = 0;
  std::map<std::vector<int>, int64_t> splits_;
};

}  // namespace

std::shared_ptr<LockstepWorld> LockstepWorld::Create(int size) {
  return std::shared_ptr<LockstepWorld>(new LockstepWorld(size));
}

std::unique_ptr<Communicator> LockstepWorld::MakeRank(int rank) {
  return std::make_unique<LockstepCommunicator>(rank, size_,
                                                shared_from_this());
}

WorkPtr LockstepWorld::Meet(int rank, const CollectivePart& part) {
  const uint64_t sequence = part.header.sequence;
  auto work = std::make_shared<Work>();
  Meeting whole;
  {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return Work::Ended(status_);
    Meeting& meeting = meetings_[sequence];
    meeting.parts[rank] = part;
    meeting.works.push_back(work);
    if (meeting.parts.size() < static_cast<size_t>(size_)) return work;
    whole = std::move(meeting);
    meetings_.erase(sequence);
  }
  std::vector<const CollectivePart*> parts;
  for (const auto& [from, one] : whole.parts) parts.push_back(&one);
  const absl::Status status = ComputeCollective(parts);
  for (const WorkPtr& one : whole.works) one->Complete(status);
  return work;
}

std::shared_ptr<LockstepWorld> LockstepWorld::Group(
    const std::vector<int>& ranks, int64_t number) {
  MutexLock lock(&mutex_);
  auto& group = groups_[{ranks, number}];
  if (group == nullptr) group = Create(static_cast<int>(ranks.size()));
  return group;
}

void LockstepWorld::Abort(const absl::Status& status) {
  std::map<uint64_t, Meeting> meetings;
  std::vector<std::shared_ptr<LockstepWorld>> groups;
  {
    MutexLock lock(&mutex_);
    if (status_.ok()) status_ = status;
    meetings.swap(meetings_);
    for (const auto& [key, group] : groups_) groups.push_back(group);
  }
  for (auto& [sequence, meeting] : meetings) {
    for (const WorkPtr& work : meeting.works) work->Complete(status);
  }
  for (const auto& group : groups) group->Abort(status);
}

}  // namespace coxswain
