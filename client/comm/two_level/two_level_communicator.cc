#include "client/comm/two_level/two_level_communicator.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/back_end.h"
#include "client/comm/collective_header.h"
#include "client/comm/communicator.h"
#include "client/comm/executor.h"

namespace coxswain {
namespace {

// A part names who is late at its own deadline, which is the same: it comes
// first.
constexpr absl::Duration kGrace = absl::Seconds(10);
// Of one rank's memory: large against what a message costs, small against what
// a bucket holds.
constexpr int64_t kPieceBytes = 4 << 20;

class TwoLevelCommunicator : public Communicator, public PeerLossSource {
 public:
  TwoLevelCommunicator(TwoLevelParts parts, absl::Duration timeout)
      : Communicator(parts.flat->rank(), parts.flat->size()),
        parts_(std::move(parts)),
        timeout_(timeout),
        executor_([this](const absl::Status& why) { Stop(why); }) {}
  ~TwoLevelCommunicator() override {
    MutexLock lock(&mutex_);
    destroying_ = true;
  }

  absl::string_view backend() const override { return "two_level"; }
  void Abort(absl::string_view reason) override { executor_.Abort(reason); }
  int64_t wire_bytes() const override {
    int64_t bytes = 0;
    for (const Communicator* part : All()) bytes += part->wire_bytes();
    return bytes;
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
    return Run(NameOf(header.kind), [=]() -> absl::Status {
      // The parts would compare among the ranks of one host, or of one place.
      COXSWAIN_RETURN_IF_ERROR(Wait(parts_.flat->Agree(header)));
      return AllReducePieces(span, op);
    });
  }
  WorkPtr DoBroadcast(Span span, int root) override {
    return Run("broadcast",
               [=] { return Wait(parts_.flat->Broadcast(span, root)); });
  }
  WorkPtr DoAgree(const CollectiveHeader& header) override {
    return Run(NameOf(header.kind),
               [=] { return Wait(parts_.flat->Agree(header)); });
  }
  WorkPtr DoAllGather(Span input, Span output) override {
    return Run("all-gather",
               [=] { return Wait(parts_.flat->AllGather(input, output)); });
  }
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override {
    return Run("reduce-scatter", [=] {
      return Wait(parts_.flat->ReduceScatter(input, output, op));
    });
  }
  WorkPtr DoAllToAll(Span input, Span output) override {
    return Run("all-to-all",
               [=] { return Wait(parts_.flat->AllToAll(input, output)); });
  }
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override {
    return Message([=] { return parts_.flat->Send(span, peer, tag); });
  }
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override {
    return Message([=] { return parts_.flat->Receive(span, peer, tag); });
  }
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override {
    const Hosts& hosts = parts_.hosts;
    std::vector<int> places;
    for (const int one : ranks) {
      if (hosts.host_of(one) != hosts.host_of(rank())) {
        return parts_.flat->Split(ranks);
      }
      places.push_back(hosts.local_rank(one));
    }
    return parts_.local->Split(places);
  }

 private:
  std::vector<Communicator*> All() const {
    return {parts_.local.get(), parts_.across.get(), parts_.flat.get()};
  }

  // Runs an operation of the parts in the order of this communicator's own.
  template <typename Operation>
  WorkPtr Run(absl::string_view what, Operation operation) {
    return executor_.RunInOrder([this, what, operation]() -> absl::Status {
      COXSWAIN_RETURN_IF_ERROR(Enter());
      const absl::Status status = operation();
      Leave();
      return Named(what, status);
    });
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
          const absl::Status status = Wait(*begun);
          Leave();
          return status;
        });
  }
  // A part's error, by this communicator's rank.
  absl::Status Named(absl::string_view what, const absl::Status& status) const {
    return WithPrefix(absl::StrCat(what, " of rank ", rank(), " of ", size(),
                                   " on several hosts: "),
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

  // A piece on its way: which operation of the three comes next.
  struct Piece {
    Span span;
    Span slice;
    WorkPtr work;
  };
  absl::Status AllReducePieces(const Span& span, ReduceOp op);
  absl::Status AllReduceRest(const Span& rest, ReduceOp op);
  absl::Status RunPieces(const Span& span, ReduceOp op, Piece* crossing);

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
  Mutex mutex_;
  bool destroying_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  Executor executor_;
};

absl::Status TwoLevelCommunicator::AllReducePieces(const Span& span,
                                                   ReduceOp op) {
  Piece crossing;
  absl::Status status = RunPieces(span, op, &crossing);
  if (!status.ok() && crossing.work != nullptr) {
    // It would wait for a host that is lost.
    if (!absl::IsInvalidArgument(status)) AbortParts(status);
    Wait(crossing.work).IgnoreError();
  }
  return status;
}

// While one piece is between the hosts, the next one is reduced within, and the
// one before is gathered. The local operations' order is the same on all ranks.
absl::Status TwoLevelCommunicator::RunPieces(const Span& span, ReduceOp op,
                                             Piece* in_flight) {
  Piece& crossing = *in_flight;
  const int64_t ranks = parts_.local->size();
  const int64_t even = span.count / ranks * ranks;
  const int64_t each =
      std::max<int64_t>(
          kPieceBytes / static_cast<int64_t>(SizeOf(span.dtype)) / ranks, 1) *
      ranks;
  for (int64_t begin = 0; begin < even || crossing.work != nullptr;
       begin += each) {
    Piece next;
    if (begin < even) {
      next.span = span.Slice(begin, std::min(each, even - begin));
      const int64_t slice = next.span.count / ranks;
      next.slice = next.span.Slice(parts_.local->rank() * slice, slice);
      COXSWAIN_RETURN_IF_ERROR(
          Wait(parts_.local->ReduceScatter(next.span, next.slice, op)));
    }
    const Piece crossed = std::move(crossing);
    crossing = Piece();
    if (crossed.work != nullptr) COXSWAIN_RETURN_IF_ERROR(Wait(crossed.work));
    if (next.span.count > 0) {
      crossing = next;
      crossing.work = parts_.across->AllReduce(next.slice, op);
    }
    if (crossed.work != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(
          Wait(parts_.local->AllGather(crossed.slice, crossed.span)));
    }
  }
  return even == span.count
             ? absl::OkStatus()
             : AllReduceRest(span.Slice(even, span.count - even), op);
}

// Fewer elements than ranks: each place's group computes the same.
absl::Status TwoLevelCommunicator::AllReduceRest(const Span& rest,
                                                 ReduceOp op) {
  COXSWAIN_RETURN_IF_ERROR(Wait(parts_.local->AllReduce(rest, op)));
  return Wait(parts_.across->AllReduce(rest, op));
}

}  // namespace

std::unique_ptr<Communicator> MakeTwoLevel(TwoLevelParts parts,
                                           absl::Duration timeout) {
  return std::make_unique<TwoLevelCommunicator>(std::move(parts), timeout);
}

}  // namespace coxswain
