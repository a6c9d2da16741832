#ifndef COXSWAIN_CLIENT_REDUCE_OWN_SLICES_H_
#define COXSWAIN_CLIENT_REDUCE_OWN_SLICES_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"

namespace coxswain {

// This rank's slice of each bucket (BucketSlices), in the CPU's memory and
// apart from the buckets: what stays of them where their own memory does not,
// or where averages are added up. For one thread at a time.
class OwnSlices {
 public:
  // Takes the memory from the communicator; the elements are zeros. Fails with
  // the errors of Communicator::AllocateBuffer.
  static absl::StatusOr<std::unique_ptr<OwnSlices>> Create(
      const std::vector<Bucket>& buckets, Communicator& communicator);

  const Span& at(int bucket) const {
    return slices_[static_cast<size_t>(bucket)];
  }
  // Copies the averages of a bucket's slice here, or adds them to what is here,
  // in their own type.
  void Put(int bucket, const Span& averages) const;
  void Add(int bucket, const Span& averages) const;

 private:
  OwnSlices() = default;

  std::unique_ptr<BufferOwner> memory_;  // of all
  std::vector<Span> slices_;             // by bucket, without padding
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_OWN_SLICES_H_
