#include "client/comm/parameter_server/parameter_communicator.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/back_end.h"
#include "client/comm/collective_header.h"
#include "client/comm/executor.h"
#include "client/comm/parameter_server/operation_stream.h"
#include "client/rpc/member_context.h"
#include "client/rpc/member_context_source.h"
#include "client/rpc/parameter_stub.h"

namespace coxswain {
namespace {

// What the coordinator's own, better message may come late by.
constexpr absl::Duration kGrace = absl::Seconds(10);

void WantRuns(int64_t offset, int64_t bytes, int64_t stride, int64_t count,
              TensorTransfer* transfer) {
  v1::PullRange& range = *transfer->operation.mutable_range();
  range.set_offset(offset);
  range.set_bytes(bytes);
  range.set_stride(stride);
  range.set_count(count);
}

// What all ranks of a group share, and all communicators split off it.
struct Connection {
  std::shared_ptr<MemberContext> member;
  std::shared_ptr<ParameterStub> stub;
};

class ParameterServerCommunicator : public Communicator {
 public:
  ParameterServerCommunicator(const CommunicatorOptions& options,
                              Connection connection,
                              std::shared_ptr<TransferBytes> bytes)
      : Communicator(options.rank, options.size),
        options_(options),
        where_(absl::StrCat(" of rank ", options.rank, " of communicator '",
                            options.id, "': ")),
        connection_(std::move(connection)),
        bytes_(std::move(bytes)),
        stream_(connection_.stub, bytes_,
                [self = self_](const absl::Status& why) {
                  MutexLock lock(&self->mutex);
                  if (self->executor == nullptr) return;
                  self->executor->Abort(why.message());
                }),
        executor_([this](const absl::Status& why) {
          // First, so that no callback finds memory in use.
          stream_.Close(why);
          ended_->Raise(why);
        }) {
    MutexLock lock(&self_->mutex);
    self_->exchange = &stream_;
    self_->executor = &executor_;
  }
  ~ParameterServerCommunicator() override {
    MutexLock lock(&self_->mutex);
    self_->exchange = nullptr;
    self_->executor = nullptr;
  }

  // Takes this rank's place, and waits for the others. Before anything else.
  absl::Status Connect() {
    v1::ExchangeOpen open;
    *open.mutable_fence() = connection_.member->fence();
    open.set_group(options_.id);
    open.set_rank(options_.rank);
    open.set_size(options_.size);
    CancelSignal never;
    CancelSignal* const cancel =
        options_.cancel == nullptr ? &never : options_.cancel;
    const uint64_t link = cancel->OnRaise([self = self_, cancel] {
      MutexLock lock(&self->mutex);
      if (self->exchange != nullptr) self->exchange->Close(cancel->status());
    });
    const absl::Duration connect_timeout =
        std::min(options_.timeout, options_.connect_timeout);
    absl::Status met = stream_.Open(open, connect_timeout);
    if (met.ok()) met = Meet(connect_timeout);
    cancel->Forget(link);
    return WithPrefix(absl::StrCat("connecting", where_), met);
  }

  absl::string_view backend() const override { return "parameter_server"; }
  void Abort(absl::string_view reason) override { executor_.Abort(reason); }
  int64_t wire_bytes() const override { return bytes_->sent.load(); }

 protected:
  absl::Status CheckPlace(const Span& span) const override {
    return CheckOnHost(*this, span);
  }
  WorkPtr DoAllReduce(Span span, ReduceOp op) override {
    TensorTransfer transfer = Give("all-reduce", ToWire(op), span);
    Want(span, &transfer);
    return Run(transfer);
  }
  WorkPtr DoBroadcast(Span span, int root) override {
    TensorTransfer transfer = Give("broadcast", v1::REDUCTION_SET, span);
    transfer.operation.set_root(root);
    if (root != rank()) {
      transfer.input = nullptr;
      Want(span, &transfer);
    }
    return Run(transfer);
  }
  // The coordinator compares the headers of operations; this one has a whole
  // header, and no data.
  WorkPtr DoAgree(const CollectiveHeader& header) override {
    return Run(Give(Describe(header), v1::REDUCTION_SUM, Span()));
  }
  WorkPtr DoAllGather(Span input, Span output) override {
    TensorTransfer transfer = Give("all-gather", v1::REDUCTION_CONCAT, input);
    Want(output, &transfer);
    return Run(transfer);
  }
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override {
    TensorTransfer transfer = Give("reduce-scatter", ToWire(op), input);
    Want(output, &transfer);
    transfer.operation.mutable_range()->set_offset(rank() * output.bytes());
    return Run(transfer);
  }
  WorkPtr DoAllToAll(Span input, Span output) override {
    TensorTransfer transfer = Give("all-to-all", v1::REDUCTION_CONCAT, input);
    const int64_t slice = input.bytes() / size();
    transfer.output = static_cast<char*>(output.data);
    WantRuns(rank() * slice, slice, input.bytes(), size(), &transfer);
    return Run(transfer);
  }
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override {
    return Message(Give("message", v1::REDUCTION_SET, span), "send", rank(),
                   peer, tag, span);
  }
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override {
    TensorTransfer transfer = Give("message", v1::REDUCTION_SET, span);
    transfer.input = nullptr;
    Want(span, &transfer);
    return Message(std::move(transfer), "receive", peer, rank(), tag, span);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override {
    if (absl::Status why = ended_->status(); !why.ok()) return why;
    CommunicatorOptions options =
        SplitOptions(options_, ranks, splits_[ranks]++);
    options.cancel = ended_.get();
    auto bytes = std::make_shared<TransferBytes>();
    bytes->parent = bytes_;
    auto child = std::make_unique<ParameterServerCommunicator>(
        options, connection_, std::move(bytes));
    COXSWAIN_RETURN_IF_ERROR(child->Connect());
    child->link_ = std::make_unique<SplitLink>(
        ended_, [executor = &child->executor_](absl::string_view why) {
          executor->Abort(why);
        });
    return child;
  }

 private:
  TensorTransfer Give(const std::string& what, v1::Reduction reduction,
                      const Span& span) const {
    TensorTransfer transfer;
    v1::ExchangeOperation& operation = transfer.operation;
    operation.set_what(what);
    operation.set_reduction(reduction);
    operation.set_dtype(std::string(NameOf(span.dtype)));
    operation.set_bytes(span.bytes());
    operation.set_root(-1);
    operation.set_peer(-1);
    operation.set_timeout_ms(TimeoutMillis(options_.timeout));
    transfer.input = static_cast<const char*>(span.data);
    return transfer;
  }
  // The first bytes of the tensor, as many as the span has.
  static void Want(const Span& span, TensorTransfer* transfer) {
    transfer->output = static_cast<char*>(span.data);
    WantRuns(0, span.bytes(), 0, 1, transfer);
  }

  // Waits until all ranks are there.
  absl::Status Meet(absl::Duration connect_timeout) {
    TensorTransfer transfer = Give("meeting", v1::REDUCTION_SUM, Span());
    transfer.operation.set_name("meeting");
    transfer.operation.set_timeout_ms(TimeoutMillis(connect_timeout));
    return Await(stream_.Begin(transfer), connect_timeout);
  }

  // Begins it at once, so that several are under way; they end in order.
  WorkPtr Run(TensorTransfer transfer) {
    transfer.operation.set_name("collective");
    transfer.operation.set_version(next_collective_++);
    auto begun = std::make_shared<OperationStream::OperationPtr>();
    const absl::Time deadline = DeadlineOf(options_.timeout);
    const std::string what = transfer.operation.what();
    WorkPtr work = executor_.TryRunAssisted(
        [&] { *begun = stream_.Begin(transfer); },
        [this, begun, what, deadline](absl::Time until) {
          return End(what, *begun, std::min(until, deadline), deadline);
        });
    if (work != nullptr) return work;
    *begun = stream_.Begin(transfer);
    return Released(*begun, executor_.RunInOrder([this, begun, what] {
      return WithPrefix(absl::StrCat(what, where_),
                        Await(*begun, options_.timeout));
    }));
  }

  // An executor that stops meanwhile refuses to wait for what has begun: the
  // caller may free its memory as soon as it sees that.
  WorkPtr Released(const OperationStream::OperationPtr& operation,
                   WorkPtr work) {
    if (operation != nullptr && work->Done()) {
      const absl::Status end = stream_.Abandon(
          operation, absl::AbortedError("the communicator has stopped"));
      static_cast<void>(end);  // the Work has its own
    }
    return work;
  }

  // Begins it at once as well, and nothing waits for it.
  WorkPtr Message(TensorTransfer transfer, const char* kind, int from, int to,
                  uint32_t tag, const Span& span) {
    if (span.count == 0) return executor_.Nothing();
    transfer.operation.set_name(
        absl::StrCat("message/", from, "/", to, "/", tag));
    transfer.operation.set_root(from);
    transfer.operation.set_peer(to);
    auto begun = std::make_shared<OperationStream::OperationPtr>();
    WorkPtr work = executor_.RunBeside(
        [&] {
          // Here, since a message that is refused has no number.
          transfer.operation.set_version(messages_[{from, to, tag}]++);
          *begun = stream_.Begin(transfer);
          return absl::OkStatus();
        },
        [this, begun, kind] {
          return WithPrefix(absl::StrCat(kind, where_),
                            Await(*begun, options_.timeout));
        });
    return Released(*begun, std::move(work));
  }

  static absl::Time DeadlineOf(absl::Duration timeout) {
    return Clock::Real()->Now() + std::min(timeout, absl::Hours(8760)) + kGrace;
  }

  absl::Status Await(const OperationStream::OperationPtr& operation,
                     absl::Duration timeout) {
    auto end = stream_.Wait(operation, DeadlineOf(timeout));
    return end.has_value() ? *end : stream_.Abandon(operation, NoAnswer());
  }

  std::optional<absl::Status> End(
      const std::string& what, const OperationStream::OperationPtr& operation,
      absl::Time until, absl::Time deadline) {
    auto end = stream_.Wait(operation, until);
    if (!end.has_value() && Clock::Real()->Now() < deadline) {
      return std::nullopt;
    }
    if (!end.has_value()) end = stream_.Abandon(operation, NoAnswer());
    return WithPrefix(absl::StrCat(what, where_), *end);
  }

  absl::Status NoAnswer() const {
    return absl::DeadlineExceededError(absl::StrCat(
        "the coordinator at ", connection_.stub->address(),
        " has sent nothing for ", absl::FormatDuration(options_.timeout)));
  }

  // What a callback that comes late may still find.
  struct Self {
    Mutex mutex;
    OperationStream* exchange ABSL_GUARDED_BY(mutex) = nullptr;
    Executor* executor ABSL_GUARDED_BY(mutex) = nullptr;
  };

  const CommunicatorOptions options_;  // for those split off
  const std::string where_;
  const Connection connection_;
  const std::shared_ptr<TransferBytes> bytes_;
  const std::shared_ptr<Self> self_ = std::make_shared<Self>();
  int64_t next_collective_ = 0;
  std::map<std::tuple<int, int, uint32_t>, int64_t> messages_;
  std::map<std::vector<int>, int64_t> splits_;  // how often each list was
  // Raised when the executor stops.
  const std::shared_ptr<CancelSignal> ended_ = std::make_shared<CancelSignal>();
  OperationStream stream_;
  // After all that its threads use.
  Executor executor_;
  std::unique_ptr<SplitLink> link_;  // where this one was split off another
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectParameterServer(
    const CommunicatorOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(CheckGroupOptions(options, "parameter_server"));
  const auto* source =
      dynamic_cast<const MemberContextSource*>(options.store.get());
  if (source == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "communicator '", options.id,
        "': the parameter_server back end exchanges through the coordinator of "
        "a session, and this one does not belong to any"));
  }
  Connection connection;
  connection.member = source->member();
  const absl::Duration connect_timeout =
      std::min(options.timeout, options.connect_timeout);
  COXSWAIN_ASSIGN_OR_RETURN(
      connection.stub, ConnectParameterStub(connection.member->stub().address(),
                                            connection.member->security(),
                                            connect_timeout, options.cancel));
  auto communicator = std::make_unique<ParameterServerCommunicator>(
      options, std::move(connection), std::make_shared<TransferBytes>());
  COXSWAIN_RETURN_IF_ERROR(communicator->Connect());
  return communicator;
}

}  // namespace coxswain
