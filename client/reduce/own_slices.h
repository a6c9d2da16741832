#ifndef COXSWAIN_CLIENT_REDUCE_OWN_SLICES_H_
#define COXSWAIN_CLIENT_REDUCE_OWN_SLICES_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"

namespace coxswain {

// This rank's slice of each bucket (BucketSlices), in memory apart from the
// buckets and on their device: what stays of them where their own memory does
// not, or where averages are added up.
class OwnSlices {
 public:
  // Takes the memory, of zeros, from the communicator. Fails with the errors of
  // Communicator::AllocateBuffer.
  static absl::StatusOr<std::unique_ptr<OwnSlices>> Create(
      const std::vector<Bucket>& buckets, Communicator& communicator);

  const Span& at(int bucket) const {
    return slices_[static_cast<size_t>(bucket)];
  }

 private:
  OwnSlices() = default;

  std::unique_ptr<BufferOwner> memory_;  // of all
  std::vector<Span> slices_;             // by bucket, without padding
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_OWN_SLICES_H_
