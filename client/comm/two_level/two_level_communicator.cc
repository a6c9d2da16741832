#include "client/comm/two_level/two_level_communicator.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/back_end.h"
#include "client/comm/collective_header.h"
#include "client/comm/communicator.h"
#include "client/comm/executor.h"
#include "client/comm/two_level/levels.h"
#include "client/comm/two_level/pieces.h"
#include "client/comm/two_level/slices.h"

namespace coxswain {
namespace {

// A part names who is late at its own deadline, which is the same: it comes
// first.
constexpr absl::Duration kGrace = absl::Seconds(10);
// Of what one rank sends to all others, if it is to go without a piece: then
// one wait for the peers counts for more than how often a byte leaves a host.
constexpr int64_t kSmallBytes = 64 << 10;

class TwoLevelCommunicator : public Communicator, public PeerLossSource {
 public:
  TwoLevelCommunicator(TwoLevelParts parts, absl::Duration timeout)
      : Communicator(parts.flat->rank(), parts.flat->size()),
        parts_(std::move(parts)),
        timeout_(timeout),
        levels_(MakeLevels()),
        pieces_(&levels_),
        slices_(&levels_),
        executor_([this](const absl::Status& why) { Stop(why); }) {}
  ~TwoLevelCommunicator() override {
    MutexLock lock(&mutex_);
    destroying_ = true;
  }

  absl::string_view backend() const override { return "two_level"; }
  bool has_mean() const override { return parts_.flat->has_mean(); }
  void Abort(absl::string_view reason) override { executor_.Abort(reason); }
  int64_t wire_bytes() const override {
    // The bridges are split off the flat one.
    return parts_.local->wire_bytes() + parts_.flat->wire_bytes();
  }
  // All peers are connected in the flat one, by the same ranks.
  void WatchPeerLosses(OnLost on_lost) override {
    auto* const flat = dynamic_cast<PeerLossSource*>(parts_.flat.get());
    if (flat != nullptr) flat->WatchPeerLosses(std::move(on_lost));
  }
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override {
    return parts_.local->AllocateBuffer(count, dtype);
  }

 protected:
  absl::Status CheckPlace(const Span& span) const override {
    return CheckOnHost(*this, span);
  }
  WorkPtr DoAllReduce(Span span, ReduceOp op) override {
    const CollectiveHeader header =
        HeaderOf(CollectiveKind::kAllReduce, span, op);
    if (IsSmall(span)) {
      return RunFlat(header, [=] { return parts_.flat->AllReduce(span, op); });
    }
    return RunLevels(header, [=] { return pieces_.AllReduce(span, op); });
  }
  WorkPtr DoAllReduceMean(std::vector<Span> parts, const Span& all) override {
    const CollectiveHeader header = HeaderOf(CollectiveKind::kMean, all);
    if (IsSmall(all)) {
      return RunFlat(
          header, [this, parts] { return parts_.flat->AllReduceMean(parts); });
    }
    Span first = parts[0];
    first.count = all.count;
    return RunLevels(header, [this, parts = std::move(parts), first] {
      return pieces_.AllReduceMean(parts, first);
    });
  }
  WorkPtr DoBroadcast(Span span, int root) override {
    const CollectiveHeader header =
        HeaderOf(CollectiveKind::kBroadcast, span, ReduceOp::kSum, root);
    if (IsSmall(span)) {
      return RunFlat(header,
                     [=] { return parts_.flat->Broadcast(span, root); });
    }
    return RunLevels(header, [=] { return pieces_.Broadcast(span, root); });
  }
  WorkPtr DoAgree(const CollectiveHeader& header) override {
    return RunFlat(header, [=] { return parts_.flat->Agree(header); });
  }
  WorkPtr DoAllGather(Span input, Span output) override {
    const CollectiveHeader header = HeaderOf(CollectiveKind::kAllGather, input);
    if (IsSmall(input) || !slices_.Bridges(header)) {
      return RunFlat(header,
                     [=] { return parts_.flat->AllGather(input, output); });
    }
    return RunLevels(header, [=] { return slices_.AllGather(input, output); });
  }
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override {
    const CollectiveHeader header =
        HeaderOf(CollectiveKind::kReduceScatter, input, op);
    if (IsSmall(output) || !slices_.Bridges(header)) {
      return RunFlat(header, [=] {
        return parts_.flat->ReduceScatter(input, output, op);
      });
    }
    return RunLevels(header,
                     [=] { return slices_.ReduceScatter(input, output, op); });
  }
  WorkPtr DoAllToAll(Span input, Span output) override {
    return RunFlat(HeaderOf(CollectiveKind::kAllToAll, input),
                   [=] { return parts_.flat->AllToAll(input, output); });
  }
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override {
    return Message([=] { return parts_.flat->Send(span, peer, tag); });
  }
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override {
    return Message([=] { return parts_.flat->Receive(span, peer, tag); });
  }
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  std::vector<Communicator*> All() const {
    std::vector<Communicator*> all = {parts_.local.get(), parts_.flat.get()};
    for (const auto& bridge : parts_.bridges) {
      if (bridge != nullptr) all.push_back(bridge.get());
    }
    return all;
  }
  Levels MakeLevels() {
    Levels levels = {parts_.local.get(),
                     {},
                     parts_.flat.get(),
                     parts_.hosts,
                     [this](const WorkPtr& work) { return Wait(work); },
                     [this](const absl::Status& why) { AbortParts(why); }};
    for (const auto& bridge : parts_.bridges) {
      levels.bridges.push_back(bridge.get());
    }
    return levels;
  }
  bool IsSmall(const Span& span) const {
    return span.bytes() * (size() - 1) <= kSmallBytes;
  }

  // Runs an operation of the parts in the order of this communicator's own.
  template <typename Operation>
  WorkPtr Run(const CollectiveHeader& header, Operation operation) {
    return executor_.RunInOrder([this, header, operation]() -> absl::Status {
      COXSWAIN_RETURN_IF_ERROR(Enter());
      const absl::Status status = operation();
      Leave();
      return Named(header, status);
    });
  }
  // Runs one of both levels once all ranks have agreed on it: the parts would
  // compare among the ranks of a host, or of a bridge.
  template <typename Operation>
  WorkPtr RunLevels(const CollectiveHeader& header, Operation operation) {
    return Run(header, [this, header, operation]() -> absl::Status {
      COXSWAIN_RETURN_IF_ERROR(Wait(parts_.flat->Agree(header)));
      return operation();
    });
  }
  // Runs one of the flat communicator alone. Where nothing is before it, that
  // begins it at once, and ends it on the thread that waits for it, if it can.
  template <typename Begin>
  WorkPtr RunFlat(const CollectiveHeader& header, Begin begin) {
    const auto begun = std::make_shared<WorkPtr>();
    WorkPtr work = executor_.TryRunAssisted(
        [&] {
          if (Enter().ok()) *begun = begin();
        },
        [this, header, begun](absl::Time until) -> std::optional<absl::Status> {
          if (*begun == nullptr) return absl::AbortedError("stopped");
          if (!IsDoneBy(*begun, until)) return std::nullopt;
          const absl::Status status = Wait(*begun);
          Leave();
          return Named(header, status);
        });
    if (work != nullptr) return work;
    return Run(header, [this, begin] { return Wait(begin()); });
  }
  static bool IsDoneBy(const WorkPtr& work, absl::Time until) {
    if (until == absl::InfiniteFuture()) return true;  // or is waited for
    work->Wait(until - Clock::Real()->Now()).IgnoreError();
    return work->Done();
  }
  // Begins a message of the flat communicator, which pairs by the order in
  // which messages are started, and whose memory is in use from then on until
  // the wait for it returns.
  template <typename Begin>
  WorkPtr Message(const Begin& begin) {
    const auto begun = std::make_shared<WorkPtr>();
    return executor_.RunBeside(
        [&]() -> absl::Status {
          COXSWAIN_RETURN_IF_ERROR(Enter());
          *begun = begin();
          return absl::OkStatus();
        },
        [this, begun] {
          absl::Status status = Wait(*begun);
          Leave();
          return status;
        });
  }
  // A part's error, by this communicator's rank.
  absl::Status Named(const CollectiveHeader& header,
                     const absl::Status& status) const {
    return WithPrefix(absl::StrCat(NameOf(header.kind), " of rank ", rank(),
                                   " of ", size(), " on several hosts: "),
                      status);
  }

  // Counts an operation that uses the parts; ABORTED once this has stopped.
  absl::Status Enter() {
    MutexLock lock(&mutex_);
    if (stopped_) return absl::AbortedError("stopped");
    ++running_;
    return absl::OkStatus();
  }
  void Leave() {
    MutexLock lock(&mutex_);
    --running_;
  }
  // Wakes what uses the parts. A rank that is destroyed with nothing in flight
  // leaves cleanly, and aborts nothing: what it has sent last may still
  // be on its way, which an abort's closed connections would cut off. The parts
  // close softly as they are destroyed.
  void Stop(const absl::Status& why) {
    bool in_good_order = false;
    {
      MutexLock lock(&mutex_);
      stopped_ = true;
      in_good_order = destroying_ && running_ == 0;
    }
    if (!in_good_order) AbortParts(why);
  }

  // A part's operation has ended when this returns, and no longer uses the
  // caller's memory.
  absl::Status Wait(const WorkPtr& work) {
    absl::Status status = work->Wait(timeout_ + kGrace);
    if (!work->Done()) {
      AbortParts(status);
      work->Wait(absl::InfiniteDuration()).IgnoreError();
    }
    return status;
  }
  void AbortParts(const absl::Status& why) const {
    for (Communicator* part : All()) part->Abort(why.message());
  }

  const TwoLevelParts parts_;
  const absl::Duration timeout_;
  const Levels levels_;
  Pieces pieces_;
  Slices slices_;
  Mutex mutex_;
  bool destroying_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  Executor executor_;
};

absl::StatusOr<std::unique_ptr<Communicator>> TwoLevelCommunicator::DoSplit(
    const std::vector<int>& ranks) {
  std::vector<int> host_of;
  for (const int one : ranks) host_of.push_back(parts_.hosts.host_of(one));
  TwoLevelParts child = {nullptr, nullptr, {}, Hosts(host_of)};
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  const int own = static_cast<int>(self - ranks.begin());
  std::vector<int> places;
  for (const int one : child.hosts.ranks(child.hosts.host_of(own))) {
    places.push_back(parts_.hosts.local_rank(ranks[static_cast<size_t>(one)]));
  }
  if (child.hosts.count() == 1) return parts_.local->Split(places);
  if (child.hosts.count() == static_cast<int>(ranks.size())) {
    return parts_.flat->Split(ranks);
  }
  COXSWAIN_ASSIGN_OR_RETURN(child.flat, parts_.flat->Split(ranks));
  COXSWAIN_ASSIGN_OR_RETURN(child.local, parts_.local->Split(places));
  COXSWAIN_RETURN_IF_ERROR(SplitBridges(&child));
  return MakeTwoLevel(std::move(child), timeout_);
}

}  // namespace

absl::Status SplitBridges(TwoLevelParts* parts) {
  const Hosts& hosts = parts->hosts;
  const int rank = parts->flat->rank();
  for (int index = 0; index < hosts.bridges(); ++index) {
    parts->bridges.emplace_back();
    const std::vector<int> ranks = hosts.bridge(index);
    if (std::count(ranks.begin(), ranks.end(), rank) == 0) continue;
    COXSWAIN_ASSIGN_OR_RETURN(parts->bridges.back(), parts->flat->Split(ranks));
  }
  return absl::OkStatus();
}

std::unique_ptr<Communicator> MakeTwoLevel(TwoLevelParts parts,
                                           absl::Duration timeout) {
  return std::make_unique<TwoLevelCommunicator>(std::move(parts), timeout);
}

}  // namespace coxswain
