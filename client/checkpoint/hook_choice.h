#ifndef COXSWAIN_CLIENT_CHECKPOINT_HOOK_CHOICE_H_
#define COXSWAIN_CLIENT_CHECKPOINT_HOOK_CHOICE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/checkpoint/training_state.h"
#include "client/reduce/hook_state.h"

// Which of the hooks' states in a checkpoint a rank needs. For the files of
// this folder.

namespace coxswain {

// Returns the name of the blob in which a rank describes its hook's parameters
// (SerializeHookParameters), beside its own state.
std::string HookParametersBlob(int rank);

// Takes the states of those that saved, in order.
class HookChoice {
 public:
  // `parts`: which part of the model each rank had; `own`: each saved its own
  // state.
  HookChoice(const TrainingRank& reader, std::vector<std::string> parts,
             bool own);

  // Whether some ranks had the reader's part.
  bool of_part() const { return !alike_.empty(); }
  // Whether that shard is to be read, now that those before have been taken.
  bool Needs(int number) const;
  // `described`: its HookParametersBlob; empty: it has none. Fails with
  // DATA_LOSS if that describes no parameters.
  absl::Status Take(int number, HookState hook, absl::string_view described);
  // Fills in hook, own and parts. Fails as MergeHookStates.
  absl::Status Finish(TrainingState* state);

 private:
  // Where the reader's part was not saved: takes one of another part.
  absl::Status TakeForCut(int number, HookState hook,
                          absl::string_view described);
  // Where the reader's part was not saved, and the state is of no element of
  // any: has it cut, so that the reader's hook does not refuse its names.
  void CutNamesOnly(TrainingState* state) const;
  // Whether all of the reader's part are needed, or that in its place.
  bool one_to_one() const {
    return alike_.size() == static_cast<size_t>(reader_.world_size);
  }

  const TrainingRank& reader_;
  const std::vector<std::string> parts_;
  const bool own_;
  std::map<int, int> alike_;  // the ranks of the reader's part, by number
  std::vector<HookState> hooks_;
  HookState first_;  // of rank 0, where its part is another
  // By part: which of saved_ it is; -1: the reader needs nothing of it.
  std::map<std::string, int> known_;
  std::vector<SavedHookPart> saved_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_HOOK_CHOICE_H_
