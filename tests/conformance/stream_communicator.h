#ifndef COXSWAIN_TESTS_CONFORMANCE_STREAM_COMMUNICATOR_H_
#define COXSWAIN_TESTS_CONFORMANCE_STREAM_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/comm/communicator.h"
#include "client/comm/device_queue.h"
#include "client/device/emulated/emulated_runtime.h"

namespace coxswain {

// A rank's communicator on an emulated device: the collectives of another one,
// which moves the CPU's memory, started by a stream in the order of whatever
// else is on it. So a hook's path on a GPU meets every wait that it lacks, and
// its results are comparable bit by bit with those on the CPU. Spans in the
// host's memory travel in the same order. No messages.
//
// The runtime outlives it. Threading as any communicator's.
class StreamCommunicator : public Communicator, public DeviceQueue {
 public:
  // `records`: whether sequences can be recorded.
  StreamCommunicator(std::unique_ptr<Communicator> inner,
                     EmulatedRuntime& runtime, bool records = true);
  // Waits for what is on the stream; abort it where peers do not come.
  ~StreamCommunicator() override;

  absl::string_view backend() const override { return "stream"; }
  DeviceQueue* device_queue() override { return this; }
  void Abort(absl::string_view reason) override;
  int64_t wire_bytes() const override { return 0; }

  DeviceRuntime& runtime() override { return runtime_; }
  DeviceStream stream() override { return stream_; }
  WorkPtr Mark() override;
  absl::StatusOr<std::unique_ptr<DeviceSequence>> Record(
      const std::function<absl::Status()>& enqueue) override;
  absl::Status Replay(const DeviceSequence& sequence) override;

  int64_t recorded() const { return recorded_; }
  int64_t replayed() const { return replayed_; }
  int64_t marks() const { return marks_; }

 protected:
  WorkPtr DoAllReduce(Span span, ReduceOp op) override;
  WorkPtr DoBroadcast(Span span, int root) override;
  WorkPtr DoAgree(const CollectiveHeader& header) override;
  WorkPtr DoAllGather(Span input, Span output) override;
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override;
  WorkPtr DoAllToAll(Span input, Span output) override;
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  // The first error of the inner communicator; used by the stream's thread.
  struct Outcome {
    absl::Status status;
  };

  // Starts it when the stream gets there, and keeps the stream until it ends.
  WorkPtr Enqueue(std::function<WorkPtr(Communicator&)> start);

  const std::shared_ptr<Communicator> inner_;
  EmulatedRuntime& runtime_;
  const bool records_;
  DeviceStream stream_ = nullptr;
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
  bool recording_ = false;
  int64_t recorded_ = 0;
  int64_t replayed_ = 0;
  int64_t marks_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_STREAM_COMMUNICATOR_H_
