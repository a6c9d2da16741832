#include "client/reduce/reducer.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// Spans up to this size travel together when they are broadcast.
constexpr int64_t kBroadcastBytes = 25 << 20;

absl::Status CheckParameters(const std::vector<ParameterSpec>& parameters) {
  if (parameters.empty()) {
    return absl::InvalidArgumentError(
        "the model has no trainable parameters, so there is nothing to reduce");
  }
  std::set<std::string> names;
  for (const ParameterSpec& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parameters are named \"", parameter.name,
                       "\"; give each one a name of its own"));
    }
    if (parameter.device.kind != Device::Kind::kCpu) {
      return absl::UnimplementedError(absl::StrCat(
          "parameter \"", parameter.name,
          "\" is not in host memory; the reducer handles host memory only"));
    }
  }
  return absl::OkStatus();
}

absl::Status WithPrefix(absl::string_view prefix, const absl::Status& status) {
  absl::Status result(status.code(), absl::StrCat(prefix, status.message()));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    result.SetPayload(type, payload);
  });
  return result;
}

Span AsBytes(const Span& span) {
  Span bytes = span;
  bytes.count = span.bytes();
  bytes.dtype = DType::kUInt8;
  return bytes;
}

// memcpy wants valid pointers even for nothing.
void CopyBytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Create(
    const ReducerOptions& options, std::vector<ParameterSpec> parameters,
    Hook* hook, Communicator* communicator) {
  COXSWAIN_RETURN_IF_ERROR(CheckParameters(parameters));
  std::unique_ptr<Reducer> reducer(
      new Reducer(options, std::move(parameters), hook, communicator));
  COXSWAIN_RETURN_IF_ERROR(reducer->Allocate());
  COXSWAIN_RETURN_IF_ERROR(
      hook->Configure(reducer->parameters_, communicator->size()));
  Reducer* const raw = reducer.get();
  reducer->thread_ = std::thread([raw] { raw->Run(); });
  return reducer;
}

Reducer::Reducer(const ReducerOptions& options,
                 std::vector<ParameterSpec> parameters, Hook* hook,
                 Communicator* communicator)
    : options_(options),
      parameters_(std::move(parameters)),
      hook_(hook),
      communicator_(communicator) {}

absl::Status Reducer::Allocate() {
  COXSWAIN_ASSIGN_OR_RETURN(buckets_,
                            PlanBuckets(options_.buckets, parameters_));
  places_.resize(parameters_.size());
  for (Bucket& bucket : buckets_) {
    COXSWAIN_ASSIGN_OR_RETURN(
        std::unique_ptr<BufferOwner> memory,
        communicator_->AllocateBuffer(bucket.data.count, bucket.data.dtype));
    bucket.data = memory->span();
    memory_.push_back(std::move(memory));
    for (const GradientSlot& slot : bucket.gradients) {
      places_[slot.parameter] = {bucket.index, bucket.Gradient(slot)};
    }
  }
  MutexLock lock(&mutex_);
  timings_.resize(buckets_.size());
  return absl::OkStatus();
}

Reducer::~Reducer() {
  if (!thread_.joinable()) return;  // Create failed
  Rollback();
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

Span Reducer::GradientView(int parameter) const {
  COXSWAIN_CHECK(parameter >= 0 &&
                 parameter < static_cast<int>(places_.size()));
  return places_[parameter].view;
}

absl::Status Reducer::BeginStep() {
  const int64_t step = hook_->step();
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (state_ != State::kIdle) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", communicator_->rank(),
        " begins to exchange gradients, but "
        "its step ",
        step_,
        state_ == State::kCollecting ? " is still being exchanged"
                                     : " has been neither committed nor "
                                       "rolled back",
        "; each step has one exchange, and is finished before the next"));
  }
  step_ = step;
  state_ = State::kCollecting;
  exchanging_ = true;
  marked_.assign(parameters_.size(), false);
  pending_.clear();
  for (const Bucket& bucket : buckets_) {
    pending_.push_back(static_cast<int>(bucket.gradients.size()));
  }
  timings_.assign(buckets_.size(), BucketTiming());
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status Reducer::MarkReady(int parameter) {
  COXSWAIN_RETURN_IF_ERROR(Claim(parameter));
  CountDown(parameter);
  return absl::OkStatus();
}

absl::Status Reducer::MarkReady(int parameter, Span gradient) {
  COXSWAIN_RETURN_IF_ERROR(Claim(parameter));
  const Span& view = places_[parameter].view;
  if (gradient.count != view.count || gradient.dtype != view.dtype) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "the gradient of \"", parameters_[parameter].name, "\" has ",
        gradient.count, " x ", NameOf(gradient.dtype), ", its parameter ",
        view.count, " x ", NameOf(view.dtype))));
  }
  CopyBytes(view.data, gradient.data, view.bytes());
  CountDown(parameter);
  return absl::OkStatus();
}

absl::Status Reducer::Claim(int parameter) {
  absl::Status error;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(status_);
    if (state_ != State::kCollecting) {
      return absl::FailedPreconditionError(
          "a gradient was marked ready outside a step; call BeginStep first");
    }
    if (parameter < 0 || parameter >= static_cast<int>(parameters_.size())) {
      error = absl::InvalidArgumentError(absl::StrCat(
          "there is no parameter ", parameter, " among ", parameters_.size()));
    } else if (marked_[parameter]) {
      error = absl::FailedPreconditionError(absl::StrCat(
          "parameter \"", parameters_[parameter].name,
          "\" was marked ready twice in one step. Either two backward passes "
          "ran in it (let all but the last one only sum up locally), or the "
          "parameter gets several gradients in one pass (it is used by a "
          "part that is computed again in backward, or by another backward "
          "inside)"));
    } else {
      marked_[parameter] = true;
    }
  }
  return error.ok() ? error : Fail(std::move(error));
}

void Reducer::CountDown(int parameter) {
  const absl::Time now = options_.clock->Now();
  const int bucket = places_[parameter].bucket;
  MutexLock lock(&mutex_);
  if (--pending_[bucket] > 0) return;
  timings_[bucket].ready = now;
  changed_.NotifyAll();
}

std::vector<int> Reducer::Unmarked() const {
  std::vector<int> unmarked;
  MutexLock lock(&mutex_);
  for (int i = 0; i < static_cast<int>(marked_.size()); ++i) {
    if (!marked_[i]) unmarked.push_back(i);
  }
  return unmarked;
}

absl::Status Reducer::Finish() {
  {
    MutexLock lock(&mutex_);
    if (state_ != State::kCollecting) {
      COXSWAIN_RETURN_IF_ERROR(status_);
      return absl::FailedPreconditionError(
          "there is no step to finish; call BeginStep first");
    }
  }
  for (const int parameter : Unmarked()) {
    if (!Claim(parameter).ok()) break;  // broken: reported below
    const Span& view = places_[parameter].view;
    std::memset(view.data, 0, static_cast<size_t>(view.bytes()));
    CountDown(parameter);
  }
  if (!WaitForExchangeThread(options_.timeout)) {
    (void)Fail(absl::DeadlineExceededError(
        absl::StrCat("the exchange has not ended within ",
                     absl::FormatDuration(options_.timeout),
                     " after the last gradient; look for a rank that is "
                     "stuck, or raise the timeout")));
    WaitForExchangeThread(options_.timeout);
  }
  {
    MutexLock lock(&mutex_);
    if (status_.ok()) {
      state_ = State::kExchanged;
      return absl::OkStatus();
    }
  }
  Rollback();
  return status();
}

absl::Status Reducer::Commit() {
  if (const absl::Status broken = status(); !broken.ok()) {
    Rollback();
    return broken;
  }
  {
    MutexLock lock(&mutex_);
    if (state_ != State::kExchanged) {
      return absl::FailedPreconditionError(
          "there is no exchanged step to commit; call Finish first");
    }
    state_ = State::kIdle;
  }
  const absl::Status status = hook_->Commit();
  if (status.ok()) return status;
  hook_->Rollback();
  return Fail(WithPrefix("hook commit: ", status));
}

void Reducer::Rollback() {
  State state;
  {
    MutexLock lock(&mutex_);
    state = std::exchange(state_, State::kIdle);
  }
  if (state == State::kIdle) return;
  if (state == State::kCollecting) {
    Abort(absl::AbortedError(
        "the step was given up before all its gradients were exchanged"));
  }
  // A communicator that has been aborted ends every wait at once; where one
  // does not, the hook is still at work and stays alone.
  if (WaitForExchangeThread(options_.timeout)) hook_->Rollback();
}

void Reducer::Abort(const absl::Status& reason) { (void)Fail(reason); }

absl::Status Reducer::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

int64_t Reducer::step() const {
  MutexLock lock(&mutex_);
  return step_;
}

std::vector<BucketTiming> Reducer::timings() const {
  MutexLock lock(&mutex_);
  return timings_;
}

absl::Status Reducer::Fail(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return status_;
    status_ = WithPrefix(
        absl::StrCat("rank ", communicator_->rank(), ", step ", step_, ", "),
        status);
    status = status_;
    changed_.NotifyAll();
  }
  communicator_->Abort(status.message());
  return status;
}

absl::Status Reducer::InBucket(int bucket, const absl::Status& status) const {
  if (status.ok()) return status;
  return WithPrefix(
      absl::StrCat("bucket ", bucket, " of ", buckets_.size(), ": "), status);
}

bool Reducer::WaitForExchangeThread(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return changed_.WaitFor(
      &mutex_, timeout,
      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !exchanging_; });
}

void Reducer::Run() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return exchanging_ || closing_;
      });
      if (!exchanging_) return;
    }
    std::vector<InFlight> in_flight;
    absl::Status status = Exchanges(&in_flight);
    if (!status.ok()) {
      (void)Fail(std::move(status));
      // The collectives use the exchanges' memory until they have ended.
      for (InFlight& flight : in_flight) {
        if (flight.work) (void)flight.work->Wait(options_.timeout);
      }
    }
    MutexLock lock(&mutex_);
    exchanging_ = false;
    changed_.NotifyAll();
  }
}

absl::Status Reducer::Exchanges(std::vector<InFlight>* in_flight) {
  const int buckets = static_cast<int>(buckets_.size());
  for (int round = 0; round < buckets || !in_flight->empty(); ++round) {
    int earlier = static_cast<int>(in_flight->size());
    if (round < buckets) {
      COXSWAIN_RETURN_IF_ERROR(WaitUntilReady(round));
      COXSWAIN_RETURN_IF_ERROR(InBucket(round, Begin(round, in_flight)));
    }
    while (--earlier >= 0) {
      InFlight& flight = (*in_flight)[earlier];
      COXSWAIN_RETURN_IF_ERROR(InBucket(flight.bucket, Advance(&flight)));
    }
    in_flight->erase(
        std::remove_if(in_flight->begin(), in_flight->end(),
                       [](const InFlight& flight) { return !flight.exchange; }),
        in_flight->end());
  }
  return absl::OkStatus();
}

absl::Status Reducer::WaitUntilReady(int bucket) {
  MutexLock lock(&mutex_);
  changed_.WaitForWork(&mutex_,
                       [this, bucket]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                         return pending_[bucket] == 0 || !status_.ok();
                       });
  return status_;
}

absl::Status Reducer::Begin(int bucket, std::vector<InFlight>* in_flight) {
  const absl::Time now = options_.clock->Now();
  {
    MutexLock lock(&mutex_);
    timings_[bucket].launched = now;
  }
  InFlight flight;
  flight.bucket = bucket;
  COXSWAIN_ASSIGN_OR_RETURN(flight.exchange,
                            hook_->Prepare(buckets_[bucket], *communicator_));
  flight.work = Work::Ended(absl::OkStatus());
  in_flight->push_back(std::move(flight));
  return Advance(&in_flight->back());
}

absl::Status Reducer::Advance(InFlight* flight) {
  COXSWAIN_RETURN_IF_ERROR(flight->work->Wait(options_.timeout));
  COXSWAIN_ASSIGN_OR_RETURN(flight->work, flight->exchange->Advance());
  if (flight->work) return absl::OkStatus();
  flight->exchange.reset();
  const absl::Time now = options_.clock->Now();
  MutexLock lock(&mutex_);
  timings_[flight->bucket].done = now;
  return absl::OkStatus();
}

absl::Status Reducer::BroadcastFromRoot(const std::vector<Span>& spans) {
  int64_t packed_bytes = 0;
  for (const Span& span : spans) {
    if (span.device.kind != Device::Kind::kCpu) {
      return absl::UnimplementedError("only host memory can be broadcast");
    }
    if (span.bytes() < kBroadcastBytes) packed_bytes += span.bytes();
  }
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(status_);
    if (state_ != State::kIdle) {
      return absl::FailedPreconditionError(
          "a broadcast in the middle of a step; finish the step first");
    }
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::shared_ptr<BufferOwner> buffer,
      communicator_->AllocateBuffer(std::min(packed_bytes, kBroadcastBytes),
                                    DType::kUInt8));
  std::vector<Span> pack;
  int64_t pack_bytes = 0;
  for (const Span& span : spans) {
    if (span.bytes() >= kBroadcastBytes) {
      COXSWAIN_RETURN_IF_ERROR(Broadcast(AsBytes(span), nullptr));
      continue;
    }
    if (pack_bytes + span.bytes() > kBroadcastBytes) {
      COXSWAIN_RETURN_IF_ERROR(BroadcastPacked(pack, buffer));
      pack.clear();
      pack_bytes = 0;
    }
    pack.push_back(span);
    pack_bytes += span.bytes();
  }
  return BroadcastPacked(pack, buffer);
}

absl::Status Reducer::BroadcastPacked(const std::vector<Span>& spans,
                                      std::shared_ptr<BufferOwner> buffer) {
  const Span packed = buffer->span();
  char* const bytes = static_cast<char*>(packed.data);
  int64_t total = 0;
  for (const Span& span : spans) {
    CopyBytes(bytes + total, span.data, span.bytes());
    total += span.bytes();
  }
  if (total == 0) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(Broadcast(packed.Slice(0, total), buffer));
  int64_t offset = 0;
  for (const Span& span : spans) {
    CopyBytes(span.data, bytes + offset, span.bytes());
    offset += span.bytes();
  }
  return absl::OkStatus();
}

absl::Status Reducer::Broadcast(Span span,
                                std::shared_ptr<BufferOwner> memory) {
  const WorkPtr work = communicator_->Broadcast(span, 0);
  work->OnDone([memory = std::move(memory)](const absl::Status&) {});
  const absl::Status status = work->Wait(options_.timeout);
  if (status.ok()) return status;
  const absl::Status failed = Fail(WithPrefix("broadcast: ", status));
  // Aborted, it ends soon; until then it uses the caller's memory.
  (void)work->Wait(options_.timeout);
  return failed;
}

}  // namespace coxswain
