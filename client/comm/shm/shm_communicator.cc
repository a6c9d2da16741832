#include "client/comm/shm/shm_communicator.h"

#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/comm/back_end.h"
#include "client/comm/collective_header.h"
#include "client/comm/executor.h"
#include "client/comm/host_communicator.h"
#include "client/comm/shm/inbox.h"
#include "client/comm/shm/peers.h"
#include "client/comm/shm/segment.h"
#include "client/comm/shm/shm_channels.h"
#include "client/comm/shm/shm_collectives.h"

namespace coxswain {
namespace {

// Rank 0's segment with the shared area; buffers count from 1.
constexpr uint64_t kAreaId = 0;

// The first reason why a communicator can go on no longer, but for an abort of
// its own. Thread-safe.
class Loss {
 public:
  void Set(const absl::Status& why) {
    MutexLock lock(&mutex_);
    if (why_.ok()) why_ = why;
  }
  absl::Status status() const {
    MutexLock lock(&mutex_);
    return why_;
  }

 private:
  mutable Mutex mutex_;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

// Whose processes have ended without a word. Thread-safe.
class GonePeers {
 public:
  // A peer has announced its end: it is not a loss.
  void Excuse(int peer) {
    MutexLock lock(&mutex_);
    excused_.insert(peer);
  }
  void Add(int peer) {
    PeerLossSource::OnLost tell;
    {
      MutexLock lock(&mutex_);
      if (excused_.count(peer) > 0) return;
      gone_.push_back(peer);
      tell = on_lost_;
    }
    if (tell != nullptr) tell(peer);
  }
  void Watch(PeerLossSource::OnLost on_lost) {
    std::vector<int> gone;
    {
      MutexLock lock(&mutex_);
      on_lost_ = on_lost;
      gone = gone_;
    }
    for (const int peer : gone) on_lost(peer);
  }

 private:
  Mutex mutex_;
  PeerLossSource::OnLost on_lost_ ABSL_GUARDED_BY(mutex_);
  std::set<int> excused_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> gone_ ABSL_GUARDED_BY(mutex_);
};

class ShmCommunicator : public HostCommunicator, public PeerLossSource {
 public:
  ShmCommunicator(const CommunicatorOptions& options,
                  std::unique_ptr<Peers> peers,
                  std::shared_ptr<ByteCounter> parents_moved)
      : HostCommunicator(options.rank, options.size),
        options_(options),
        name_(absl::StrCat("communicator '", options.id, "'")),
        moved_(std::make_shared<ByteCounter>(std::move(parents_moved))),
        peers_(std::move(peers)),
        channels_(
            options.rank, options.size, name_,
            [this](int peer, const PeerFrame& frame, int fd) {
              return peers_->Send(peer, frame, fd);
            },
            moved_) {}
  ~ShmCommunicator() override {
    arena_->Close();
    link_.reset();
    // No handler runs while what it uses goes.
    executor_.reset();
    peers_.reset();
  }

  // Shares the area; the communicator can be used after that.
  absl::Status Open();

  absl::string_view backend() const override { return "shm"; }
  void Abort(absl::string_view reason) override { executor_->Abort(reason); }
  int64_t wire_bytes() const override { return moved_->bytes(); }
  void WatchPeerLosses(OnLost on_lost) override {
    gone_.Watch(std::move(on_lost));
  }
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override {
    if (count < 0) return Communicator::AllocateBuffer(count, dtype);
    return arena_->Allocate(count, dtype);
  }

 protected:
  WorkPtr Start(const HostOperation& given) override;
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override;
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override;
  absl::StatusOr<std::unique_ptr<ChannelSender>> DoOpenSender(
      const ChannelOptions& options) override {
    return channels_.OpenSender(options);
  }
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> DoOpenReceiver(
      const ChannelOptions& options) override {
    return channels_.OpenReceiver(options);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  // Rank 0 makes the area and shows it to the others.
  absl::Status ShareArea();
  void OnFrame(int peer, const PeerFrame& frame, UniqueFd fd);
  void Lose(int peer, const absl::Status& why);
  void Stop(const absl::Status& why);
  absl::Status AnnounceSegment(uint64_t id, const Segment& segment);
  void Forget(uint64_t id);
  absl::StatusOr<std::shared_ptr<char>> Resolve(int peer, uint64_t segment,
                                                int64_t offset, int64_t bytes);
  // Of an operation that was woken: why.
  absl::Status Explain(absl::Status status) const {
    if (!absl::IsAborted(status)) return status;
    const absl::Status lost = loss_.status();
    if (lost.ok()) return status;
    return absl::Status(lost.code(), absl::StrCat("rank ", rank(), " of ",
                                                  name_, ": ", lost.message()));
  }

  const CommunicatorOptions options_;  // for those split off
  const std::string name_;
  const std::shared_ptr<ByteCounter> moved_;
  std::unique_ptr<Peers> peers_;
  ShmChannels channels_;
  Inbox inbox_;
  Loss loss_;
  GonePeers gone_;
  Segment area_;
  std::unique_ptr<Phases> phases_;
  std::unique_ptr<ShmCollectives> collectives_;
  std::shared_ptr<Arena> arena_;
  std::atomic<uint64_t> next_message_{1};
  std::map<std::vector<int>, int64_t> splits_;  // how often each list was
  // Raised with the first reason why this one can go on no longer: those that
  // are being split off it are not waited for.
  CancelSignal useless_;
  // Raised when the executor stops.
  const std::shared_ptr<CancelSignal> ended_ = std::make_shared<CancelSignal>();
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<SplitLink> link_;  // where this one was split off another
};

absl::Status ShmCommunicator::Open() {
  Arena::Links links;
  links.announce = [this](uint64_t id, const Segment& segment) {
    return AnnounceSegment(id, segment);
  };
  links.forget = [this](uint64_t id) { Forget(id); };
  arena_ = std::make_shared<Arena>(std::move(links));
  executor_ = std::make_unique<Executor>(
      [this](const absl::Status& why) { Stop(why); });
  COXSWAIN_RETURN_IF_ERROR(ShareArea());
  const SharedArea shared(area_.data());
  phases_ = std::make_unique<Phases>(shared.lines(), SharedArea::kStride,
                                     rank(), size());
  collectives_ = std::make_unique<ShmCollectives>(
      shared, phases_.get(), rank(), size(), name_, options_.timeout,
      [this](int peer, uint64_t segment, int64_t offset, int64_t count) {
        return Resolve(peer, segment, offset, count);
      },
      moved_);
  Peers::Handlers handlers;
  handlers.on_frame = [this](int peer, const PeerFrame& frame, UniqueFd fd) {
    OnFrame(peer, frame, std::move(fd));
  };
  handlers.on_lost = [this](int peer, const absl::Status& why) {
    gone_.Add(peer);
    Lose(peer, why);
  };
  peers_->Start(std::move(handlers));
  return absl::OkStatus();
}

absl::Status ShmCommunicator::ShareArea() {
  const int64_t bytes = SharedArea::BytesFor(size());
  if (rank() == 0) {
    COXSWAIN_ASSIGN_OR_RETURN(area_, Segment::Create(bytes));
    return AnnounceSegment(kAreaId, area_);
  }
  COXSWAIN_ASSIGN_OR_RETURN(Peers::Received first,
                            peers_->ReceiveFirst(options_, 0));
  // Ranks with groups of different sizes fail here.
  COXSWAIN_ASSIGN_OR_RETURN(area_, Segment::Map(std::move(first.fd), bytes));
  return absl::OkStatus();
}

void ShmCommunicator::OnFrame(int peer, const PeerFrame& frame, UniqueFd fd) {
  if (frame.kind == PeerFrame::Kind::kAbort) {
    gone_.Excuse(peer);
    return Lose(peer,
                absl::UnavailableError(absl::StrCat(
                    "rank ", peer, " aborted the communicator: ", frame.text)));
  }
  const absl::Status status = ShmChannels::Takes(frame.kind)
                                  ? channels_.Take(peer, frame, std::move(fd))
                                  : inbox_.Take(peer, frame, std::move(fd));
  if (status.ok()) return;
  // Whatever it was: no error of a caller's here.
  Lose(peer, absl::UnavailableError(
                 absl::StrCat("rank ", peer, " is gone: ", status.message())));
}

void ShmCommunicator::Lose(int peer, const absl::Status& why) {
  loss_.Set(why);
  channels_.Lose(peer, why);
  useless_.Raise(why);
  phases_->Stop();
  inbox_.Stop();
}

void ShmCommunicator::Stop(const absl::Status& why) {
  if (phases_ != nullptr) phases_->Stop();
  inbox_.Stop();
  channels_.Stop(why);
  peers_->AnnounceEnd(why.message());
  useless_.Raise(why);
  ended_->Raise(why);
}

absl::Status ShmCommunicator::AnnounceSegment(uint64_t id,
                                              const Segment& segment) {
  PeerFrame frame;
  frame.kind = PeerFrame::Kind::kSegment;
  frame.id = id;
  frame.bytes = segment.bytes();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    COXSWAIN_RETURN_IF_ERROR(peers_->Send(peer, frame, segment.fd()));
  }
  return absl::OkStatus();
}

void ShmCommunicator::Forget(uint64_t id) {
  PeerFrame frame;
  frame.kind = PeerFrame::Kind::kForget;
  frame.id = id;
  for (int peer = 0; peer < size(); ++peer) {
    // A peer that is gone has forgotten.
    if (peer != rank()) peers_->Send(peer, frame).IgnoreError();
  }
}

absl::StatusOr<std::shared_ptr<char>> ShmCommunicator::Resolve(int peer,
                                                               uint64_t segment,
                                                               int64_t offset,
                                                               int64_t bytes) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::shared_ptr<Segment> memory,
      inbox_.AwaitSegment(peer, segment, options_.timeout));
  if (offset < 0 || bytes > memory->bytes() ||
      offset > memory->bytes() - bytes) {
    return absl::InternalError(absl::StrCat(
        "rank ", peer, " of ", name_, " offers ", bytes, " bytes at ", offset,
        " of a buffer of ", memory->bytes()));
  }
  return std::shared_ptr<char>(memory, memory->data() + offset);
}

WorkPtr ShmCommunicator::Start(const HostOperation& given) {
  ShmCollectives::Operation operation{given};
  if (collectives_->IsSmall(operation)) {
    WorkPtr work = executor_->TryRunAssisted(
        [&] { collectives_->Begin(operation); },
        [this, operation](absl::Time until) -> std::optional<absl::Status> {
          auto status = collectives_->TryFinish(operation, until);
          if (status.has_value()) status = Explain(*std::move(status));
          return status;
        });
    if (work != nullptr) return work;
  } else if (operation.runs == nullptr) {
    const Arena::Location location = arena_->Find(operation.input);
    operation.segment = location.segment;
    operation.offset = location.offset;
  }
  return executor_->RunInOrder(
      [this, operation] { return Explain(collectives_->Run(operation)); });
}

WorkPtr ShmCommunicator::DoSend(Span span, int peer, uint32_t tag) {
  if (span.count == 0) return executor_->Nothing();
  const uint64_t id = next_message_.fetch_add(1);
  return executor_->RunBeside(
      [=]() -> absl::Status {
        COXSWAIN_ASSIGN_OR_RETURN(const Segment copy,
                                  Segment::Create(span.bytes()));
        std::memcpy(copy.data(), span.data, static_cast<size_t>(span.bytes()));
        PeerFrame frame;
        frame.kind = PeerFrame::Kind::kMessage;
        frame.tag = tag;
        frame.id = id;
        frame.bytes = span.bytes();
        moved_->Add(span.bytes());
        return Explain(peers_->Send(peer, frame, copy.fd()));
      },
      [=] { return Explain(inbox_.AwaitTaken(peer, id, options_.timeout)); });
}

WorkPtr ShmCommunicator::DoReceive(Span span, int peer, uint32_t tag) {
  if (span.count == 0) return executor_->Nothing();
  const uint64_t ticket = inbox_.TakeTicket(peer, tag);
  return executor_->RunBeside(
      [] { return absl::OkStatus(); },
      [=]() -> absl::Status {
        auto message = inbox_.AwaitMessage(peer, tag, ticket, options_.timeout);
        if (!message.ok()) return Explain(message.status());
        PeerFrame taken;
        taken.kind = PeerFrame::Kind::kTaken;
        taken.id = message->id;
        if (message->bytes == span.bytes()) {
          std::memcpy(span.data, message->memory.data(),
                      static_cast<size_t>(span.bytes()));
        }
        COXSWAIN_RETURN_IF_ERROR(Explain(peers_->Send(peer, taken)));
        if (message->bytes == span.bytes()) return absl::OkStatus();
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", peer, " of ", name_, " sent ", message->bytes,
                         " bytes with tag ", tag, ", and ", span.bytes(),
                         " are to be received"));
      });
}

absl::StatusOr<std::unique_ptr<Communicator>> ShmCommunicator::DoSplit(
    const std::vector<int>& ranks) {
  if (absl::Status why = ended_->status(); !why.ok()) return why;
  if (absl::Status lost = loss_.status(); !lost.ok()) return lost;
  CommunicatorOptions options = SplitOptions(options_, ranks, splits_[ranks]++);
  options.cancel = &useless_;
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Peers> peers,
                            Peers::Connect(options));
  auto child =
      std::make_unique<ShmCommunicator>(options, std::move(peers), moved_);
  COXSWAIN_RETURN_IF_ERROR(child->Open());
  child->link_ = std::make_unique<SplitLink>(
      ended_, [executor = child->executor_.get()](absl::string_view why) {
        executor->Abort(why);
      });
  return child;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectShm(
    const CommunicatorOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(CheckGroupOptions(options, "shm"));
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Peers> peers,
                            Peers::Connect(options));
  auto communicator =
      std::make_unique<ShmCommunicator>(options, std::move(peers), nullptr);
  COXSWAIN_RETURN_IF_ERROR(communicator->Open());
  return communicator;
}

}  // namespace coxswain
