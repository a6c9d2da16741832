#ifndef COXSWAIN_SERVER_CHECKPOINT_LEAD_FOLDER_H_
#define COXSWAIN_SERVER_CHECKPOINT_LEAD_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/random.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// The folder of one term, beside those of the jobs: what is not complete lies
// in it, and what is deleted goes through it. A checkpoint becomes complete by
// a rename out of it, and is deleted by a rename into it.
//
// That makes it a fence. A coordinator that takes over renames the folders of
// all earlier terms first: from then on a coordinator that was deposed finds
// neither the source of its commits nor the target of its deletions, however
// long it was frozen after it had found that it leads. Therefore a folder is
// made once and never again.
//
// A part of CheckpointStore. Thread-safe.
class LeadFolder {
 public:
  // `folder` is that of all checkpoints. Makes nothing.
  LeadFolder(FileSystem* file_system, std::string folder, RandomSource* random);

  // Sets the term in the folder's name, for display. Before the first Make.
  void SetTerm(Term term);

  // Makes the folder unless that is done.
  absl::Status Make();

  // Returns the path of an entry in the folder.
  std::string PathOf(absl::string_view name) const;

  // Ends all earlier terms and removes what they have left. Fails if one of
  // them might still make a change. What cannot be removed is logged, and the
  // next term tries again.
  static absl::Status EndEarlier(FileSystem* file_system,
                                 const std::string& folder);

 private:
  FileSystem* const file_system_;
  const std::string folder_;
  // Distinguishes it from that of the same term of another state.
  const uint64_t id_;
  Term term_{0};

  Mutex mutex_;
  bool made_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_CHECKPOINT_LEAD_FOLDER_H_
