#include "client/pipeline/boundary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/host_memory.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// How long a wait for the peer goes on before it looks whether it is to end.
constexpr absl::Duration kLook = absl::Milliseconds(50);

absl::Time Now() { return Clock::Real()->Now(); }

ChannelOptions ChannelOf(const BoundaryOptions& options) {
  return {options.peer, options.tag,
          std::max<int64_t>(options.slot_bytes, HeaderBytes().size()),
          options.slots};
}

Span BytesAt(void* data, int64_t bytes) {
  return {data, bytes, DType::kUInt8, {}};
}

// Calls `pass` with one block after the other.
template <typename Pass>
absl::Status InBlocks(const BoundaryOptions& options, void* data, int64_t bytes,
                      Pass pass) {
  const int64_t most = ChannelOf(options).slot_bytes;
  for (int64_t at = 0; at < bytes; at += most) {
    COXSWAIN_RETURN_IF_ERROR(
        pass(static_cast<char*>(data) + at, std::min(most, bytes - at)));
  }
  return absl::OkStatus();
}

// Repeats `attempt`, a call of a channel, for as long as the peer may take.
template <typename Attempt, typename Stopping>
absl::Status WithLooks(absl::Duration timeout, Attempt attempt,
                       Stopping stopping) {
  const absl::Time end = Now() + timeout;
  while (true) {
    const absl::Duration left = end - Now();
    const absl::Status status =
        attempt(std::clamp(left, absl::ZeroDuration(), kLook));
    if (!absl::IsDeadlineExceeded(status)) return status;
    if (stopping()) return absl::AbortedError("the pipeline has ended");
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("a message did not come to its end within ",
                       absl::FormatDuration(timeout)));
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<BoundarySender>> BoundarySender::Open(
    Communicator* communicator, const BoundaryOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(auto channel,
                            communicator->OpenSender(ChannelOf(options)));
  return std::unique_ptr<BoundarySender>(
      new BoundarySender(options, communicator->waits(), std::move(channel)));
}

BoundarySender::BoundarySender(const BoundaryOptions& options,
                               std::shared_ptr<WaitCount> waits,
                               std::unique_ptr<ChannelSender> channel)
    : options_(options),
      waits_(std::move(waits)),
      channel_(std::move(channel)),
      capacity_(options.capacity),
      thread_([this] { Write(); }) {}

BoundarySender::~BoundarySender() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

bool BoundarySender::stopping() {
  MutexLock lock(&mutex_);
  return stopping_;
}

absl::Status BoundarySender::Send(int micro_batch, Activations tensors) {
  COXSWAIN_ASSIGN_OR_RETURN(
      MessageHeader header,
      MessageHeader::Of(micro_batch, tensors, options_.max_message_bytes));
  const WaitCount::Scope waits(waits_.get());
  MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, options_.timeout,
                   [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                     return !failed_.ok() ||
                            waiting_.size() < static_cast<size_t>(capacity_);
                   });
  COXSWAIN_RETURN_IF_ERROR(failed_);
  if (waiting_.size() >= static_cast<size_t>(capacity_)) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", options_.peer, " did not take a message within ",
                     absl::FormatDuration(options_.timeout)));
  }
  waiting_.push_back({std::move(header), std::move(tensors)});
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status BoundarySender::Flush() {
  const WaitCount::Scope waits(waits_.get());
  {
    MutexLock lock(&mutex_);
    while (failed_.ok() && !waiting_.empty()) {
      const size_t before = waiting_.size();
      const bool fewer = changed_.WaitFor(
          &mutex_, options_.timeout, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
            return !failed_.ok() || waiting_.size() < before;
          });
      if (!fewer) {
        return absl::DeadlineExceededError(absl::StrCat(
            "rank ", options_.peer, " did not take a message within ",
            absl::FormatDuration(options_.timeout)));
      }
    }
    COXSWAIN_RETURN_IF_ERROR(failed_);
  }
  // The thread has nothing to write. What only is on its way may be lost with
  // the communicator.
  return channel_->Drain(options_.timeout);
}

void BoundarySender::RaiseCapacity(int capacity) {
  MutexLock lock(&mutex_);
  capacity_ = std::max(capacity_, capacity);
}

void BoundarySender::Write() {
  const WaitCount::Background background;
  MutexLock lock(&mutex_);
  while (!stopping_ && failed_.ok()) {
    const bool some = changed_.WaitFor(&mutex_, absl::Hours(1),
                                       [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                         return stopping_ || !waiting_.empty();
                                       });
    if (!some || stopping_) continue;
    // Others add behind it.
    const Message& first = waiting_.front();
    mutex_.Unlock();
    absl::Status status = Write(first);
    mutex_.Lock();
    if (status.ok()) {
      waiting_.pop_front();
    } else {
      failed_ = std::move(status);
    }
    changed_.NotifyAll();
  }
}

absl::Status BoundarySender::Write(const Message& message) {
  HeaderBytes bytes = message.header.Encode();
  COXSWAIN_RETURN_IF_ERROR(
      WriteBlock(bytes.data(), static_cast<int64_t>(bytes.size())));
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    COXSWAIN_RETURN_IF_ERROR(InBlocks(
        options_, message.tensors[i].memory.get(),
        message.header.tensors[i].bytes,
        [&](void* data, int64_t size) { return WriteBlock(data, size); }));
  }
  return absl::OkStatus();
}

absl::Status BoundarySender::WriteBlock(void* data, int64_t bytes) {
  // Those that wait for it, in Send and Flush, have a deadline.
  return WithLooks(
      absl::InfiniteDuration(),
      [&](absl::Duration timeout) {
        return channel_->Send(BytesAt(data, bytes), timeout);
      },
      [this] { return stopping(); });
}

absl::StatusOr<std::unique_ptr<BoundaryReceiver>> BoundaryReceiver::Open(
    Communicator* communicator, const BoundaryOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(auto channel,
                            communicator->OpenReceiver(ChannelOf(options)));
  return std::unique_ptr<BoundaryReceiver>(
      new BoundaryReceiver(options, communicator->waits(), std::move(channel)));
}

BoundaryReceiver::BoundaryReceiver(const BoundaryOptions& options,
                                   std::shared_ptr<WaitCount> waits,
                                   std::unique_ptr<ChannelReceiver> channel)
    : options_(options),
      waits_(std::move(waits)),
      channel_(std::move(channel)),
      capacity_(options.capacity),
      thread_([this] { Read(); }) {}

BoundaryReceiver::~BoundaryReceiver() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

bool BoundaryReceiver::stopping() {
  MutexLock lock(&mutex_);
  return stopping_;
}

void BoundaryReceiver::Expect(int messages) {
  MutexLock lock(&mutex_);
  expected_ += messages;
  changed_.NotifyAll();
}

void BoundaryReceiver::RaiseCapacity(int capacity) {
  MutexLock lock(&mutex_);
  capacity_ = std::max(capacity_, capacity);
  changed_.NotifyAll();
}

absl::StatusOr<Activations> BoundaryReceiver::Receive(int micro_batch) {
  const WaitCount::Scope waits(waits_.get());
  MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, options_.timeout,
                   [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                     return !failed_.ok() || !arrived_.empty();
                   });
  if (arrived_.empty()) {
    COXSWAIN_RETURN_IF_ERROR(failed_);
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", options_.peer, " did not send a message within ",
                     absl::FormatDuration(options_.timeout)));
  }
  Message message = std::move(arrived_.front());
  arrived_.pop_front();
  changed_.NotifyAll();
  if (message.micro_batch != micro_batch) {
    return absl::InternalError(absl::StrCat(
        "rank ", options_.peer, " sent micro-batch ", message.micro_batch,
        " where ", micro_batch, " is due: the ranks' schedules differ"));
  }
  return std::move(message.tensors);
}

void BoundaryReceiver::Read() {
  const WaitCount::Background background;
  MutexLock lock(&mutex_);
  while (!stopping_ && failed_.ok()) {
    const bool some = changed_.WaitFor(
        &mutex_, absl::Hours(1), [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return stopping_ ||
                 (expected_ > 0 &&
                  arrived_.size() < static_cast<size_t>(capacity_));
        });
    if (!some || stopping_) continue;
    mutex_.Unlock();
    absl::StatusOr<Message> message = ReadMessage();
    mutex_.Lock();
    if (message.ok()) {
      --expected_;
      arrived_.push_back(*std::move(message));
    } else {
      failed_ = message.status();
    }
    changed_.NotifyAll();
  }
}

absl::StatusOr<BoundaryReceiver::Message> BoundaryReceiver::ReadMessage() {
  HeaderBytes bytes;
  // Receive, which waits for it, has a deadline.
  COXSWAIN_RETURN_IF_ERROR(ReadBlock(bytes.data(),
                                     static_cast<int64_t>(bytes.size()),
                                     absl::InfiniteDuration()));
  COXSWAIN_ASSIGN_OR_RETURN(
      const MessageHeader header,
      MessageHeader::Decode(bytes, options_.max_message_bytes));
  Message message;
  message.micro_batch = header.micro_batch;
  for (const MessageHeader::Tensor& one : header.tensors) {
    Activation tensor;
    tensor.dtype = one.dtype;
    tensor.dims = one.dims;
    tensor.absent = !one.present;
    if (one.bytes > 0) {
      HostMemory memory = AllocateHostMemory(static_cast<size_t>(one.bytes));
      if (memory == nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat("no memory for a tensor of ", one.bytes, " bytes"));
      }
      tensor.memory = std::shared_ptr<void>(std::move(memory));
    }
    COXSWAIN_RETURN_IF_ERROR(InBlocks(options_, tensor.memory.get(), one.bytes,
                                      [&](void* data, int64_t size) {
                                        return ReadBlock(data, size,
                                                         options_.timeout);
                                      }));
    message.tensors.push_back(std::move(tensor));
  }
  return message;
}

absl::Status BoundaryReceiver::ReadBlock(void* data, int64_t bytes,
                                         absl::Duration most) {
  return WithLooks(
      most,
      [&](absl::Duration timeout) {
        return channel_->Receive(BytesAt(data, bytes), timeout);
      },
      [this] { return stopping(); });
}

}  // namespace coxswain
