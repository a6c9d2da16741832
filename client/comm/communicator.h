#ifndef COXSWAIN_CLIENT_COMM_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/wait_count.h"
#include "client/comm/channel.h"
#include "client/comm/collective_header.h"
#include "client/comm/work.h"
#include "client/device/tensor.h"

namespace coxswain {

using ReduceOp = ElementOp;

class DataKey;        // client/comm/data_key.h
class DeviceQueue;    // client/comm/device_queue.h
class MeasuredLinks;  // client/comm/measured_links.h

// Memory that a back end handed out; freed on destruction.
class BufferOwner {
 public:
  virtual ~BufferOwner() = default;
  virtual Span span() const = 0;
};

// Moves data among the ranks of one process group. A back end is a class
// derived from this one, in a folder of client/comm; all of them, the fakes
// too, pass tests/conformance/communicator_conformance.h.
//
// Life-cycle: made by a CommunicatorFactory for one (group, generation); ends
// with the generation. Every rank must start the same collectives in the same
// order. Collectives of one communicator run in that order, one after the
// other; those of different communicators run independently. All count, also
// those without elements and those that are refused: where ranks begin
// different collectives in the same place, all of them get INVALID_ARGUMENT
// that names the ranks and what each began, no data has moved, and the
// communicator can still be used. `nccl` cannot compare
// (docs/communicators.md).
//
// Threading: collectives are started by one thread at a time (the order must
// be defined); Abort and the counters are safe from any thread.
//
// Memory handed in stays valid and untouched by the caller until the Work has
// ended. In place unless stated otherwise. A back end moves memory of the CPU,
// or of one GPU and, through that and meant for small amounts, of the CPU; a
// span elsewhere is INVALID_ARGUMENT.
//
// Results: all ranks receive the same bits. Sums of float16 and bfloat16 are
// rounded to that type once per hop or better; the bits are the same anyway.
//
// Errors, through the Work:
//   INVALID_ARGUMENT   counts or roots that are not valid, at once; ranks that
//                      begin different collectives
//   UNIMPLEMENTED      an optional ability this back end lacks
//   ABORTED            Abort was called; the message has its reason
//   DEADLINE_EXCEEDED  no answer from a peer within the options' timeout
//   UNAVAILABLE        a peer's connection broke
// After any error but the first two the communicator cannot be used any more:
// everything started later ends with ABORTED.
class Communicator {
 public:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual absl::string_view backend() const = 0;

  // Gives all ranks the sum (or minimum, maximum) over the ranks. The one
  // collective that every back end has.
  WorkPtr AllReduce(Span span, ReduceOp op = ReduceOp::kSum);
  // Copies root's data to all ranks.
  WorkPtr Broadcast(Span span, int root);
  // Ends when all ranks have started it.
  WorkPtr Barrier();
  // Ends when all ranks have begun a collective in this place: with OK if that
  // is `header` on all of them, but for the sequence number, which the back end
  // sets. Moves no data. For communicators that are made of others.
  WorkPtr Agree(const CollectiveHeader& header);

  // The following are optional abilities: UNIMPLEMENTED where a back end lacks
  // one.

  // Concatenates the inputs: `output` is size() times `input`, ordered by rank.
  WorkPtr AllGather(Span input, Span output);
  // Sums slices: `input` is size() times `output`; rank r receives the sum of
  // the slices r.
  WorkPtr ReduceScatter(Span input, Span output, ReduceOp op = ReduceOp::kSum);
  // Gives all ranks the mean over the ranks of what lies in `parts`, one after
  // the other, in place: the same bits as if each rank divided its elements by
  // size(), rounded to their type, and called AllReduce with them in one piece.
  // Parts are of one floating-point type and do not overlap. The elements of
  // all of them together are as many on all ranks; how they are divided into
  // parts is each rank's own affair. After an error of a peer, or a deadline,
  // each element may be as it was, its mean, or anything between: it is not to
  // be used. Nothing between the parts is touched.
  WorkPtr AllReduceMean(const std::vector<Span>& parts);
  // Returns whether this back end can, without passes or copies of its own; the
  // same on all ranks.
  virtual bool has_mean() const { return false; }
  // Exchanges slices: both have size() slices; slice r of `input` goes to rank
  // r.
  WorkPtr AllToAll(Span input, Span output);
  // Send and receive a message between two different ranks. Not counted as a
  // collective: the two ends pair by (peer, tag).
  WorkPtr Send(Span span, int peer, uint32_t tag);
  WorkPtr Receive(Span span, int peer, uint32_t tag);
  // Open this rank's end of a channel (client/comm/channel.h) to, or from,
  // another rank, which opens the other end with the same slots. Do not wait
  // for that. INVALID_ARGUMENT for options that are not valid, or a tag that
  // was used; RESOURCE_EXHAUSTED if there is no memory for the slots, or the
  // peer has not opened kMaxUnopenedChannels others.
  absl::StatusOr<std::unique_ptr<ChannelSender>> OpenSender(
      const ChannelOptions& options);
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> OpenReceiver(
      const ChannelOptions& options);

  // Returns a communicator among `ranks` of this one, in that order: rank i of
  // the new one is ranks[i] here. All of them call it with the same list, and
  // among several lists that share a rank in the same order; the others do not.
  // Blocks until they have met, up to the back end's timeout. The abort,
  // failure or end of this communicator aborts those split off, which may
  // outlive it but cannot be used then. Fails with DEADLINE_EXCEEDED or
  // UNAVAILABLE, naming the ranks that did not arrive; with ABORTED and the
  // reason if this communicator has ended; with INVALID_ARGUMENT if the list is
  // empty, has doubles or lacks this rank. A failed split leaves this
  // communicator as it was. Calls must not overlap with the start of
  // collectives by other threads.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      const std::vector<int>& ranks);

  // Returns memory that this back end moves best (registered, shared, on its
  // device), of zeros. Of the CPU's, large memory takes what is used of it,
  // once it is. By default plain aligned memory.
  virtual absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype);

  // Returns the stream that collectives on GPU memory run on; null if this back
  // end moves CPU memory only.
  virtual DeviceQueue* device_queue() { return nullptr; }

  // Ends everything in flight and to come with ABORTED. Returns at once, from
  // any thread, any number of times; the first reason stays. Peers that wait
  // for this rank soon end as well, with ABORTED or UNAVAILABLE.
  virtual void Abort(absl::string_view reason) = 0;

  // Returns how many collectives were started here; equal on all ranks that are
  // in step.
  int64_t sequence() const { return sequence_.load(); }
  // Returns the bytes that callers handed to collectives, sends and channels of
  // this rank: the span of an all-reduce, the input otherwise; a broadcast
  // counts at its root, a receive and a barrier nowhere. Includes those of the
  // communicators split off this one, also after their end.
  int64_t payload_bytes() const { return payload_->bytes.load(); }
  // Counts there, from now on, the threads that wait for collectives, messages
  // and channels of this communicator, and of those split off it later. Before
  // its first use.
  void CountWaitsIn(std::shared_ptr<WaitCount> waits) {
    waits_ = std::move(waits);
  }
  // Returns where they count, for those who wait for others in ways of their
  // own; null: nowhere.
  const std::shared_ptr<WaitCount>& waits() const { return waits_; }
  // Returns the bytes that this back end handed to its transport for other
  // processes, including those of communicators split off.
  virtual int64_t wire_bytes() const = 0;

 protected:
  // Fails with INVALID_ARGUMENT for memory that this back end does not move.
  virtual absl::Status CheckPlace(const Span& span) const;

  // The back end's part of each collective: ends the Work later. Arguments have
  // been checked, and there are elements.
  virtual WorkPtr DoAllReduce(Span span, ReduceOp op) = 0;
  virtual WorkPtr DoBroadcast(Span span, int root) = 0;
  // See Agree: of barriers, of collectives without elements, and of refused
  // ones, whose Work no caller waits for.
  virtual WorkPtr DoAgree(const CollectiveHeader& header) = 0;
  virtual WorkPtr DoAllGather(Span input, Span output);
  virtual WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op);
  // `parts` has no empty ones; `all` has the count and type of all of them.
  virtual WorkPtr DoAllReduceMean(std::vector<Span> parts, const Span& all);
  virtual WorkPtr DoAllToAll(Span input, Span output);
  virtual WorkPtr DoSend(Span span, int peer, uint32_t tag);
  virtual WorkPtr DoReceive(Span span, int peer, uint32_t tag);
  virtual absl::StatusOr<std::unique_ptr<ChannelSender>> DoOpenSender(
      const ChannelOptions& options);
  virtual absl::StatusOr<std::unique_ptr<ChannelReceiver>> DoOpenReceiver(
      const ChannelOptions& options);
  // Splits off the communicator of a list that has been checked; UNIMPLEMENTED
  // by default.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks);

  // Adds to sequence() and payload_bytes(), for collectives that are noted
  // without being run, and run without being started (DeviceQueue).
  void AddToCounts(int64_t collectives, int64_t bytes);

 private:
  class CheckedSender;
  class CheckedReceiver;
  // A child adds to its own and to its parents'.
  struct Payload {
    std::atomic<int64_t> bytes{0};
    std::shared_ptr<Payload> parent;
  };

  // Announces a call that is refused with `why`, and returns that.
  WorkPtr Refuse(CollectiveKind kind, absl::Status why);
  absl::Status CheckChannel(const ChannelOptions& options) const;
  // CheckPlace for all memory, after what the caller found.
  absl::Status CheckPlaces(absl::Status found, const Span& input,
                           const Span& output) const;
  // Counts a collective, or a message, that hands in `bytes`.
  void Count(int64_t bytes);
  void CountPayload(int64_t bytes);
  // Returns an operation that was started, whose waits count.
  WorkPtr Started(WorkPtr work) const;

  const int rank_;
  const int size_;
  std::atomic<int64_t> sequence_{0};
  const std::shared_ptr<Payload> payload_ = std::make_shared<Payload>();
  std::shared_ptr<WaitCount> waits_;  // may be null
};

// Returns memory of the CPU that this communicator moves, for control data that
// its user reads and writes: from AllocateBuffer, unless that returns a GPU's.
absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateHostBuffer(
    Communicator& communicator, int64_t count, DType dtype);

// Implemented by a communicator whose back end notices by itself that a peer
// has ended. Found by dynamic_cast: most holders of a communicator do not need
// it.
class PeerLossSource {
 public:
  using OnLost = std::function<void(int peer)>;

  virtual ~PeerLossSource() = default;

  // Calls `on_lost` for each peer, by its rank in the communicator, whose
  // connection has broken or breaks before the communicator itself has ended;
  // each at least once. On threads of the back end, which it must not block, or
  // the caller's; not after the communicator is destroyed. Called once.
  virtual void WatchPeerLosses(OnLost on_lost) = 0;
};

// Where ranks of one communicator find each other. Implemented over the
// coordinator's Store by the session, and in memory for tests. Thread-safe.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // Returns the key's value; waits until it exists.
  virtual absl::StatusOr<std::string> Get(absl::string_view key,
                                          absl::Duration timeout) = 0;
};

// What a back end needs to make a communicator.
struct CommunicatorOptions {
  std::string id;  // GroupInfo.communicator_id: names this communicator
  int rank = 0;    // in the group
  int size = 1;
  // The address that peers on other hosts reach this process at.
  std::string address = "127.0.0.1";
  std::shared_ptr<RendezvousStore> store;
  // Whether what travels between ranks is to be encrypted, with this key; not
  // both: FAILED_PRECONDITION. Equal on all ranks. Back ends that cannot
  // encrypt ignore them.
  bool encrypts = false;
  std::shared_ptr<const DataKey> data_key;
  // Where the memory is that this rank's data lies in. Back ends of the CPU
  // ignore it.
  Device device;
  // How long to wait for peers, when connecting and within a collective.
  absl::Duration timeout = absl::Minutes(5);
  // The timeout of connecting, if shorter than `timeout`; back ends that cannot
  // bound it ignore it.
  absl::Duration connect_timeout = absl::InfiniteDuration();
  // What is known of the links between hosts, for back ends whose order of
  // ranks depends on it. May be null: nothing is.
  std::shared_ptr<MeasuredLinks> links;
  // Of rank 0: measure them while this communicator lives, if the back end can.
  // Not for those that are split off.
  bool measures_links = false;
  // Ends connecting at once when it is raised, with the signal's status. Not
  // used afterwards. May be null; outlives connecting.
  CancelSignal* cancel = nullptr;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_COMMUNICATOR_H_
