#include "client/comm/gloo/gloo_communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gloo/context.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/back_end.h"
#include "client/comm/communicator.h"
#include "client/comm/executor.h"
#include "client/comm/gloo/collectives.h"
#include "client/comm/gloo/gloo_status.h"
#include "client/comm/gloo/transport.h"
#include "client/comm/gloo/transport_control.h"

namespace coxswain {
namespace {

// Gloo's store over ours, for one communicator. Gloo's keys are ranks.
class PrefixedStore : public ::gloo::rendezvous::Store {
 public:
  // `options` outlives the store.
  explicit PrefixedStore(const CommunicatorOptions& options)
      : options_(options),
        deadline_(std::chrono::steady_clock::now() +
                  absl::ToChronoNanoseconds(
                      std::min(options.timeout, absl::Hours(24)))) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const absl::Status status = options_.store->Set(
        Key(key), absl::string_view(data.data(), data.size()));
    if (!status.ok()) throw StoreFailure(status);
  }

  std::vector<char> get(const std::string& key) override {
    const auto value = options_.store->Get(Key(key), TimeLeft());
    if (value.ok()) return {value->begin(), value->end()};
    if (!absl::IsDeadlineExceeded(value.status())) {
      throw StoreFailure(value.status());
    }
    throw StoreFailure(absl::DeadlineExceededError(absl::StrCat(
        "not all ranks arrived within ", absl::FormatDuration(options_.timeout),
        "; missing: ", absl::StrJoin(Missing(), ", "))));
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  std::string Key(absl::string_view rank) const {
    return absl::StrCat("gloo/", options_.id, "/", rank);
  }
  absl::Duration TimeLeft() const {
    return std::max(
        absl::FromChrono(deadline_ - std::chrono::steady_clock::now()),
        absl::ZeroDuration());
  }
  std::vector<std::string> Missing() const {
    std::vector<std::string> missing;
    for (int rank = 0; rank < options_.size; ++rank) {
      const auto value =
          options_.store->Get(Key(absl::StrCat(rank)), absl::ZeroDuration());
      if (!value.ok()) missing.push_back(absl::StrCat("rank ", rank));
    }
    return missing;
  }

  const CommunicatorOptions& options_;
  const std::chrono::steady_clock::time_point deadline_;
};

// Our message about a store that waited in vain names who is missing, and
// comes first.
constexpr absl::Duration kConnectMargin = absl::Seconds(1);

std::string Where(const CommunicatorOptions& options) {
  return absl::StrCat("connecting rank ", options.rank, " of ", options.size,
                      " of communicator '", options.id, "' at ",
                      options.address);
}

absl::StatusOr<GlooContext> ConnectBlocking(
    const CommunicatorOptions& options,
    std::shared_ptr<TransportControl> control) {
  auto context =
      std::make_shared<::gloo::rendezvous::Context>(options.rank, options.size);
  COXSWAIN_RETURN_IF_ERROR(CallGloo(Where(options), [&] {
    // Gloo counts in milliseconds and takes zero for no bound.
    context->setTimeout(std::max(std::chrono::milliseconds(1),
                                 absl::ToChronoMilliseconds(std::min(
                                     options.timeout, absl::Hours(24)))));
    ::gloo::transport::tcp::attr attributes(options.address.c_str());
    std::shared_ptr<::gloo::transport::Device> device = WatchDevice(
        ::gloo::transport::tcp::CreateDevice(attributes), std::move(control));
    PrefixedStore store(options);
    context->connectFullMesh(store, device);
  }));
  return context;
}

// What the caller and the thread that connects share.
struct Attempt {
  Mutex mutex;
  CondVar changed;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  std::optional<absl::StatusOr<GlooContext>> result ABSL_GUARDED_BY(mutex);
};

// Waits for a result until `timeout` has passed or `cancel` is raised.
void Await(Attempt* attempt, absl::Duration timeout)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(attempt->mutex) {
  attempt->changed.WaitFor(
      &attempt->mutex, timeout, [=]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return attempt->cancelled || attempt->result.has_value();
      });
}

// Connects every rank of `options` with every other over TCP; blocks until
// that is done, options.timeout has passed or options.cancel is raised.
// Addresses are exchanged through options.store under
// "gloo/<options.id>/<rank>".
//
// Gloo's own wait for a peer that has published its address and then died can
// neither be woken nor bounded by `timeout` (it takes five times that). So it
// runs on a thread of its own, which after an early return goes on until gloo
// gives up; it owns all that it touches.
absl::StatusOr<GlooContext> ConnectFullMesh(
    const CommunicatorOptions& options,
    std::shared_ptr<TransportControl> control) {
  COXSWAIN_RETURN_IF_ERROR(CheckGroupOptions(options, "gloo"));
  auto attempt = std::make_shared<Attempt>();
  std::thread([attempt, options, control = std::move(control)] {
    auto result = ConnectBlocking(options, control);
    MutexLock lock(&attempt->mutex);
    attempt->result = std::move(result);
    attempt->changed.NotifyAll();
  }).detach();

  uint64_t link = 0;
  if (options.cancel != nullptr) {
    link = options.cancel->OnRaise([attempt] {
      MutexLock lock(&attempt->mutex);
      attempt->cancelled = true;
      attempt->changed.NotifyAll();
    });
  }
  std::optional<absl::StatusOr<GlooContext>> result;
  bool cancelled = false;
  {
    MutexLock lock(&attempt->mutex);
    Await(attempt.get(), options.timeout + kConnectMargin);
    result = std::move(attempt->result);
    cancelled = attempt->cancelled;
  }
  if (options.cancel != nullptr) options.cancel->Forget(link);
  if (cancelled) return options.cancel->status();
  if (result.has_value()) return *std::move(result);
  return absl::DeadlineExceededError(
      absl::StrCat(Where(options), ": not all ranks have connected within ",
                   absl::FormatDuration(options.timeout),
                   ", although each has published its address; see whether one "
                   "of them has ended"));
}

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
  void WatchPeerLosses(OnLost on_lost) override {
    control_->WatchLosses(std::move(on_lost));
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
