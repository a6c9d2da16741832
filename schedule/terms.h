#ifndef COXSWAIN_SCHEDULE_TERMS_H_
#define COXSWAIN_SCHEDULE_TERMS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain::schedule {

// What becomes of the short window at the end of the data.
enum class TailPolicy {
  kFlush,  // a step, with the divisor of what it has
  kCarry,  // the beginning of the next epoch's first window
  kDrop,   // nothing: its gradients are forgotten
};

// What one micro-batch counts for in the average.
enum class Weighting {
  kMean,     // 1: every micro-batch the same
  kSamples,  // its number of samples
  kTokens,   // its number of tokens
};

// What happens where ranks have different amounts of data.
enum class UnevenData {
  kRefuse,      // it is an error
  kWaitForAll,  // a rank without data contributes zeros until all are done
  kEndAtFirst,  // the epoch ends for all when the first rank is done
};

// What stays as it was when the number of ranks changes.
enum class OnResize { kKeepLocalBatch, kKeepGlobalBatch };

// What one step of a learning-rate scheduler stands for.
enum class SchedulerUnit {
  kStep,         // an optimizer step
  kBatch,        // a micro-batch of this rank
  kGlobalBatch,  // a micro-batch of any rank
};

// What a change of hooks does with the old one's state.
enum class HookStatePolicy { kCarry, kReset };

// How the coordinator watches the exchanges.
enum class Enforcement {
  kOff,
  kAudit,   // the verdict is due before the optimizer step
  kStrict,  // the grant is due before the exchange
};

enum class OnStall { kAbort, kWarn };

// What determines how many micro-batches a window has.
enum class Windows {
  kPlan,     // the plan's accumulation
  kProgram,  // the workers' program, the same number on all ranks
};

// The terms of a plan that are the same on the command line, in a manifest, on
// the wire and in the coordinator's state: names and values as text, listed by
// `coxswain plan set --help` and explained in docs/schedule.md. A row of the
// table in terms.cc reads, prints and bounds each of them, and nothing else
// names all of them: CONTRIBUTING.md, "How to add a setting of the plan". A
// value: copied, and used by one thread at a time.
struct Terms {
  // Exchanges gradients in every micro-batch; the optimizer steps stay the
  // same. Avoids local sums, at k times the traffic.
  bool sync_each_batch = false;
  TailPolicy tail = TailPolicy::kFlush;
  // Optimizer steps after which training ends; 0: no bound.
  int64_t max_steps = 0;
  Weighting weighting = Weighting::kMean;
  Windows windows = Windows::kPlan;
  UnevenData uneven_data = UnevenData::kRefuse;
  OnResize on_resize = OnResize::kKeepLocalBatch;
  SchedulerUnit adjust_scheduler = SchedulerUnit::kStep;
  HookStatePolicy hook_state = HookStatePolicy::kCarry;
  Enforcement enforcement = Enforcement::kAudit;
  // Whether each step is voted on after its exchange (should_commit), so that
  // any rank can have it skipped by all.
  bool commit_vote = false;
  // The parameters' checksum is compared before every so many-th step; 0:
  // never.
  int64_t checksum_every = 0;
  // All ranks save their state after every so many-th step, of those that were
  // decided; 0: never.
  int64_t checkpoint_every = 0;
  // How long a rank may make no progress.
  absl::Duration progress_timeout = absl::Minutes(5);
  OnStall on_stall = OnStall::kAbort;
  // How long nothing may come from a rank for which all others wait, before it
  // is evicted; infinite, "off" as text: until its lease has ended.
  absl::Duration stall_timeout = absl::InfiniteDuration();
  // The schedule of the job's pipeline, in the one form that
  // pipeline::ScheduleSpec writes it in; empty, "none" as text: it has no
  // pipeline.
  std::string pipeline;

  // Fails with INVALID_ARGUMENT, naming the setting, its value and the valid
  // ones.
  absl::Status Set(absl::string_view name, absl::string_view value);
  // Returns terms with these values; those that are not among them keep their
  // defaults. Fails as Set, in a message of bounded length.
  static absl::StatusOr<Terms> FromMap(
      const std::map<std::string, std::string>& values);

  // Returns all terms, by name; FromMap is its inverse.
  std::map<std::string, std::string> ToMap() const;
  // Returns those that differ from the defaults, as "name=value", sorted by
  // name.
  std::vector<std::string> Changed() const;

  // Fails with INVALID_ARGUMENT, naming the terms that contradict each other.
  absl::Status Validate() const;

  bool operator==(const Terms& other) const { return ToMap() == other.ToMap(); }
  bool operator!=(const Terms& other) const { return !(*this == other); }
};

// Returns the terms of a manifest that a peer sent. Fails as Terms::FromMap and
// Terms::Validate.
absl::StatusOr<Terms> ReadTerms(
    const std::map<std::string, std::string>& values);

// One of them, for help texts and documents.
struct SettingInfo {
  std::string name;
  std::string values;  // such as "flush|carry|drop" or "a number, from 0"
  std::string meaning;
};
std::vector<SettingInfo> SettingList();

// Returns why the state is saved after step `steps_done` (counted from 1) by
// the setting checkpoint_every; empty if it is not.
std::string PlannedCheckpoint(int64_t checkpoint_every, int64_t steps_done);

// Returns how many of a step's `total` micro-batches this rank runs: the
// remainder goes to the first ranks. At least 1, also where there are more
// ranks than micro-batches: the global batch is larger then than it was asked
// for.
int MicroBatchShare(int64_t total, int world_size, int rank);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_TERMS_H_
