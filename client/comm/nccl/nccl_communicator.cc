#include "client/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/back_end.h"
#include "client/comm/device_queue.h"
#include "client/comm/hosts.h"
#include "client/comm/memory_store.h"
#include "client/comm/nccl/device_memory.h"
#include "client/comm/nccl/nccl_library.h"
#include "client/comm/nccl/nccl_link.h"
#include "client/comm/nccl/nccl_meeting.h"
#include "client/comm/nccl/nccl_status.h"
#include "client/comm/nccl/stream_works.h"
#include "client/device/buffer.h"
#include "client/device/cuda/devices.h"
#include "client/device/runtime.h"

namespace coxswain {
namespace {

// For what is left on the stream of a communicator that goes.
constexpr absl::Duration kStreamTimeout = absl::Seconds(10);

class NcclSequence : public DeviceSequence {
 public:
  std::shared_ptr<RecordedGraph> graph;
  std::shared_ptr<const RecordedGraphs> owner;  // its communicator's
  int64_t collectives = 0;
  int64_t payload_bytes = 0;
  int64_t wire_bytes = 0;
};

std::string PlaceOf(const Device& device) {
  if (device.kind == Device::Kind::kCpu) return "the CPU";
  return absl::StrCat("GPU ", device.index);
}

// Names a GPU among all of all hosts, and for display.
std::string NameOf(const DeviceProperties& gpu) {
  const std::string unique = gpu.uuid.empty() ? HostIdentity() : gpu.uuid;
  return absl::StrCat(gpu.name, " at ", gpu.pci_bus_id, " (", unique, ")");
}

class NcclCommunicator : public Communicator, public DeviceQueue {
 public:
  NcclCommunicator(const CommunicatorOptions& options, NcclApi* api,
                   DeviceRuntime* runtime, Clock* clock,
                   std::shared_ptr<ByteCounter> parents_wire)
      : Communicator(options.rank, options.size),
        options_(options),
        name_(absl::StrCat("rank ", options.rank, " of communicator '",
                           options.id, "'")),
        api_(api),
        runtime_(runtime),
        clock_(clock),
        wire_(std::make_shared<ByteCounter>(std::move(parents_wire))),
        staging_(std::make_unique<Staging>(runtime)),
        graphs_(std::make_shared<RecordedGraphs>(runtime)) {}
  ~NcclCommunicator() override;

  // Meets the others, and connects. The communicator can be used after that.
  absl::Status Open();

  absl::string_view backend() const override { return "nccl"; }
  void Abort(absl::string_view reason) override { works_->Abort(reason); }
  int64_t wire_bytes() const override { return wire_->bytes(); }
  DeviceQueue* device_queue() override { return this; }
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override {
    if (count < 0) return Communicator::AllocateBuffer(count, dtype);
    return AllocateDeviceMemory(api_, runtime_, link_, count, dtype,
                                CallTimeout());
  }

  DeviceRuntime& runtime() override { return *runtime_; }
  DeviceStream stream() override { return stream_; }
  WorkPtr Mark() override {
    if (recording_) return Work::Ended(works_->ended());
    return works_->Add(absl::StrCat("the device's work for ", name_));
  }
  absl::StatusOr<std::unique_ptr<DeviceSequence>> Record(
      const std::function<absl::Status()>& enqueue) override;
  absl::Status Replay(const DeviceSequence& sequence) override;

 protected:
  absl::Status CheckPlace(const Span& span) const override;
  WorkPtr DoAllReduce(Span span, ReduceOp op) override;
  WorkPtr DoBroadcast(Span span, int root) override;
  WorkPtr DoAgree(const CollectiveHeader& header) override;
  WorkPtr DoAllGather(Span input, Span output) override;
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override;
  WorkPtr DoAllToAll(Span input, Span output) override;
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  // A call to NCCL from and to memory of the device.
  using Call = std::function<NcclResult(const char* in, char* out, NcclComm)>;
  struct Operation {
    const char* kind = nullptr;
    Span input;
    Span output;
    int64_t wire = 0;
    Call call;
  };
  // Where an operation's memory is on the device.
  struct Places {
    char* in = nullptr;
    char* out = nullptr;
    Staging::Piece* staged_in = nullptr;
    Staging::Piece* staged_out = nullptr;
  };

  WorkPtr Start(const Operation& operation);
  absl::StatusOr<Places> Place(const Operation& operation);
  absl::Status Enqueue(const std::string& what, const Operation& operation,
                       const Places& places);
  // Brings what was staged back, once the stream is through with it.
  std::function<void()> Finisher(const Span& output, const Places& places);
  NcclResult ExchangeSlices(const char* in, char* out, const Span& slice,
                            NcclComm comm);

  NcclTimeout CallTimeout() const {
    NcclTimeout timeout;
    timeout.end = clock_->Now() + options_.timeout;
    timeout.clock = clock_;
    return timeout;
  }
  absl::Status Connect();
  void StartWorks();
  void AwaitStream();
  // Of a ring: the bytes that each rank hands on when all get `bytes`.
  int64_t RingShare(int64_t bytes) const {
    return bytes / size() * (size() - 1) +
           bytes % size() * (size() - 1) / size();
  }

  const CommunicatorOptions options_;  // for those split off
  const std::string name_;
  NcclApi* const api_;
  DeviceRuntime* const runtime_;
  Clock* const clock_;
  const std::shared_ptr<ByteCounter> wire_;
  std::unique_ptr<Staging> staging_;
  DeviceStream stream_ = nullptr;
  std::unique_ptr<DeviceBuffer> barrier_;  // of one int32, always 0
  std::shared_ptr<NcclLink> link_;
  bool recording_ = false;
  int64_t recorded_wire_ = 0;
  const std::shared_ptr<RecordedGraphs> graphs_;
  std::map<std::vector<int>, int64_t> splits_;  // how often each list was
  // Raised when Works end because this one can go on no longer.
  const std::shared_ptr<CancelSignal> ended_ = std::make_shared<CancelSignal>();
  std::unique_ptr<StreamWorks> works_;
  std::unique_ptr<SplitLink> split_link_;  // where it was split off another
};

absl::Status NcclCommunicator::Open() {
  COXSWAIN_ASSIGN_OR_RETURN(stream_, runtime_->CreateStream());
  barrier_ = std::make_unique<DeviceBuffer>();
  COXSWAIN_ASSIGN_OR_RETURN(*barrier_,
                            DeviceBuffer::Make(runtime_, sizeof(int32_t)));
  COXSWAIN_RETURN_IF_ERROR(
      runtime_->Fill(barrier_->data(), 0, barrier_->bytes(), stream_));
  COXSWAIN_RETURN_IF_ERROR(Connect());
  StartWorks();
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Connect() {
  NcclPresence self;
  self.gpu = NameOf(runtime_->properties());
  self.clock = clock_;
  self.end =
      clock_->Now() + std::min(options_.timeout, options_.connect_timeout);
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<NcclUniqueId> ids,
                            MeetForNccl(options_, self, api_));
  NcclRank rank;
  rank.rank = options_.rank;
  rank.size = options_.size;
  rank.device = runtime_->device().index;
  rank.name = options_.id;
  NcclTimeout timeout;
  timeout.end = self.end;
  timeout.clock = clock_;
  timeout.cancel = options_.cancel;
  COXSWAIN_ASSIGN_OR_RETURN(
      link_, NcclLink::Connect(absl::StrCat("connecting ", name_), api_, rank,
                               ids, timeout));
  return absl::OkStatus();
}

void NcclCommunicator::StartWorks() {
  StreamWorks::Links links;
  links.check = [this] { return link_->AsyncError(name_); };
  links.sever = [this] { link_->Abort([this] { graphs_->DestroyAll(); }); };
  links.on_end = [ended = ended_](const absl::Status& why) {
    ended->Raise(why);
  };
  works_ = std::make_unique<StreamWorks>(runtime_, stream_, options_.timeout,
                                         clock_, std::move(links));
}

NcclCommunicator::~NcclCommunicator() {
  split_link_.reset();
  const bool at_peace =
      works_ != nullptr && works_->Close("the communicator was destroyed");
  graphs_->DestroyAll();
  if (at_peace) {
    link_->Finish();
  } else if (link_ != nullptr) {
    link_->Abort();
  }
  if (stream_ == nullptr) return;
  AwaitStream();
  works_.reset();
  runtime_->DestroyStream(stream_);
}

// So that no memory goes while the stream still works on it.
void NcclCommunicator::AwaitStream() {
  absl::StatusOr<DeviceEvent> event = runtime_->CreateEvent();
  if (!event.ok()) return;
  absl::Status status = runtime_->Record(*event, stream_);
  if (status.ok()) status = AwaitEvent(runtime_, *event, kStreamTimeout);
  runtime_->DestroyEvent(*event);
  if (!absl::IsDeadlineExceeded(status)) return;
  LogWarning("device_stream_does_not_end",
             {{"communicator", options_.id}, {"status", status.message()}});
  // Better lost than written to by what comes to its end later.
  (void)staging_.release();
  (void)barrier_.release();
}

absl::Status NcclCommunicator::CheckPlace(const Span& span) const {
  const Device own = runtime_->device();
  if (span.device.kind == Device::Kind::kCpu || span.device == own) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name_, " moves memory of ", PlaceOf(own),
                   " and of the CPU, and this is on ", PlaceOf(span.device)));
}

absl::StatusOr<NcclCommunicator::Places> NcclCommunicator::Place(
    const Operation& operation) {
  const Span& input = operation.input;
  const Span& output = operation.output;
  Places places;
  places.in = static_cast<char*>(input.data);
  places.out = static_cast<char*>(output.data);
  if (input.device.kind == Device::Kind::kCpu) {
    COXSWAIN_ASSIGN_OR_RETURN(places.staged_in, staging_->Take(input.bytes()));
    places.in = places.staged_in->device.as<char>();
    std::memcpy(places.staged_in->host.data(), input.data,
                static_cast<size_t>(input.bytes()));
  }
  if (output.device.kind == Device::Kind::kCpu) {
    places.staged_out = places.staged_in;
    if (input.data != output.data || input.bytes() != output.bytes() ||
        places.staged_in == nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(places.staged_out,
                                staging_->Take(output.bytes()));
    }
    places.out = places.staged_out->device.as<char>();
  }
  return places;
}

absl::Status NcclCommunicator::Enqueue(const std::string& what,
                                       const Operation& operation,
                                       const Places& places) {
  if (places.staged_in != nullptr) {
    COXSWAIN_RETURN_IF_ERROR(runtime_->Copy(places.in,
                                            places.staged_in->host.data(),
                                            operation.input.bytes(), stream_));
  }
  COXSWAIN_RETURN_IF_ERROR(link_->Run(
      what,
      [&](NcclComm comm) {
        return operation.call(places.in, places.out, comm);
      },
      CallTimeout()));
  if (places.staged_out == nullptr) return absl::OkStatus();
  return runtime_->Copy(places.staged_out->host.data(), places.out,
                        operation.output.bytes(), stream_);
}

std::function<void()> NcclCommunicator::Finisher(const Span& output,
                                                 const Places& places) {
  if (places.staged_in == nullptr && places.staged_out == nullptr) {
    return nullptr;
  }
  return [this, output, places] {
    if (places.staged_out != nullptr) {
      std::memcpy(output.data, places.staged_out->host.data(),
                  static_cast<size_t>(output.bytes()));
      staging_->Return(places.staged_out);
    }
    if (places.staged_in != nullptr && places.staged_in != places.staged_out) {
      staging_->Return(places.staged_in);
    }
  };
}

WorkPtr NcclCommunicator::Start(const Operation& operation) {
  if (absl::Status why = works_->ended(); !why.ok()) return Work::Ended(why);
  const bool on_device = operation.input.device.kind == Device::Kind::kCuda &&
                         operation.output.device.kind == Device::Kind::kCuda;
  const std::string what = absl::StrCat(operation.kind, " of ", name_);
  if (recording_ && !on_device) {
    return Work::Ended(absl::InvalidArgumentError(absl::StrCat(
        what, ": memory of the CPU cannot be part of a recorded sequence")));
  }
  absl::StatusOr<Places> places = Place(operation);
  if (!places.ok()) {
    return works_->AddFailed(
        WithPrefix(absl::StrCat(what, ": "), places.status()));
  }
  if (absl::Status status = Enqueue(what, operation, *places); !status.ok()) {
    return works_->AddFailed(status);
  }
  if (recording_) {
    recorded_wire_ += operation.wire;
    return Work::Ended(absl::OkStatus());
  }
  wire_->Add(operation.wire);
  return works_->Add(what, Finisher(operation.output, *places));
}

WorkPtr NcclCommunicator::DoAllReduce(Span span, ReduceOp op) {
  Operation operation = {"all-reduce", span, span, 0, nullptr};
  operation.wire = 2 * RingShare(span.bytes());
  operation.call = [=](const char* in, char* out, NcclComm comm) {
    return api_->AllReduce(in, out, static_cast<size_t>(span.count), span.dtype,
                           op, comm, stream_);
  };
  return Start(operation);
}

WorkPtr NcclCommunicator::DoBroadcast(Span span, int root) {
  Operation operation = {"broadcast", span, span, 0, nullptr};
  // The last of the ring does not pass it on.
  if ((rank() + 1) % size() != root) operation.wire = span.bytes();
  operation.call = [=](const char* in, char* out, NcclComm comm) {
    return api_->Broadcast(in, out, static_cast<size_t>(span.count), span.dtype,
                           root, comm, stream_);
  };
  return Start(operation);
}

// NCCL has no way to compare headers but a collective of their own, for which
// the host would have to wait: what moves nothing ends at once.
WorkPtr NcclCommunicator::DoAgree(const CollectiveHeader& header) {
  if (header.kind != CollectiveKind::kBarrier || header.refused) {
    return Work::Ended(works_->ended());
  }
  Span span;
  span.data = barrier_->data();
  span.count = 1;
  span.dtype = DType::kInt32;
  span.device = runtime_->device();
  Operation operation = {"barrier", span, span, 0, nullptr};
  operation.call = [=](const char* in, char* out, NcclComm comm) {
    return api_->AllReduce(in, out, 1, DType::kInt32, ReduceOp::kSum, comm,
                           stream_);
  };
  return Start(operation);
}

WorkPtr NcclCommunicator::DoAllGather(Span input, Span output) {
  Operation operation = {"all-gather", input, output, 0, nullptr};
  operation.wire = (size() - 1) * input.bytes();
  operation.call = [=](const char* in, char* out, NcclComm comm) {
    return api_->AllGather(in, out, static_cast<size_t>(input.count),
                           input.dtype, comm, stream_);
  };
  return Start(operation);
}

WorkPtr NcclCommunicator::DoReduceScatter(Span input, Span output,
                                          ReduceOp op) {
  Operation operation = {"reduce-scatter", input, output, 0, nullptr};
  operation.wire = (size() - 1) * output.bytes();
  operation.call = [=](const char* in, char* out, NcclComm comm) {
    return api_->ReduceScatter(in, out, static_cast<size_t>(output.count),
                               output.dtype, op, comm, stream_);
  };
  return Start(operation);
}

WorkPtr NcclCommunicator::DoAllToAll(Span input, Span output) {
  Operation operation = {"all-to-all", input, output, 0, nullptr};
  const Span slice = input.Slice(0, input.count / size());
  operation.wire = (size() - 1) * slice.bytes();
  operation.call = [=](const char* in, char* out, NcclComm comm) {
    return ExchangeSlices(in, out, slice, comm);
  };
  return Start(operation);
}

NcclResult NcclCommunicator::ExchangeSlices(const char* in, char* out,
                                            const Span& slice, NcclComm comm) {
  NcclResult first = api_->GroupStart();
  const auto note = [&first](NcclResult result) {
    const bool well =
        first == NcclResult::kSuccess || first == NcclResult::kInProgress;
    if (well && result != NcclResult::kSuccess) first = result;
  };
  const size_t count = static_cast<size_t>(slice.count);
  for (int peer = 0; peer < size(); ++peer) {
    const int64_t offset = peer * slice.bytes();
    note(api_->Send(in + offset, count, slice.dtype, peer, comm, stream_));
    note(api_->Receive(out + offset, count, slice.dtype, peer, comm, stream_));
  }
  // Ends the group whatever came of it.
  note(api_->GroupEnd());
  return first;
}

absl::StatusOr<std::unique_ptr<DeviceSequence>> NcclCommunicator::Record(
    const std::function<absl::Status()>& enqueue) {
  COXSWAIN_RETURN_IF_ERROR(works_->ended());
  COXSWAIN_RETURN_IF_ERROR(runtime_->BeginCapture(stream_));
  const int64_t collectives = sequence();
  const int64_t payload = payload_bytes();
  recording_ = true;
  recorded_wire_ = 0;
  const absl::Status status = enqueue();
  recording_ = false;
  absl::StatusOr<DeviceGraph> graph = runtime_->EndCapture(stream_);
  const int64_t noted = sequence() - collectives;
  const int64_t noted_payload = payload_bytes() - payload;
  // None of it has run.
  AddToCounts(-noted, -noted_payload);
  auto sequence = std::make_unique<NcclSequence>();
  if (graph.ok()) sequence->graph = graphs_->Add(*graph);
  COXSWAIN_RETURN_IF_ERROR(status);
  COXSWAIN_RETURN_IF_ERROR(graph.status());
  COXSWAIN_RETURN_IF_ERROR(works_->ended());
  sequence->owner = graphs_;
  sequence->collectives = noted;
  sequence->payload_bytes = noted_payload;
  sequence->wire_bytes = recorded_wire_;
  return sequence;
}

absl::Status NcclCommunicator::Replay(const DeviceSequence& sequence) {
  const auto* const own = dynamic_cast<const NcclSequence*>(&sequence);
  if (own == nullptr || own->owner != graphs_) {
    return absl::InvalidArgumentError(absl::StrCat(
        name_, " replays sequences that it has recorded, and this is another"));
  }
  COXSWAIN_RETURN_IF_ERROR(works_->ended());
  COXSWAIN_RETURN_IF_ERROR(own->graph->Launch(stream_));
  AddToCounts(own->collectives, own->payload_bytes);
  wire_->Add(own->wire_bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::DoSplit(
    const std::vector<int>& ranks) {
  COXSWAIN_RETURN_IF_ERROR(works_->ended());
  CommunicatorOptions options = SplitOptions(options_, ranks, splits_[ranks]++);
  options.cancel = ended_.get();
  auto child = std::make_unique<NcclCommunicator>(options, api_, runtime_,
                                                  clock_, wire_);
  COXSWAIN_RETURN_IF_ERROR(child->Open());
  child->split_link_ = std::make_unique<SplitLink>(
      ended_, [works = child->works_.get()](absl::string_view why) {
        works->Abort(why);
      });
  return child;
}

// A single rank needs no store.
CommunicatorOptions WithStore(const CommunicatorOptions& options) {
  CommunicatorOptions result = options;
  if (options.size == 1 && options.store == nullptr) {
    result.store = std::make_shared<MemoryStore>();
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(
    const CommunicatorOptions& options, NcclApi* api, DeviceRuntime* runtime,
    Clock* clock) {
  const CommunicatorOptions with_store = WithStore(options);
  COXSWAIN_RETURN_IF_ERROR(CheckGroupOptions(with_store, "nccl"));
  auto communicator = std::make_unique<NcclCommunicator>(
      with_store, api, runtime, clock, nullptr);
  COXSWAIN_RETURN_IF_ERROR(communicator->Open());
  return communicator;
}

absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(
    const CommunicatorOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(CheckGroupOptions(WithStore(options), "nccl"));
  if (options.device.kind != Device::Kind::kCuda) {
    return absl::InvalidArgumentError(
        absl::StrCat("communicator '", options.id,
                     "': the nccl back end is for data on a "
                     "GPU, and rank ",
                     options.rank, "'s is on the CPU; name its device"));
  }
  const std::string where = absl::StrCat("communicator '", options.id,
                                         "', rank ", options.rank, ": ");
  absl::StatusOr<DeviceRuntime*> runtime = GetDevice(options.device.index);
  if (!runtime.ok()) return WithPrefix(where, runtime.status());
  absl::StatusOr<NcclApi*> api = LoadNccl();
  if (!api.ok()) return WithPrefix(where, api.status());
  return MakeNcclCommunicator(options, *api, *runtime);
}

}  // namespace coxswain
