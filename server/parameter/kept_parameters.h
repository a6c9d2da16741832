#ifndef COXSWAIN_SERVER_PARAMETER_KEPT_PARAMETERS_H_
#define COXSWAIN_SERVER_PARAMETER_KEPT_PARAMETERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "server/parameter/aggregate.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

// A complete version of a parameter.
struct KeptVersion {
  int64_t version = 0;
  Generation generation;  // in which it was completed
  std::shared_ptr<const Aggregate> tensor;
};

// What is known of one without its bytes.
struct KeptDescription {
  std::string name;
  int64_t version = 0;
  std::string dtype;
  int64_t bytes = 0;
  Generation generation;
};

// Holds the named parameters of one job: the newest complete version of each,
// those that are being pushed, and the calls that wait. They are inherited by
// the next generation of the job, in which any version replaces them.
// Thread-safe; answers run without a lock held.
class KeptParameters {
 public:
  using PullDone = std::function<void(absl::StatusOr<KeptVersion>)>;
  using Calls = std::vector<std::function<void()>>;

  // Chunks count against `budget`, what is declared against `declared`.
  KeptParameters(const ParameterLimits& limits,
                 std::shared_ptr<ByteBudget> budget,
                 std::shared_ptr<ByteBudget> declared)
      : limits_(limits),
        budget_(std::move(budget)),
        declared_(std::move(declared)),
        versions_(std::make_shared<ByteBudget>("max_forming_versions",
                                               limits.max_forming_versions)) {}

  // One part that is being pushed, which joins the others once all of it is
  // there. One thread at a time. If it is destroyed before, only this part is
  // lost.
  class Push {
   public:
    ~Push();
    Push(const Push&) = delete;
    Push& operator=(const Push&) = delete;
    absl::Status Append(int64_t offset, std::string bytes, uint32_t crc32c);
    // Returns whether all parts of the version are there. Fails with DATA_LOSS
    // if chunks are missing, and with ABORTED or ALREADY_EXISTS if the version
    // was dropped meanwhile.
    absl::StatusOr<bool> Finish();

   private:
    friend class KeptParameters;
    Push(std::shared_ptr<KeptParameters> parameters, std::string name,
         int64_t version, int part, std::shared_ptr<Aggregate> tensor,
         BudgetCharge charge);

    const BudgetCharge charge_;
    const std::shared_ptr<KeptParameters> parameters_;
    const std::string name_;
    const int64_t version_;
    const int part_;
    const std::shared_ptr<Aggregate> tensor_;
    std::vector<std::shared_ptr<ChunkBuffer>> chunks_;
    int64_t received_ = 0;  // bytes
    bool ended_ = false;
  };

  // Errors: as Parameter.Push.
  static absl::StatusOr<std::unique_ptr<Push>> StartPush(
      const std::shared_ptr<KeptParameters>& parameters, absl::string_view name,
      int64_t version, int part, const TensorSpec& spec);

  // Answers with a version of at least `version`, now or once there is one.
  // `call` is unique.
  void Pull(uint64_t call, absl::string_view name, int64_t version,
            absl::Time deadline, bool wait, PullDone done);
  void Cancel(uint64_t call);
  void Expire(absl::Time now);

  std::vector<KeptDescription> List() const;
  bool Forget(absl::string_view name);

  // Begins a generation, to which belongs what is pushed from now on;
  // incomplete versions of an earlier one are dropped. Returns the answers to
  // the calls that wait for such, to be run without a lock.
  Calls Begin(Generation generation);
  // Answers the waiting calls, and drops incomplete versions.
  void End(Generation generation, const absl::Status& why);
  bool empty() const;

 private:
  struct Forming {
    std::shared_ptr<Aggregate> tensor;
    std::set<int> pushing;  // parts
    BudgetCharge charge;
    BudgetCharge place;  // one of max_forming_versions
  };
  struct Waiting {
    std::string name;
    int64_t version = 0;
    absl::Time deadline;
    PullDone done;
    BudgetCharge charge;
  };
  struct Parameter {
    KeptVersion newest;  // no tensor: there is none
    std::map<int64_t, Forming> forming;
    BudgetCharge charge;
  };
  absl::StatusOr<std::shared_ptr<Aggregate>> StartPart(absl::string_view name,
                                                       int64_t version,
                                                       int part,
                                                       const TensorSpec& spec);
  // Starts a version of which no part was declared before.
  absl::Status StartVersionLocked(absl::string_view name, int64_t version,
                                  const TensorSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckPushLocked(const Parameter& parameter,
                               absl::string_view name, int64_t version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the push of this part. Returns whether the version is complete, or why
  // it cannot be any more.
  absl::StatusOr<bool> EndPart(const std::string& name, int64_t version,
                               int part,
                               const std::shared_ptr<Aggregate>& tensor);
  // Returns the result of a push whose version was dropped meanwhile.
  absl::StatusOr<bool> DroppedLocked(const std::string& name, int64_t version,
                                     const Aggregate* tensor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DiscardLocked(const std::string& name, int64_t version, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropFormingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckName(absl::string_view name) const;
  void CompleteLocked(const std::string& name, int64_t version,
                      const std::shared_ptr<Aggregate>& tensor, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseIfEmptyLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers the waiting calls for which `match` returns true, with `answer`.
  template <typename Match>
  void AnswerLocked(const Match& match,
                    const absl::StatusOr<KeptVersion>& answer, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ParameterLimits limits_;
  const std::shared_ptr<ByteBudget> budget_;
  const std::shared_ptr<ByteBudget> declared_;
  const std::shared_ptr<ByteBudget> versions_;  // that are forming

  mutable Mutex mutex_;
  Generation generation_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);  // until the next one begins
  std::map<std::string, Parameter, std::less<>> parameters_
      ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_KEPT_PARAMETERS_H_
