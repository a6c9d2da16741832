#include "client/comm/tcp/ring.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reduce_elements.h"
#include "client/comm/tcp/transfer.h"

namespace coxswain {
namespace {

// The state of one ring. Steps count from 0: n - 1 that reduce, and then n - 1
// that gather; a plan has the first, the last, or all of them. In step s the
// rank in place p sends the slice of place p - s - 1 and receives that of place
// p - s - 2.
class Ring {
 public:
  Ring(DataPaths* paths, const RingPlan& plan)
      : paths_(*paths),
        plan_(plan),
        size_(paths->size()),
        place_(plan.ring->place(plan.rank)),
        first_(plan.input.empty() ? size_ - 1 : 0),
        end_(plan.gathered.empty() ? size_ - 1 : 2 * (size_ - 1)) {
    for (int step = first_; step < end_; ++step) {
      outgoing_.push_back(Append(SliceSent(step), &sent_));
      incoming_.push_back(Append(SliceReceived(step), &received_));
    }
    for (int slice = 0; slice < size_; ++slice) {
      slice_bytes_ = std::max(slice_bytes_, Layout(slice).bytes);
    }
    chunk_bytes_ = Layout(0).chunk_bytes;
    stripes_ = paths_.stripes(previous());
  }

  // Of chunks that arrive to be reduced, and of two steps' partial sums.
  int64_t scratch_bytes() const {
    if (plan_.input.empty()) return 0;
    return stripes_ * chunk_bytes_ + (plan_.in_place ? 0 : 2 * slice_bytes_);
  }

  absl::Status Run(char* scratch, absl::Time deadline) {
    scratch_ = scratch;
    Flow out;
    out.peer = next();
    out.outgoing = true;
    out.chunks = static_cast<int64_t>(sent_.size());
    out.piece = [this](int64_t i) { return Sent(i); };
    out.done = [this](int64_t i) { sent_[static_cast<size_t>(i)] = 1; };
    Flow in;
    in.peer = previous();
    in.chunks = static_cast<int64_t>(received_.size());
    in.piece = [this](int64_t i) { return Received(i); };
    in.done = [this](int64_t i) { OnReceived(i); };
    return FlowTransfer(&paths_, {std::move(out), std::move(in)}).Run(deadline);
  }

 private:
  // A chunk of a flow: its step, and which of its slice's it is.
  struct Place {
    int step = 0;
    int64_t chunk = 0;
  };

  int next() const { return plan_.ring->next(plan_.rank); }
  int previous() const { return plan_.ring->previous(plan_.rank); }
  int SliceSent(int step) const {
    return plan_.ring->rank(place_ - (step + 1) % size_);
  }
  int SliceReceived(int step) const { return SliceSent(step + 1); }
  const Chunked& Layout(int slice) const {
    return (plan_.input.empty() ? plan_.gathered
                                : plan_.input)[static_cast<size_t>(slice)];
  }
  bool reduces(int step) const { return step < size_ - 1; }

  // Adds a step's chunks to a flow; returns where they begin.
  int64_t Append(int slice, std::vector<char>* flow) const {
    const size_t begin = flow->size();
    flow->resize(begin + static_cast<size_t>(Layout(slice).chunks()));
    return static_cast<int64_t>(begin);
  }
  Place PlaceOf(const std::vector<int64_t>& begins, int64_t i) const {
    const auto after = std::upper_bound(begins.begin(), begins.end(), i);
    const auto step = static_cast<int>(after - begins.begin()) - 1;
    return {first_ + step, i - begins[static_cast<size_t>(step)]};
  }
  static int64_t IndexOf(const std::vector<int64_t>& begins, int step,
                         int64_t chunk) {
    return begins[static_cast<size_t>(step)] + chunk;
  }

  // Returns where a step's sum goes.
  Piece SumOf(const Place& place) const {
    const int slice = SliceReceived(place.step);
    if (place.step == size_ - 2) return plan_.result.chunk(place.chunk);
    const Piece own =
        plan_.input[static_cast<size_t>(slice)].chunk(place.chunk);
    if (plan_.in_place) return own;
    return {scratch_ + stripes_ * chunk_bytes_ +
                (place.step % 2) * slice_bytes_ + place.chunk * chunk_bytes_,
            own.bytes};
  }

  // Returns where a chunk arrives to be reduced.
  char* Arrived(int64_t i) const {
    return scratch_ + (i % stripes_) * chunk_bytes_;
  }

  Piece Sent(int64_t i) const {
    const Place place = PlaceOf(outgoing_, i);
    const int slice = SliceSent(place.step);
    if (place.step > first_) {
      // It is what came in the step before.
      const int64_t came =
          IndexOf(incoming_, place.step - 1 - first_, place.chunk);
      if (received_[static_cast<size_t>(came)] == 0) return Piece();
    }
    if (place.step >= size_ - 1) {
      return plan_.gathered[static_cast<size_t>(slice)].chunk(place.chunk);
    }
    return place.step > 0 ? SumOf({place.step - 1, place.chunk})
                          : Layout(slice).chunk(place.chunk);
  }

  Piece Received(int64_t i) const {
    const Place place = PlaceOf(incoming_, i);
    const int slice = SliceReceived(place.step);
    if (!reduces(place.step)) {
      return plan_.gathered[static_cast<size_t>(slice)].chunk(place.chunk);
    }
    if (!plan_.in_place && place.step >= 2 &&
        place.chunk < Layout(SliceSent(place.step - 1)).chunks()) {
      // What the partial sum of two steps before lies in must have gone.
      const int64_t gone = IndexOf(outgoing_, place.step - 1, place.chunk);
      if (sent_[static_cast<size_t>(gone)] == 0) return Piece();
    }
    return {Arrived(i), Layout(slice).chunk(place.chunk).bytes};
  }

  void OnReceived(int64_t i) {
    const Place place = PlaceOf(incoming_, i);
    received_[static_cast<size_t>(i)] = 1;
    if (!reduces(place.step)) return;
    const Piece own =
        plan_.input[static_cast<size_t>(SliceReceived(place.step))].chunk(
            place.chunk);
    const auto width = static_cast<int64_t>(SizeOf(plan_.dtype));
    ForEachRun(own, SumOf(place),
               [&](int64_t at, const char* part, char* sum, int64_t bytes) {
                 const auto count = static_cast<size_t>(bytes / width);
                 const char* const arrived = Arrived(i) + at;
                 if (plan_.divisor == 1) {
                   ReduceElements(plan_.dtype, plan_.op, sum, arrived, part,
                                  count);
                 } else {
                   // In the first step a rank's own elements arrive, then sums.
                   AddQuotients(plan_.dtype, sum, arrived,
                                /*divides_a=*/place.step == 0, part,
                                plan_.divisor, count);
                 }
               });
  }

  DataPaths& paths_;
  const RingPlan& plan_;
  const int size_;
  const int place_;  // of this rank in the ring
  const int first_;  // step
  const int end_;
  // Where each step's chunks begin among those of the flow.
  std::vector<int64_t> outgoing_;
  std::vector<int64_t> incoming_;
  std::vector<char> sent_;      // by chunk of the flow
  std::vector<char> received_;  // by chunk of the flow
  int64_t slice_bytes_ = 0;     // of the longest
  int64_t chunk_bytes_ = 1;
  int stripes_ = 1;  // of what comes: each has space for a chunk
  char* scratch_ = nullptr;
};

}  // namespace

absl::Status RunRingPlan(DataPaths* paths, const RingPlan& plan,
                         Scratch* scratch, absl::Time deadline) {
  Ring ring(paths, plan);
  char* const memory = scratch->Get(ring.scratch_bytes());
  if (memory == nullptr && ring.scratch_bytes() > 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", ring.scratch_bytes(),
                     " bytes that arrive to be reduced"));
  }
  return ring.Run(memory, deadline);
}

absl::Status RunChain(DataPaths* paths, const RingRanks& ring, int rank,
                      int root, const Chunked& data, absl::Time deadline) {
  std::vector<char> here(static_cast<size_t>(data.chunks()), rank == root);
  std::vector<Flow> flows;
  if (rank != root) {
    Flow in;
    in.peer = ring.previous(rank);
    in.chunks = data.chunks();
    in.piece = [&data](int64_t i) { return data.chunk(i); };
    in.done = [&here](int64_t i) { here[static_cast<size_t>(i)] = 1; };
    flows.push_back(std::move(in));
  }
  if (ring.next(rank) != root) {
    Flow out;
    out.peer = ring.next(rank);
    out.outgoing = true;
    out.chunks = data.chunks();
    out.piece = [&](int64_t i) {
      return here[static_cast<size_t>(i)] != 0 ? data.chunk(i) : Piece();
    };
    flows.push_back(std::move(out));
  }
  return FlowTransfer(paths, std::move(flows)).Run(deadline);
}

}  // namespace coxswain
