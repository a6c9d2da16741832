#ifndef COXSWAIN_CLIENT_ELASTIC_CATCH_UP_CATCH_UP_TARGET_H_
#define COXSWAIN_CLIENT_ELASTIC_CATCH_UP_CATCH_UP_TARGET_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/exception_status.h"
#include "client/device/tensor.h"

namespace coxswain {

// The state of a newcomer that takes that of the members while it waits: what
// it does with what comes. `rest` is what Source::Step::rest was on rank 0.
//
// Called on the receiver's thread alone until Receiver::Finish has returned,
// and then on that of its owner. An exception is an error.
class CatchUpTarget {
 public:
  virtual ~CatchUpTarget() = default;

  struct Part {
    Span span;
    int parameter = 0;  // the number of the one that it belongs to
  };

  // Allocates memory for the state after the step that `rest` describes.
  virtual absl::Status Begin(absl::string_view rest) = 0;
  // Returns the parts of the state, as the members have them after this step.
  virtual absl::StatusOr<std::vector<Part>> State() = 0;
  // Returns memory for the averages of the step that `rest` describes.
  virtual absl::StatusOr<std::vector<Part>> Averages(
      absl::string_view rest) = 0;
  // Takes the step, by these averages if it was `applied`. Its arithmetic is
  // that of each element alone: of parameter, average and what the optimizer
  // keeps of it.
  virtual absl::Status Step(absl::string_view rest, bool applied) = 0;
  // Goes back to what was there before Begin. Fails with DATA_LOSS if it
  // cannot.
  virtual absl::Status Undo() = 0;
  // Undo will not be called.
  virtual void Forget() = 0;
};

// Undo, whose exceptions are DATA_LOSS, too.
inline absl::Status UndoCatchUp(CatchUpTarget* target) {
  absl::Status undone = WithoutExceptions([&] { return target->Undo(); });
  if (!absl::IsInternal(undone)) return undone;
  return absl::DataLossError(
      absl::StrCat("going back to its own state after catching up failed: ",
                   undone.message(), "; start this worker again"));
}

// A state that is that of the members: see RankFacts.
struct CaughtUp {
  int64_t lineage = 0;
  int64_t trained = 0;
  int64_t progress = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_CATCH_UP_CATCH_UP_TARGET_H_
