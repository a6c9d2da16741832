#include "client/comm/tcp/tcp_communicator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/back_end.h"
#include "client/comm/collective_header.h"
#include "client/comm/data_key.h"
#include "client/comm/executor.h"
#include "client/comm/host_communicator.h"
#include "client/comm/hosts.h"
#include "client/comm/measured_links.h"
#include "client/comm/tcp/connections.h"
#include "client/comm/tcp/data_paths.h"
#include "client/comm/tcp/link_probe.h"
#include "client/comm/tcp/peer_ends.h"
#include "client/comm/tcp/ring_choice.h"
#include "client/comm/tcp/ring_order.h"
#include "client/comm/tcp/tcp_collectives.h"
#include "client/comm/tcp/tcp_messages.h"

namespace coxswain {
namespace {

// How long a collective whose peer is gone waits to learn why, where the peer's
// reason, on another connection, has not arrived before.
constexpr absl::Duration kReason = absl::Milliseconds(50);

class TcpCommunicator : public HostCommunicator, public PeerLossSource {
 public:
  TcpCommunicator(const CommunicatorOptions& options, const TcpTuning& tuning,
                  TcpConnections connections,
                  std::shared_ptr<ByteCounter> parents_sent)
      : HostCommunicator(options.rank, options.size),
        options_(options),
        tuning_(tuning),
        name_(absl::StrCat("communicator '", options.id, "'")),
        sent_(std::make_shared<ByteCounter>(std::move(parents_sent))) {
    std::vector<TcpStream> control;
    std::vector<std::vector<TcpStream>> data;
    for (TcpLinks& links : connections.links) {
      control.push_back(std::move(links.control));
      data.push_back(std::move(links.data));
    }
    host_ids_ = std::move(connections.host_ids);
    const Hosts hosts = HostsOf(host_ids_);
    const auto ranks_here = hosts.ranks(hosts.host_of(rank())).size();
    messages_.emplace(std::move(control), rank(), name_, sent_, &ends_);
    paths_.emplace(std::move(data), static_cast<int>(ranks_here), sent_,
                   [this](int peer, const absl::Status& status) {
                     return WhyGone(peer, status);
                   });
    executor_ = std::make_unique<Executor>(
        [this](const absl::Status& why) { Stop(why); });
  }
  ~TcpCommunicator() override {
    link_.reset();
    // Nothing runs while what it uses goes.
    executor_.reset();
  }

  // The communicator can be used after that. `parent` ends it; it may be null.
  absl::Status Open(CancelSignal* parent);

  absl::string_view backend() const override { return "tcp"; }
  void Abort(absl::string_view reason) override { executor_->Abort(reason); }
  int64_t wire_bytes() const override { return sent_->bytes(); }
  void WatchPeerLosses(OnLost on_lost) override { ends_.Watch(on_lost); }

 protected:
  WorkPtr Start(const HostOperation& operation) override;
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override {
    return Message(/*sends=*/true, span, peer, tag);
  }
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override {
    return Message(/*sends=*/false, span, peer, tag);
  }
  absl::StatusOr<std::unique_ptr<ChannelSender>> DoOpenSender(
      const ChannelOptions& options) override {
    return messages_->channels().OpenSender(options);
  }
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> DoOpenReceiver(
      const ChannelOptions& options) override {
    return messages_->channels().OpenReceiver(options);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  WorkPtr Message(bool sends, const Span& span, int peer, uint32_t tag);
  absl::StatusOr<RingChoice> AgreeOnRing();
  absl::Status WhyGone(int peer, const absl::Status& status);
  void Stop(const absl::Status& why);

  const CommunicatorOptions options_;  // for those split off
  const TcpTuning tuning_;
  const std::string name_;
  const std::shared_ptr<ByteCounter> sent_;
  std::vector<uint64_t> host_ids_;  // by rank
  PeerEnds ends_;
  std::optional<TcpMessages> messages_;
  std::optional<DataPaths> paths_;
  std::optional<TcpCollectives> collectives_;
  std::map<std::vector<int>, int64_t> splits_;  // how often each list was
  // Raised when the executor stops.
  const std::shared_ptr<CancelSignal> ended_ = std::make_shared<CancelSignal>();
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<LinkProbe> probe_;  // waits for messages
  std::unique_ptr<SplitLink> link_;   // where this one was split off another
};

absl::Status TcpCommunicator::Open(CancelSignal* parent) {
  COXSWAIN_RETURN_IF_ERROR(messages_->Start());
  absl::StatusOr<RingChoice> choice;
  {
    // The signal outlives this.
    const std::shared_ptr<CancelSignal> signal(parent, [](CancelSignal*) {});
    std::optional<SplitLink> while_agreeing;
    if (parent != nullptr) {
      while_agreeing.emplace(
          signal, [this](absl::string_view why) { executor_->Abort(why); });
    }
    choice = AgreeOnRing();
  }
  if (parent != nullptr) COXSWAIN_RETURN_IF_ERROR(parent->status());
  COXSWAIN_RETURN_IF_ERROR(choice.status());
  collectives_.emplace(&*paths_, RingRanks(std::move(choice->ranks)), rank(),
                       name_, options_.timeout, tuning_);
  if (choice->measures) {
    probe_ = std::make_unique<LinkProbe>(&*messages_, rank(), host_ids_, ended_,
                                         options_.links, LinkProbe::Timeouts());
  }
  return absl::OkStatus();
}

absl::StatusOr<RingChoice> TcpCommunicator::AgreeOnRing() {
  RingChoice choice;
  choice.ranks = tuning_.ring;
  if (!tuning_.ring.empty()) return choice;
  const Hosts hosts = HostsOf(host_ids_);
  choice.ranks = RingByRank(hosts);
  if (hosts.count() < kHostsToOrder) return choice;
  if (rank() == 0 && options_.links != nullptr) {
    choice = ChooseRing(host_ids_, options_.links->costs());
    choice.measures =
        options_.measures_links && hosts.count() <= kMaxHostsToOrder;
    options_.links->NoteRing(absl::StrCat(name_, ": ", Describe(choice)));
  }
  COXSWAIN_RETURN_IF_ERROR(WithPrefix(
      absl::StrCat("agreeing on the ring of ", name_, ": "),
      ShareChoice(&*messages_, rank(), &choice,
                  std::min(options_.timeout, options_.connect_timeout))));
  return choice;
}

WorkPtr TcpCommunicator::Start(const HostOperation& operation) {
  if (collectives_->IsSmall(operation)) {
    WorkPtr work = executor_->TryRunAssisted(
        [&] { collectives_->Begin(operation); },
        [this, operation](absl::Time until) {
          return collectives_->TryFinish(operation, until);
        });
    if (work != nullptr) return work;
  }
  return executor_->RunInOrder(
      [this, operation] { return collectives_->Run(operation); });
}

WorkPtr TcpCommunicator::Message(bool sends, const Span& span, int peer,
                                 uint32_t tag) {
  if (tag == TcpMessages::kOwnTag) {
    return Work::Ended(absl::InvalidArgumentError(
        absl::StrCat("tag ", tag, " is the tcp back end's own; use another")));
  }
  if (span.count == 0) return executor_->Nothing();
  const auto message = std::make_shared<TcpMessages::MessagePtr>();
  return executor_->RunBeside(
      [&] {
        *message = sends ? messages_->PostSend(peer, tag, span)
                         : messages_->PostReceive(peer, tag, span);
        return absl::OkStatus();
      },
      [=] {
        return WithPrefix(
            absl::StrCat(sends ? "send" : "receive", " of rank ", rank(),
                         " of ", name_, ", tag ", tag, ": "),
            messages_->Await(*message, options_.timeout));
      });
}

absl::Status TcpCommunicator::WhyGone(int peer, const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  messages_->Look(peer);
  absl::Status why = ends_.Await(peer, kReason);
  if (!why.ok()) return why;
  return WithPrefix(absl::StrCat("rank ", peer, " is gone: "), status);
}

void TcpCommunicator::Stop(const absl::Status& why) {
  ends_.Stop();
  messages_->Stop(why.message());
  paths_->Stop();
  ended_->Raise(why);
}

absl::StatusOr<std::unique_ptr<Communicator>> TcpCommunicator::DoSplit(
    const std::vector<int>& ranks) {
  if (absl::Status why = ended_->status(); !why.ok()) return why;
  CommunicatorOptions options = SplitOptions(options_, ranks, splits_[ranks]++);
  // Those who do not come any more are not waited for.
  const auto useless = std::make_shared<CancelSignal>();
  const uint64_t watch =
      ended_->OnRaise([useless, ended = std::weak_ptr<CancelSignal>(ended_)] {
        if (const auto raised = ended.lock()) useless->Raise(raised->status());
      });
  ends_.Guard(ranks, useless);
  options.cancel = useless.get();
  absl::StatusOr<TcpConnections> connections =
      ConnectRanks(options, tuning_.stripes, tuning_.host_id);
  ends_.Guard({}, nullptr);
  ended_->Forget(watch);
  if (!connections.ok()) return connections.status();
  options.cancel = nullptr;  // not looked at later
  TcpTuning tuning = tuning_;
  tuning.ring.clear();
  auto child = std::make_unique<TcpCommunicator>(
      options, tuning, *std::move(connections), sent_);
  COXSWAIN_RETURN_IF_ERROR(child->Open(ended_.get()));
  child->link_ = std::make_unique<SplitLink>(
      ended_, [executor = child->executor_.get()](absl::string_view why) {
        executor->Abort(why);
      });
  return child;
}

// A rank that is to encrypt never falls back to plain text. Without a key it is
// UNAVAILABLE, as the next generation may have one: an elastic job goes on.
absl::Status CheckDataKey(const CommunicatorOptions& options) {
  if (!options.encrypts) return absl::OkStatus();
  if (options.data_key == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "communicator '", options.id,
        "' is to be encrypted, and the coordinator has given rank ",
        options.rank,
        " no key: it has lost it in a restart while the generation began, is "
        "of an earlier version, or something between it and this worker ends "
        "TLS on another host. Start the job again, or set COXSWAIN_PLAIN_DATA "
        "on all workers"));
  }
  if (options.data_key->secret().size() == DataKey::kBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "communicator '", options.id, "': its key has ",
      options.data_key->secret().size(), " bytes, and not ", DataKey::kBytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectTcp(
    const CommunicatorOptions& options) {
  return ConnectTcpTuned(options, TcpTuning());
}

absl::StatusOr<std::unique_ptr<Communicator>> ConnectTcpTuned(
    const CommunicatorOptions& options, const TcpTuning& tuning) {
  COXSWAIN_RETURN_IF_ERROR(CheckGroupOptions(options, "tcp"));
  COXSWAIN_RETURN_IF_ERROR(CheckDataKey(options));
  COXSWAIN_ASSIGN_OR_RETURN(
      TcpConnections connections,
      ConnectRanks(options, tuning.stripes, tuning.host_id));
  auto communicator = std::make_unique<TcpCommunicator>(
      options, tuning, std::move(connections), nullptr);
  COXSWAIN_RETURN_IF_ERROR(communicator->Open(options.cancel));
  return communicator;
}

}  // namespace coxswain
