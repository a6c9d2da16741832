#ifndef COXSWAIN_CLIENT_PIPELINE_BOUNDARY_H_
#define COXSWAIN_CLIENT_PIPELINE_BOUNDARY_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/wait_count.h"
#include "client/comm/channel.h"
#include "client/comm/communicator.h"
#include "client/pipeline/message_header.h"
#include "client/pipeline/stage_runner.h"

namespace coxswain {

// One way across the boundary of two stages on different ranks: messages, each
// of the tensors of one micro-batch, over a channel with slots. A message is a
// header, which has the types and shapes, so that these may differ from one
// micro-batch to the next, and the elements, cut into blocks of a slot each.
// Messages arrive in the order in which they were sent.
//
// Each end has a thread, so that sending and receiving go on while a stage
// computes. Only the callers of Send, Flush and Receive wait for the peer, as
// the communicator counts it.
struct BoundaryOptions {
  int peer = 0;      // a rank of the communicator
  uint32_t tag = 0;  // of the channel
  int64_t slot_bytes = int64_t{1} << 20;
  int slots = 4;
  // Messages that wait at an end, at most: to be written, or to be received.
  int capacity = 1;
  // The most bytes of a message. A header that states more is refused before
  // memory is taken for it.
  int64_t max_message_bytes = int64_t{1} << 30;
  // How long Send, Flush and Receive wait for the peer.
  absl::Duration timeout = absl::Minutes(5);
};

// Threading: Send and Flush by one thread at a time. Destroyed before the
// communicator; what has not been flushed may be lost.
class BoundarySender {
 public:
  // Does not wait for the peer. The errors are those of OpenSender.
  static absl::StatusOr<std::unique_ptr<BoundarySender>> Open(
      Communicator* communicator, const BoundaryOptions& options);
  ~BoundarySender();

  // Hands over a message; waits while `capacity` others wait. The memory is
  // kept until it is written. INVALID_ARGUMENT: it has more tensors, dimensions
  // or bytes than there may be. DEADLINE_EXCEEDED: as many as before still
  // wait. The channel's error: nothing can be sent any more.
  absl::Status Send(int micro_batch, Activations tensors);
  // Waits until the peer's end has all of them; for as long as they become
  // fewer within each timeout.
  absl::Status Flush();
  // So many messages may wait from now on; never fewer than before.
  void RaiseCapacity(int capacity);

 private:
  struct Message {
    MessageHeader header;
    Activations tensors;
  };

  BoundarySender(const BoundaryOptions& options,
                 std::shared_ptr<WaitCount> waits,
                 std::unique_ptr<ChannelSender> channel);
  void Write();
  absl::Status Write(const Message& message);
  absl::Status WriteBlock(void* data, int64_t bytes);
  bool stopping();

  const BoundaryOptions options_;
  const std::shared_ptr<WaitCount> waits_;  // may be null
  const std::unique_ptr<ChannelSender> channel_;
  Mutex mutex_;
  CondVar changed_;
  int capacity_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  // The first one is being written.
  std::deque<Message> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Threading: as BoundarySender's.
class BoundaryReceiver {
 public:
  static absl::StatusOr<std::unique_ptr<BoundaryReceiver>> Open(
      Communicator* communicator, const BoundaryOptions& options);
  ~BoundaryReceiver();

  // So many messages will come, beside those expected before: begins to wait
  // for them.
  void Expect(int messages);
  void RaiseCapacity(int capacity);
  // Returns the next one, which must be of this micro-batch. INTERNAL: it is of
  // another, so that the ranks' schedules differ; or it is malformed.
  // RESOURCE_EXHAUSTED: it is larger than a message may be.
  absl::StatusOr<Activations> Receive(int micro_batch);

 private:
  struct Message {
    int micro_batch = 0;
    Activations tensors;
  };

  BoundaryReceiver(const BoundaryOptions& options,
                   std::shared_ptr<WaitCount> waits,
                   std::unique_ptr<ChannelReceiver> channel);
  void Read();
  absl::StatusOr<Message> ReadMessage();
  absl::Status ReadBlock(void* data, int64_t bytes, absl::Duration most);
  bool stopping();

  const BoundaryOptions options_;
  const std::shared_ptr<WaitCount> waits_;  // may be null
  const std::unique_ptr<ChannelReceiver> channel_;
  Mutex mutex_;
  CondVar changed_;
  int capacity_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  int64_t expected_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Message> arrived_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_PIPELINE_BOUNDARY_H_
