#include "client/comm/gloo/gloo_communicator.h"

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/executor.h"
#include "client/comm/gloo/collectives.h"
#include "client/comm/gloo/gloo_status.h"
#include "client/comm/gloo/header_exchange.h"
#include "client/comm/gloo/rendezvous.h"
#include "client/comm/gloo/transport_control.h"
#include "client/comm/group_options.h"
#include "client/comm/host_span.h"
#include "client/comm/peer_loss.h"
#include "client/comm/split_link.h"

namespace coxswain {
namespace {

// Closes the connections of an aborted communicator, so that its peers do not
// wait for it: on a thread of its own, as gloo's event loop has to agree.
class Closer {
 public:
  explicit Closer(GlooContext context) : context_(std::move(context)) {}
  ~Closer() {
    if (thread_.joinable()) thread_.join();
  }

  // At most once.
  void Start() {
    thread_ = std::thread([context = context_] {
      CallGloo("closing", [&] { context->closeConnections(); }).IgnoreError();
    });
  }

 private:
  const GlooContext context_;
  std::thread thread_;
};

class GlooCommunicator : public Communicator, public PeerLossSource {
 public:
  GlooCommunicator(const CommunicatorOptions& options, GlooContext context,
                   std::shared_ptr<TransportControl> control)
      : Communicator(options.rank, options.size),
        options_(options),
        name_(absl::StrCat("rank ", options.rank, " of communicator '",
                           options.id, "'")),
        context_(std::move(context)),
        control_(std::move(control)),
        headers_(context_, absl::StrCat("communicator '", options.id, "'")),
        closer_(context_),
        executor_([this](const absl::Status& why) {
          control_->Interrupt();
          if (!destroying_.load()) closer_.Start();
          ended_->Raise(why);
        }) {}
  // What was sent still arrives then: gloo closes softly when it goes.
  ~GlooCommunicator() override { destroying_.store(true); }

  absl::string_view backend() const override { return "gloo"; }
  void Abort(absl::string_view reason) override { executor_.Abort(reason); }
  int64_t wire_bytes() const override { return control_->sent_bytes(); }
  void TellPeerLosses(OnLost on_lost) override {
    control_->TellLosses(std::move(on_lost));
  }

 protected:
  absl::Status CheckPlace(const Span& span) const override {
    return CheckOnHost(*this, span);
  }
  WorkPtr DoAllReduce(Span span, ReduceOp op) override {
    return Run(HeaderOf(CollectiveKind::kAllReduce, span, op),
               [=](uint32_t tag) { GlooAllReduce(context_, tag, span, op); });
  }
  WorkPtr DoBroadcast(Span span, int root) override {
    return Run(HeaderOf(CollectiveKind::kBroadcast, span, ReduceOp::kSum, root),
               [=](uint32_t tag) { GlooBroadcast(context_, tag, span, root); });
  }
  WorkPtr DoAllGather(Span input, Span output) override {
    return Run(HeaderOf(CollectiveKind::kAllGather, input), [=](uint32_t tag) {
      GlooAllGather(context_, tag, input, output);
    });
  }
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override {
    return Run(HeaderOf(CollectiveKind::kReduceScatter, input, op),
               [=](uint32_t tag) {
                 GlooReduceScatter(context_, tag, input, output, op);
               });
  }
  WorkPtr DoAllToAll(Span input, Span output) override {
    return Run(HeaderOf(CollectiveKind::kAllToAll, input), [=](uint32_t tag) {
      GlooAllToAll(context_, tag, input, output);
    });
  }
  // Once all headers are here, all ranks have come.
  WorkPtr DoAgree(const CollectiveHeader& header) override {
    return Run(header, [](uint32_t) {});
  }
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override {
    return Message("send", /*is_sender=*/true, span, peer, tag);
  }
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override {
    return Message("receive", /*is_sender=*/false, span, peer, tag);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override {
    if (absl::Status why = ended_->status(); !why.ok()) return why;
    CommunicatorOptions options =
        SplitOptions(options_, ranks, splits_[ranks]++);
    options.cancel = ended_.get();
    auto control = std::make_shared<TransportControl>(control_);
    COXSWAIN_ASSIGN_OR_RETURN(GlooContext context,
                              ConnectFullMesh(options, control));
    auto child = std::make_unique<GlooCommunicator>(options, std::move(context),
                                                    std::move(control));
    child->link_ = std::make_unique<SplitLink>(
        ended_, [executor = &child->executor_](absl::string_view why) {
          executor->Abort(why);
        });
    return child;
  }

 private:
  // Moves data by `function` where the ranks' headers are equal.
  template <typename Function>
  WorkPtr Run(CollectiveHeader header, Function function) {
    header.sequence = next_sequence_++;
    return executor_.RunInOrder([this, header, function]() -> absl::Status {
      const std::string where =
          absl::StrCat(NameOf(header.kind), " of ", name_);
      absl::Status equal;
      COXSWAIN_RETURN_IF_ERROR(
          CallGloo(where, [&] { equal = headers_.Compare(header); }));
      COXSWAIN_RETURN_IF_ERROR(equal);
      return CallGloo(
          where, [&] { function(static_cast<uint32_t>(header.sequence)); });
    });
  }

  // Posts a message's header at once, so that messages pair up in the order in
  // which they were started, and its data once both ends have announced the
  // same.
  WorkPtr Message(const char* kind, bool is_sender, const Span& span, int peer,
                  uint32_t tag) {
    if (span.count == 0) return executor_.Nothing();
    const std::string where = absl::StrCat(kind, " of ", name_);
    auto headers = std::make_shared<std::unique_ptr<GlooMessageHeaders>>();
    auto number = std::make_shared<uint8_t>(0);
    return executor_.RunBeside(
        [&] {
          // Here, since a message that is refused has no number.
          *number = messages_[{is_sender, peer, tag}]++;
          return CallGloo(where, [&] {
            *headers = std::make_unique<GlooMessageHeaders>(
                context_, is_sender, peer, tag, *number, span);
          });
        },
        [=]() -> absl::Status {
          absl::Status equal;
          COXSWAIN_RETURN_IF_ERROR(CallGloo(where, [&] {
            equal = (*headers)->Compare(
                absl::StrCat("communicator '", options_.id, "'"));
          }));
          COXSWAIN_RETURN_IF_ERROR(
              WithPrefix(absl::StrCat(where, ", tag ", tag, ": "), equal));
          return CallGloo(where, [&] {
            const auto buffer = context_->createUnboundBuffer(
                span.data, static_cast<size_t>(span.bytes()));
            if (is_sender) {
              buffer->send(peer, MessageSlot(tag, *number));
              buffer->waitSend();
            } else {
              buffer->recv(peer, MessageSlot(tag, *number));
              buffer->waitRecv();
            }
          });
        });
  }

  const CommunicatorOptions options_;  // for those split off
  const std::string name_;
  const GlooContext context_;
  const std::shared_ptr<TransportControl> control_;
  GlooHeaderExchange headers_;
  uint64_t next_sequence_ = 0;
  // How many were started: sent or received, by peer and tag.
  std::map<std::tuple<bool, int, uint32_t>, uint8_t> messages_;
  std::map<std::vector<int>, int64_t> splits_;  // how often each list was
  // Raised when the executor stops.
  const std::shared_ptr<CancelSignal> ended_ = std::make_shared<CancelSignal>();
  std::atomic<bool> destroying_{false};
  Closer closer_;
  // After all that its threads use.
  Executor executor_;
  std::unique_ptr<SplitLink> link_;  // where this one was split off another
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(
    const CommunicatorOptions& options) {
  auto control = std::make_shared<TransportControl>();
  COXSWAIN_ASSIGN_OR_RETURN(GlooContext context,
                            ConnectFullMesh(options, control));
  return std::make_unique<GlooCommunicator>(options, std::move(context),
                                            std::move(control));
}

}  // namespace coxswain
