#ifndef COXSWAIN_SERVER_CHECKPOINT_CHECKPOINT_STORE_H_
#define COXSWAIN_SERVER_CHECKPOINT_CHECKPOINT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/histogram.h"
#include "base/ids.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/random.h"
#include "server/checkpoint/catalogue.h"
#include "server/checkpoint/lead_folder.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/retention.h"
#include "server/checkpoint/shard_transfer.h"
#include "server/generation/fence.h"
#include "server/generation/generation_guard.h"
#include "server/options/options.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// A checkpoint without its shards.
struct CheckpointSummary {
  std::string id;
  int64_t step = 0;
  Generation generation;  // 0: imported
  absl::Time created;     // of the calendar; of an open one the epoch
  int64_t bytes = 0;      // of what is there
  int shards = 0;         // that it has, or is to have
  bool complete = false;
};

// The checkpoints of a job in brief, for callers that ask often.
struct CheckpointOverview {
  size_t complete = 0;
  std::vector<CheckpointSummary> newest;  // the newest first
};

// Checkpoints on disk, in two phases: shards are uploaded into a folder of
// their own and verified; Commit moves them to the checkpoint's folder, which
// thus holds nothing else, and makes the whole visible by one rename.
//
// The file system is the catalogue: a checkpoint exists exactly if its folder
// has its final name. Keeping a second list in the StateStore would be a
// second truth, and a crash between the two would leave them different. The
// bytes are described in docs/storage-format.md.
//
// Where several coordinators use one folder in turn, `file_system` refuses the
// changes of one that does not lead (FencedFileSystem), and LeadFolder stops
// those that were under way when it was deposed.
//
// Called by the Checkpoint service; the fences have been admitted by a
// FenceValidator. Thread-safe. Calls block on the disk; no lock is held while
// they do, except that Begin calls wait for each other.
class CheckpointStore : public GenerationObserver, private ShardOwner {
 public:
  // Opens or creates the store in `folder` (whose parent must exist), ends the
  // terms of earlier coordinators there, removes what they have left, and lists
  // what is complete. The pointers must outlive the store.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(
      FileSystem* file_system, const std::string& folder,
      const CheckpointLimits& limits, const Clock* clock, RandomSource* random);
  ~CheckpointStore() override;

  // Makes the folder of this coordinator's term, by whose renaming the next
  // coordinator keeps this one from changing anything. Called once, before any
  // other call: a coordinator that was frozen before its first change is fenced
  // off as well.
  absl::Status BeginTerm(Term term) {
    lead_folder_.SetTerm(term);
    return lead_folder_.Make();
  }

  // Sets the rules of jobs that give none of their own. Before any Commit.
  void SetDefaultRetention(const RetentionRules& rules) { retention_ = rules; }

  // Opens a checkpoint of (job, generation, step), or joins the open one;
  // returns its id. One of this step by an earlier generation stays until the
  // new one is committed. Where the job's places are full, the open one of the
  // lowest step of this generation is discarded, if this step is higher: its
  // save has failed, or is not needed any more. Where the job has as many
  // complete ones as it may, those go that the default rules do not keep.
  //   INVALID_ARGUMENT     bad job name, step or shard count
  //   ALREADY_EXISTS       this generation has completed one of this step
  //   FAILED_PRECONDITION  the open one has other shards or metadata
  //   RESOURCE_EXHAUSTED   a limit is passed
  //   ABORTED              the generation has ended
  absl::StatusOr<std::string> Begin(
      const Fence& fence, int64_t step, int shards,
      const std::map<std::string, std::string>& metadata);

  // Opens a checkpoint that an operator brings: of generation 0, with the date
  // it was made. StartUpload and Commit then take a fence of that job and
  // generation. An open import of this job is discarded, but for one of the
  // same request id (not 0), which is joined.
  //   INVALID_ARGUMENT, RESOURCE_EXHAUSTED
  //                    as Begin
  //   ALREADY_EXISTS   there is an import of this step
  //   UNAVAILABLE      one is being committed; try again
  absl::StatusOr<std::string> BeginImport(
      const Fence& fence, int64_t step, int shards,
      const std::map<std::string, std::string>& metadata, absl::Time created);

  // Starts the upload of one shard of `bytes` bytes with this CRC-32C.
  // NOT_FOUND if there is no such open checkpoint in this generation.
  absl::StatusOr<std::unique_ptr<ShardUpload>> StartUpload(const Fence& fence,
                                                           absl::string_view id,
                                                           int shard,
                                                           int64_t bytes,
                                                           uint32_t crc32c);

  // Makes the checkpoint visible and durable, then deletes those of the same
  // step by earlier generations, and those that `rules`, or the default ones
  // where these are empty, do not keep; repeating it is harmless. What is
  // being read, or cannot be deleted, stays, and is no error. An import deletes
  // nothing.
  //   INVALID_ARGUMENT     a rule is negative
  //   NOT_FOUND            no such checkpoint
  //   FAILED_PRECONDITION  shards are missing; the message names them
  //   UNAVAILABLE          another Commit of it is running; try again
  absl::StatusOr<CheckpointRecord> Commit(const Fence& fence,
                                          absl::string_view id,
                                          const RetentionRules& rules = {});

  // The highest generation that has made one of the complete checkpoints, of
  // any job; 0: there are none. Later ones must be higher, since the order of
  // generations determines which checkpoint is the newest.
  Generation NewestGeneration() const;

  // Returns the complete checkpoints of a job, the last one made first.
  std::vector<CheckpointRecord> List(absl::string_view job) const;

  // Returns the newest ones of a job, open ones too, at most `most`.
  CheckpointOverview Overview(absl::string_view job, size_t most) const;
  // Returns how long each took, from its Begin to its Commit, without imports.
  Histogram Durations() const;

  // Returns one complete checkpoint. Fails with NOT_FOUND.
  absl::StatusOr<CheckpointRecord> Find(absl::string_view job,
                                        absl::string_view id) const;

  // Fails unless the manifest on disk is the one that was committed: with
  // NOT_FOUND, or with DATA_LOSS if it is damaged.
  absl::Status CheckManifest(absl::string_view job, absl::string_view id) const;

  // Starts reading one shard of a complete checkpoint, or ranges of it. Fails
  // with NOT_FOUND if there is none, DATA_LOSS if the file has not the size
  // that was committed, INVALID_ARGUMENT as CheckRanges, or RESOURCE_EXHAUSTED.
  // The store must outlive it.
  absl::StatusOr<std::unique_ptr<ShardDownload>> StartDownload(
      absl::string_view job, absl::string_view id, int shard,
      std::vector<ByteRange> ranges = {});

  // Removes a checkpoint, complete or open. Fails with NOT_FOUND if there is
  // none.
  absl::Status Delete(absl::string_view job, absl::string_view id);

  // Discards the open checkpoints of that generation.
  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override;

  const CheckpointLimits& limits() const { return limits_; }

 private:
  enum class Phase { kOpen, kCommitting, kRenamed };
  struct OpenCheckpoint {
    CheckpointRecord record;  // its shards are those that are complete
    Phase phase = Phase::kOpen;
    bool abandoned = false;  // discard it if the running commit fails
    uint64_t import = 0;     // request id of an import
    absl::Time opened;
  };
  using OpenMap = std::map<std::string, OpenCheckpoint, std::less<>>;

  CheckpointStore(FileSystem* file_system, const std::string& folder,
                  const CheckpointLimits& limits, const Clock* clock,
                  RandomSource* random);
  absl::Status ValidateBegin(
      const Fence& fence, int64_t step, int shards,
      const std::map<std::string, std::string>& metadata) const;
  // Returns the id to join, or an empty one if a new checkpoint may be opened.
  absl::StatusOr<std::string> FindToJoinLocked(
      const Fence& fence, int64_t step, int shards,
      const std::map<std::string, std::string>& metadata) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the open checkpoint, if it belongs to this job and generation.
  absl::StatusOr<OpenCheckpoint*> FindOpenLocked(const Fence& fence,
                                                 absl::string_view id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the import to join, or none if one may begin, and what is to be
  // discarded.
  absl::StatusOr<std::string> FindImportLocked(
      const Fence& fence, int64_t step, std::vector<CheckpointRecord>* discard)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the folder of a new checkpoint.
  absl::Status MakeStaging(const CheckpointRecord& record);
  CheckpointRecord NewRecord(
      const Fence& fence, int64_t step, int shards,
      const std::map<std::string, std::string>& metadata) const;
  // Check the limits of open checkpoints, and of complete ones.
  absl::Status CheckLimitsLocked(absl::string_view job, int64_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PlacesAreFullLocked(absl::string_view job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CatalogueIsFullLocked(absl::string_view job, int64_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Discard, or delete, others of the job if it is at its limit: see Begin.
  void DiscardLowest(const Fence& fence, int64_t step);
  void DeleteForNew(absl::string_view job, int64_t step);
  // Returns what Commit has to write and from which phase, or why it cannot.
  absl::StatusOr<OpenCheckpoint> PrepareCommit(const Fence& fence,
                                               absl::string_view id);
  // Moves the record's shards to the checkpoint's folder, and removes
  // everything else that an earlier attempt has left there.
  absl::Status MoveShards(const CheckpointRecord& record);
  absl::Status WriteManifestAndRename(const CheckpointRecord& record);
  void FinishCommit(const CheckpointRecord& record, bool renamed,
                    const absl::Status& status);
  absl::Status DeleteComplete(CheckpointRecord record);
  // Takes the folder out of the job's, then removes it. `renamed`: whether the
  // first was done, also if the second fails.
  absl::Status RemoveFinal(const CheckpointRecord& record, bool* renamed);
  void DeleteSuperseded(const CheckpointRecord& by);
  // All but `committed`; empty: there is none.
  void DeleteUnretained(absl::string_view job, absl::string_view committed,
                        const RetentionRules& rules);
  // Deletes what was taken out of the catalogue, and logs it.
  void DeleteAll(std::vector<CheckpointRecord> records,
                 absl::string_view reason, absl::string_view by);
  // Counts a download, or returns why it cannot begin.
  absl::StatusOr<std::pair<std::string, ShardRecord>> AdmitDownload(
      absl::string_view job, absl::string_view id, int shard,
      const std::vector<ByteRange>& ranges);
  void DownloadEnded(const std::string& id);
  // Of a checkpoint that is not complete.
  void RemoveFolders(const CheckpointRecord& record);
  void RemoveUploads(const CheckpointRecord& record);

  absl::StatusOr<std::string> CompleteShard(const std::string& id,
                                            const ShardRecord& shard) override;
  void UploadRefused(const std::string& job, const std::string& id, int shard,
                     const absl::Status& status) override;
  void UploadEnded() override;

  std::string JobFolder(absl::string_view job) const;
  std::string FinalFolder(const CheckpointRecord& record) const;
  // In the folder of the term: of shards, of the whole that is to be renamed,
  // and of what is deleted.
  std::string UploadsFolder(const CheckpointRecord& record) const;
  std::string StagingFolder(const CheckpointRecord& record) const;
  std::string DeletedFolder(const CheckpointRecord& record) const;

  FileSystem* const file_system_;
  const std::string folder_;
  const CheckpointLimits limits_;
  const Clock* const clock_;
  RandomSource* const random_;
  RetentionRules retention_;
  LogRate refused_uploads_;
  LeadFolder lead_folder_;

  Mutex begin_mutex_;  // taken before mutex_
  mutable Mutex mutex_;
  Catalogue catalogue_ ABSL_GUARDED_BY(mutex_);
  OpenMap open_ ABSL_GUARDED_BY(mutex_);
  size_t open_uploads_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t open_downloads_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_file_ ABSL_GUARDED_BY(mutex_) = 1;
  Readers readers_ ABSL_GUARDED_BY(mutex_){limits_.read_grace};
  GenerationGuard ended_ ABSL_GUARDED_BY(mutex_);
  Histogram durations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_CHECKPOINT_CHECKPOINT_STORE_H_
