#ifndef COXSWAIN_CLIENT_CHECKPOINT_RANGE_DOWNLOAD_H_
#define COXSWAIN_CLIENT_CHECKPOINT_RANGE_DOWNLOAD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/checkpoint/checkpoint_client.h"
#include "proto/checkpoint.pb.h"

namespace coxswain {

// Returns the error for a shard that was received otherwise than it was sent.
absl::Status DamagedShard(absl::string_view id, int shard,
                          absl::string_view what);

// Downloads ranges of a shard, some in each call. Where one breaks off, the
// next goes on behind the bytes that have come.
class RangeDownload {
 public:
  RangeDownload(absl::string_view id, int shard,
                const std::vector<ShardRange>& ranges,
                const CheckpointClient::TakeBytes& take)
      : id_(id), shard_(shard), ranges_(ranges), take_(take) {}

  bool done() const { return at_ == ranges_.size(); }

  // Makes one call, for the ranges that have not come.
  absl::Status Once(MemberContext& member, absl::Duration timeout);

 private:
  absl::Status Take(const v1::Chunk& chunk,
                    const std::vector<absl::string_view>& data);

  const absl::string_view id_;
  const int shard_;
  const std::vector<ShardRange>& ranges_;
  const CheckpointClient::TakeBytes& take_;
  size_t at_ = 0;      // the range that comes next
  int64_t taken_ = 0;  // of that one
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_RANGE_DOWNLOAD_H_
