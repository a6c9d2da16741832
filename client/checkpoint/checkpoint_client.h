#ifndef COXSWAIN_CLIENT_CHECKPOINT_CHECKPOINT_CLIENT_H_
#define COXSWAIN_CLIENT_CHECKPOINT_CHECKPOINT_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain {

class MemberContext;  // client/rpc/member_context.h

// What the coordinator knows of a complete checkpoint.
struct CheckpointDescription {
  std::string id;
  std::string job;
  int64_t step = 0;
  int shards = 0;
  std::map<std::string, std::string> metadata;
  int64_t bytes = 0;
  absl::Time created;
};

// Which complete checkpoints of the job are kept when one is committed: those
// that a rule keeps, and the new one. Without any rule the coordinator's rules
// count.
struct CheckpointRetention {
  int keep_last = 0;       // the last so many; 0: no rule
  int64_t keep_every = 0;  // whose step is a multiple of this; 0: no rule
};

// Bytes of a shard.
struct ShardRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Checkpoints of a job, kept by the coordinator: every rank saves its shard,
// then one of them commits, which makes the whole visible at once. Made by
// Session; training code uses training_state.h on top.
//
// Thread-safe. Calls block: Save and Load at most the transfer timeout per
// shard (LoadRanges per some thousand ranges), Commit as long (it is answered
// once retention has removed what it does not keep), the others 30 s. A broken
// connection is retried within that. Errors: as in proto/checkpoint.proto;
// DATA_LOSS if bytes do not match their checksums, in an upload or a download;
// ABORTED once the generation has ended.
class CheckpointClient {
 public:
  explicit CheckpointClient(std::shared_ptr<MemberContext> member,
                            absl::Duration transfer_timeout = absl::Minutes(10))
      : member_(std::move(member)), transfer_timeout_(transfer_timeout) {}

  // Opens the checkpoint of `step` or joins the open one, and uploads shard
  // `shard` of `shards`. All ranks pass the same shards and metadata. Returns
  // the checkpoint's id. An `owner` that keeps the bytes alive and unchanged
  // spares a copy of them; it may be released later than Save returns.
  absl::StatusOr<std::string> Save(
      int64_t step, int shard, int shards,
      const std::map<std::string, std::string>& metadata,
      absl::string_view bytes, std::shared_ptr<const void> owner = nullptr);

  // Completes the checkpoint; one rank calls it once, after every shard has
  // been saved.
  absl::StatusOr<CheckpointDescription> Commit(
      absl::string_view id, const CheckpointRetention& retention = {});

  // Returns the complete checkpoints of this job, newest first.
  absl::StatusOr<std::vector<CheckpointDescription>> List();

  absl::StatusOr<std::string> LoadShard(absl::string_view id, int shard);

  // Returns all shards, in order.
  absl::StatusOr<std::vector<std::string>> LoadAll(
      const CheckpointDescription& checkpoint);

  // Returns how many bytes each shard of a complete checkpoint has.
  absl::StatusOr<std::vector<int64_t>> ShardSizes(absl::string_view id);

  // Reads ranges of a shard, which ascend and do not overlap, and passes their
  // bytes to `take` in order, in parts of any size; an error of `take` ends it.
  // Holds one message at a time. The bytes are as the coordinator's disk has
  // them: only a whole shard can be compared with its checksum.
  //   UNIMPLEMENTED  the coordinator is of a version that sends whole shards
  using TakeBytes = std::function<absl::Status(absl::string_view)>;
  absl::Status LoadRanges(absl::string_view id, int shard,
                          const std::vector<ShardRange>& ranges,
                          const TakeBytes& take);

  absl::Status Delete(absl::string_view id);

 private:
  const std::shared_ptr<MemberContext> member_;
  const absl::Duration transfer_timeout_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_CHECKPOINT_CLIENT_H_
