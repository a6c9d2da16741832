#ifndef COXSWAIN_CLIENT_COMM_PARAMETER_SERVER_OPERATION_STREAM_H_
#define COXSWAIN_CLIENT_COMM_PARAMETER_SERVER_OPERATION_STREAM_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "client/rpc/parameter_stub.h"
#include "proto/parameter.pb.h"

namespace coxswain {

// Counts the bytes that were sent to and came from the coordinator. Those of a
// child count for its parent too.
struct TransferBytes {
  std::atomic<int64_t> sent{0};
  std::shared_ptr<TransferBytes> parent;

  void AddSent(int64_t bytes) {
    for (TransferBytes* all = this; all != nullptr; all = all->parent.get()) {
      all->sent.fetch_add(bytes);
    }
  }
};

// This rank's part of a tensor at the coordinator, and where to store what it
// receives of it. The memory stays valid until the operation has ended.
struct TensorTransfer {
  v1::ExchangeOperation operation;  // but for its id
  const char* input = nullptr;      // operation.bytes of them; null: no part
  char* output = nullptr;           // the runs of operation.range in a row

  int64_t input_bytes() const {
    return input == nullptr ? 0 : operation.bytes();
  }
  int64_t output_bytes() const {
    return operation.range().bytes() * operation.range().count();
  }
};

// One rank's stream to the coordinator: operations are sent in the order of
// their beginning, chunk by chunk, and results are received directly into their
// memory; several may be in flight. Made by the communicator. Thread-safe.
class OperationStream {
 public:
  class Operation;
  using OperationPtr = std::shared_ptr<Operation>;

  // `on_generation_end` is called at most once, on a thread of the library,
  // when the coordinator ends the stream because the generation has ended.
  OperationStream(std::shared_ptr<ParameterStub> stub,
                  std::shared_ptr<TransferBytes> bytes,
                  std::function<void(const absl::Status&)> on_generation_end);
  ~OperationStream();
  OperationStream(const OperationStream&) = delete;
  OperationStream& operator=(const OperationStream&) = delete;

  // Takes the rank's place; blocks until the coordinator has accepted it.
  // Called once, before operations begin; Close ends it.
  absl::Status Open(const v1::ExchangeOpen& open, absl::Duration timeout);

  // Queues the operation and returns at once.
  OperationPtr Begin(const TensorTransfer& transfer);

  // Returns how it has ended, or nullopt if it had not by that time (of
  // Clock::Real()).
  std::optional<absl::Status> Wait(const OperationPtr& operation,
                                   absl::Time until);

  // Ends the operation with `why` unless it has ended; its memory is not used
  // any more. Returns how it has ended.
  absl::Status Abandon(const OperationPtr& operation, const absl::Status& why);

  // Ends the stream and all operations with `why`; their memory is not used any
  // more. Does not block for long; the first reason stays.
  void Close(const absl::Status& why);

 private:
  void OnEvent(const ExchangeEvent& event);
  void OnWritten();
  void OnEnd(const absl::Status& status);

  // Writes the next message unless one is being written.
  void PumpLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendLocked(Operation* operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReceiveLocked(const ExchangeEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLocked(Operation* operation, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked(const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ParameterStub> stub_;
  const std::shared_ptr<TransferBytes> bytes_;
  const std::function<void(const absl::Status&)> on_generation_end_;

  Mutex mutex_;
  CondVar changed_;
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t receiving_ ABSL_GUARDED_BY(mutex_) = 0;  // the operation
  std::deque<OperationPtr> to_send_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, OperationPtr> active_ ABSL_GUARDED_BY(mutex_);
  // Goes first: no callback runs after it.
  std::unique_ptr<ExchangeStream> stream_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_PARAMETER_SERVER_OPERATION_STREAM_H_
