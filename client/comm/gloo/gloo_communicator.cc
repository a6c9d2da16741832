#include "client/comm/gloo/gloo_communicator.h"

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/status_macros.h"
#include "client/comm/executor.h"
#include "client/comm/gloo/collectives.h"
#include "client/comm/gloo/gloo_status.h"
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
  WorkPtr DoAllReduce(Span span, ReduceOp op) override {
    return Collective("all-reduce", span, span, [=](uint32_t tag) {
      GlooAllReduce(context_, tag, span, op);
    });
  }
  WorkPtr DoBroadcast(Span span, int root) override {
    return Collective("broadcast", span, span, [=](uint32_t tag) {
      GlooBroadcast(context_, tag, span, root);
    });
  }
  WorkPtr DoAllGather(Span input, Span output) override {
    return Collective("all-gather", input, output, [=](uint32_t tag) {
      GlooAllGather(context_, tag, input, output);
    });
  }
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override {
    return Collective("reduce-scatter", input, output, [=](uint32_t tag) {
      GlooReduceScatter(context_, tag, input, output, op);
    });
  }
  WorkPtr DoAllToAll(Span input, Span output) override {
    return Collective("all-to-all", input, output, [=](uint32_t tag) {
      GlooAllToAll(context_, tag, input, output);
    });
  }
  WorkPtr DoBarrier() override {
    return Run("barrier", [this](uint32_t tag) { GlooBarrier(context_, tag); });
  }
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override {
    return Message(
        "send", span,
        [=](UnboundBuffer* buffer) { buffer->send(peer, MessageSlot(tag)); },
        [](UnboundBuffer* buffer) { buffer->waitSend(); });
  }
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override {
    return Message(
        "receive", span,
        [=](UnboundBuffer* buffer) { buffer->recv(peer, MessageSlot(tag)); },
        [](UnboundBuffer* buffer) { buffer->waitRecv(); });
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
  using UnboundBuffer = ::gloo::transport::UnboundBuffer;

  template <typename Function>
  WorkPtr Collective(const char* kind, const Span& input, const Span& output,
                     Function function) {
    for (const Span& span : {input, output}) {
      if (auto status = CheckOnHost(*this, span); !status.ok()) {
        return Work::Ended(status);
      }
    }
    if (input.count == 0) return executor_.Nothing();
    return Run(kind, std::move(function));
  }

  template <typename Function>
  WorkPtr Run(const char* kind, Function function) {
    const uint32_t tag = next_tag_++;
    return executor_.RunInOrder([this, kind, tag, function] {
      return CallGloo(absl::StrCat(kind, " of ", name_),
                      [&] { function(tag); });
    });
  }

  // Posts a message at once, so that messages pair up in the order in which
  // they were started, and waits for its end.
  template <typename Post, typename Await>
  WorkPtr Message(const char* kind, const Span& span, Post post, Await await) {
    if (auto status = CheckOnHost(*this, span); !status.ok()) {
      return Work::Ended(status);
    }
    if (span.count == 0) return executor_.Nothing();
    const std::string where = absl::StrCat(kind, " of ", name_);
    auto buffer = std::make_shared<std::unique_ptr<UnboundBuffer>>();
    return executor_.RunBeside(
        [&] {
          return CallGloo(where, [&] {
            *buffer = context_->createUnboundBuffer(
                span.data, static_cast<size_t>(span.bytes()));
            post(buffer->get());
          });
        },
        [where, buffer, await] {
          return CallGloo(where, [&] { await(buffer->get()); });
        });
  }

  const CommunicatorOptions options_;  // for those split off
  const std::string name_;
  const GlooContext context_;
  const std::shared_ptr<TransportControl> control_;
  uint32_t next_tag_ = 0;
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
