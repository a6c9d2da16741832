#include "client/elastic/recovery.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/exception_status.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/communicator.h"
#include "client/comm/rank_values.h"
#include "client/elastic/broadcast_bytes.h"
#include "client/elastic/hook_recovery.h"
#include "client/elastic/rank_facts.h"
#include "client/elastic/replay.h"
#include "client/elastic/replay_plan.h"
#include "client/elastic/state_copy.h"
#include "client/reduce/root_broadcast.h"

namespace coxswain {
namespace {

absl::Status CheckOnHost(const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    if (span.device.kind == Device::Kind::kCpu) continue;
    return absl::UnimplementedError(absl::StrCat(
        "a tensor of the state to recover is on GPU ", span.device.index,
        ", and recovery copies the CPU's memory only: keep a copy "
        "there (ElasticState::Tensors), or train without changes "
        "of the members"));
  }
  return absl::OkStatus();
}

uint32_t LayoutOf(const std::vector<Span>& spans, uint32_t seed) {
  std::string text;
  for (const Span& span : spans) {
    absl::StrAppend(&text, NameOf(span.dtype), " ", span.count, "\n");
  }
  return Crc32c(text + "\n", seed);
}

// Returns whether what the source has sent is not what it had: those that have
// received it, two or more, have the same. All have received its tensors.
bool SourceHasChanged(const std::vector<RankFacts>& facts,
                      const RecoveryPlan& plan) {
  const RankFacts& had = facts[static_cast<size_t>(plan.source)];
  std::set<int64_t> tensors;
  std::set<int64_t> digests;
  int received = 0;
  int copied = 0;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (static_cast<int>(rank) == plan.source) continue;
    ++received;
    tensors.insert(facts[rank].tensors);
    if (!plan.copies[rank]) continue;
    ++copied;
    digests.insert(facts[rank].digest);
  }
  const bool same = tensors.size() == 1 && digests.size() == 1;
  return same && ((received > 1 && *tensors.begin() != had.tensors) ||
                  (copied > 1 && *digests.begin() != had.digest));
}

class Recovery {
 public:
  Recovery(Communicator* communicator, int64_t generation,
           const RecoveryOptions& options, ElasticState* state,
           RankStanding* standing)
      : communicator_(*communicator),
        generation_(generation),
        options_(options),
        state_(*state),
        standing_(*standing),
        rank_(static_cast<size_t>(communicator->rank())) {}

  absl::StatusOr<Recovered> Run();

 private:
  absl::StatusOr<Recovered> RunParts();
  absl::StatusOr<RankFacts> Facts();
  absl::Status Exchange();
  absl::Status Plan();
  // What this rank has taken while it waited, if it is the others' state.
  absl::Status KeepOrDropCaughtUp();
  // Where the ranks hold different bits without a majority: takes them back to
  // a step in which they held the same. Fails with `otherwise` if they cannot.
  absl::Status GoBack(const std::vector<int>& disputed,
                      const absl::Status& otherwise);
  // What follows from the generation's beginning for later replays.
  void BeginReplay();
  // Takes part in the copying, and takes over what this rank needs: all of it,
  // or, after an error, nothing.
  absl::Status Copy();
  absl::Status CopyParts();
  absl::Status CopyAllParts();
  absl::Status CopyTensorsAndBytes();
  absl::Status CheckCopies();
  absl::Status CopyLoose();
  // Returns this error, which all ranks find in the same facts, once all have
  // found it: the first one that ends its generation ends it for those, too,
  // that still receive the facts, and they would wait for it in the next one.
  absl::Status AfterAll(absl::Status error);
  // The peers wait for collectives that this rank will not start.
  absl::Status Fail(absl::string_view what, const absl::Status& status);

  Communicator& communicator_;
  const int64_t generation_;
  const RecoveryOptions& options_;
  ElasticState& state_;
  RankStanding& standing_;
  const size_t rank_;
  std::vector<RankFacts> facts_;
  RecoveryPlan plan_;
  std::vector<std::string> warnings_;  // of a replay
};

absl::StatusOr<Recovered> Recovery::Run() {
  try {
    return RunParts();
  } catch (...) {
    return Fail("recovering its state", StatusOfException());
  }
}

absl::StatusOr<Recovered> Recovery::RunParts() {
  COXSWAIN_RETURN_IF_ERROR(CheckOnHost(state_.Tensors()));
  COXSWAIN_RETURN_IF_ERROR(CheckOnHost(state_.LooseTensors()));
  COXSWAIN_RETURN_IF_ERROR(Plan());
  COXSWAIN_RETURN_IF_ERROR(Copy());
  // From here on it holds what all hold, whatever becomes of the hook's state.
  const RankFacts& source = facts_[static_cast<size_t>(plan_.source)];
  standing_.has_state = true;
  standing_.lineage = source.lineage;
  standing_.trained = source.trained;
  const bool caught_up =
      std::exchange(standing_.caught_up, std::nullopt).has_value();
  if (caught_up) standing_.catch_up->Forget();
  HookRecovery hook;
  hook.plan = plan_.hook;
  hook.own = &standing_.hook_state;
  hook.own_world = standing_.hook_world;
  hook.max_bytes = options_.max_bytes;
  hook.timeout = options_.timeout;
  COXSWAIN_ASSIGN_OR_RETURN(RecoveredHook recovered_hook,
                            RecoverHook(communicator_, hook));
  Recovered recovered;
  recovered.step = state_.step();
  if (plan_.copies_any) recovered.source = plan_.source;
  recovered.copied = plan_.copies[rank_];
  recovered.began = source.has_state == 0;
  recovered.caught_up = caught_up;
  standing_.recovered = generation_;
  BeginReplay();
  recovered.warnings = std::move(warnings_);
  recovered.warnings.insert(recovered.warnings.end(), plan_.warnings.begin(),
                            plan_.warnings.end());
  recovered.error_scale = recovered_hook.error_scale;
  recovered.hook_state = std::move(recovered_hook.state);
  return recovered;
}

void Recovery::BeginReplay() {
  const int size = communicator_.size();
  Replay::Generation generation;
  generation.number = generation_;
  generation.world_size = size;
  generation.version = {standing_.lineage, standing_.trained,
                        state_.progress()};
  generation.step = state_.step();
  generation.keep = options_.replay == ReplayMode::kAlways
                        ? size > 1
                        : options_.replay == ReplayMode::kTwoRanks && size == 2;
  std::optional<std::string> given_up = standing_.replay.Begin(generation);
  if (given_up) warnings_.push_back(*std::move(given_up));
}

absl::StatusOr<RankFacts> Recovery::Facts() {
  RankFacts facts;
  const std::vector<Span> tensors = state_.Tensors();
  facts.has_state = standing_.has_state ? 1 : 0;
  facts.lineage = standing_.lineage;
  if (facts.lineage == 0) {
    facts.lineage = static_cast<int64_t>(RandomSource::System()->NextId());
  }
  facts.recovered = standing_.recovered;
  facts.trained = standing_.trained;
  facts.progress = state_.progress();
  facts.step = state_.step();
  facts.layout = LayoutOf(state_.LooseTensors(), LayoutOf(tensors, 0));
  if (standing_.caught_up) {
    facts.caught_up = standing_.caught_up->lineage;
    facts.trained = standing_.caught_up->trained;
    facts.progress = standing_.caught_up->progress;
  }
  if (standing_.has_state || standing_.caught_up) {
    facts.loose = Crc32c(state_.LooseBytes());
    facts.tensors = ChecksumOf(tensors);
    COXSWAIN_ASSIGN_OR_RETURN(const uint64_t digest, state_.Digest());
    facts.digest = static_cast<int64_t>(digest);
  }
  const HookFacts hook =
      HookFactsOf(standing_.hook_state, standing_.hook_world);
  facts.hook_world = hook.world;
  facts.hook_step = hook.step;
  facts.hook_shared = hook.shared;
  facts.hook_slice = hook.slice;
  facts.hook_slices = hook.slices;
  return facts;
}

absl::Status Recovery::Exchange() {
  const absl::StatusOr<RankFacts> own = Facts();
  if (!own.ok()) return Fail("reading its state", own.status());
  COXSWAIN_ASSIGN_OR_RETURN(
      facts_, ExchangeFacts(communicator_, *own, options_.timeout));
  DropCaughtUpAlone(&facts_);
  return absl::OkStatus();
}

absl::Status Recovery::Plan() {
  const auto rank = static_cast<int>(rank_);
  COXSWAIN_RETURN_IF_ERROR(Exchange());
  absl::StatusOr<RecoveryPlan> plan = PlanRecovery(facts_, rank, options_.mesh);
  const std::vector<int> disputed = RanksInDispute(facts_);
  if (!disputed.empty() && absl::IsDataLoss(plan.status())) {
    COXSWAIN_RETURN_IF_ERROR(GoBack(disputed, plan.status()));
    COXSWAIN_RETURN_IF_ERROR(Exchange());
    plan = PlanRecovery(facts_, rank, options_.mesh);
  }
  if (!plan.ok()) return AfterAll(plan.status());
  plan_ = *std::move(plan);
  return KeepOrDropCaughtUp();
}

absl::Status Recovery::KeepOrDropCaughtUp() {
  if (!standing_.caught_up ||
      (facts_[rank_].caught_up != 0 && !plan_.copies[rank_])) {
    return absl::OkStatus();
  }
  // It is not what the others have: what it had before is what it may have to
  // go back to.
  LogWarning("state_not_caught_up",
             {{"rank", static_cast<int64_t>(rank_)},
              {"progress", standing_.caught_up->progress},
              {"reason",
               "what this worker has taken is not what the members "
               "have: they ended earlier, or compute other bits"},
              {"next", "it copies their state"}});
  standing_.caught_up.reset();
  const absl::Status undone = UndoCatchUp(standing_.catch_up);
  return undone.ok() ? undone : Fail("giving up what it had taken", undone);
}

absl::Status Recovery::GoBack(const std::vector<int>& disputed,
                              const absl::Status& otherwise) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<ReplayFacts> all,
      ExchangeReplayFacts(communicator_, standing_.replay.Facts(),
                          options_.timeout));
  const absl::StatusOr<ReplayPlan> plan =
      PlanReplay(facts_, disputed, all, options_.max_replays, otherwise);
  if (!plan.ok()) return AfterAll(plan.status());
  warnings_.push_back(plan->warning);
  standing_.replay.NoteDispute(plan->dispute, static_cast<int>(rank_),
                               generation_);
  const KeptState* const kept = plan->goes_back[rank_]
                                    ? standing_.replay.Find(plan->dispute.from)
                                    : nullptr;
  if (kept == nullptr) {
    if (!plan->goes_back[rank_] && !plan->drops[rank_]) return absl::OkStatus();
    // It takes over that of another rank. Its errors are those of a later step.
    standing_.has_state = false;
    standing_.hook_state.reset();
    return absl::OkStatus();
  }
  standing_.has_state = false;
  const absl::Status restored = kept->copy.Restore(&state_);
  if (!restored.ok()) {
    return Fail("going back to its own state",
                absl::DataLossError(absl::StrCat(restored.message(),
                                                 "; start this worker again")));
  }
  standing_.has_state = true;
  standing_.lineage = kept->version.lineage;
  // So it counts for more than the state that it has gone back from, should a
  // rank still come with that.
  standing_.trained = standing_.recovered = generation_;
  standing_.hook_state = kept->hook_state;
  standing_.hook_world = kept->hook_world;
  return absl::OkStatus();
}

absl::Status Recovery::Copy() {
  if (static_cast<int>(rank_) == plan_.source) return CopyParts();
  StateCopy backup;
  const absl::Status taken =
      backup.Take(&state_, /*loose_only=*/!plan_.copies[rank_]);
  if (!taken.ok()) return Fail("keeping its own state", taken);
  const bool had_state = std::exchange(standing_.has_state, false);
  absl::Status status = CopyParts();
  if (status.ok()) return status;
  // A newcomer goes back, too: it may be the one that training begins with.
  const absl::Status restored = backup.Restore(&state_);
  if (!restored.ok()) {
    return Fail("going back to its own state",
                absl::DataLossError(absl::StrCat(
                    restored.message(), " (after: ", status.message(),
                    "); start this worker again")));
  }
  // Once fewer ranks are left, it would contradict them without a majority.
  standing_.has_state = had_state && !plan_.damaged[rank_];
  return status;
}

absl::Status Recovery::CopyParts() {
  // Here, so that a rank goes back to what it had.
  try {
    return CopyAllParts();
  } catch (...) {
    return Fail("copying the state", StatusOfException());
  }
}

absl::Status Recovery::CopyAllParts() {
  if (plan_.copies_any) {
    COXSWAIN_RETURN_IF_ERROR(CopyTensorsAndBytes());
    COXSWAIN_RETURN_IF_ERROR(CheckCopies());
  }
  return CopyLoose();
}

absl::Status Recovery::CopyTensorsAndBytes() {
  const bool is_source = static_cast<int>(rank_) == plan_.source;
  const bool copies = plan_.copies[rank_];
  std::string bytes;
  if (is_source) {
    absl::StatusOr<std::string> saved = state_.Save();
    if (!saved.ok()) return Fail("saving its state", saved.status());
    bytes = *std::move(saved);
  }
  COXSWAIN_RETURN_IF_ERROR(BroadcastSpans(communicator_, state_.Tensors(),
                                          plan_.source, options_.timeout));
  COXSWAIN_ASSIGN_OR_RETURN(
      bytes, BroadcastBytes(communicator_, bytes, plan_.source, copies,
                            options_.max_bytes, options_.timeout));
  if (!copies) return absl::OkStatus();
  const int64_t step = facts_[static_cast<size_t>(plan_.source)].step;
  absl::Status loaded = state_.TakeTensors();
  if (loaded.ok()) loaded = state_.Load(bytes, step);
  return loaded.ok() ? loaded : Fail("loading the copied state", loaded);
}

absl::Status Recovery::CheckCopies() {
  RankFacts now = facts_[rank_];
  // What nothing was written to since the facts is not read again: of a rank in
  // step all but the tensors, of the source nothing.
  const bool is_source = static_cast<int>(rank_) == plan_.source;
  const bool begins = is_source && now.has_state == 0;  // it had no checksums
  if (!is_source || begins) now.tensors = ChecksumOf(state_.Tensors());
  if (plan_.copies[rank_] || begins) {
    const absl::StatusOr<uint64_t> digest = state_.Digest();
    if (!digest.ok()) return Fail("reading its state", digest.status());
    now.digest = static_cast<int64_t>(*digest);
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<RankFacts> all,
      ExchangeFacts(communicator_, now, options_.timeout));
  if (SourceHasChanged(all, plan_)) {
    return AfterAll(absl::DataLossError(absl::StrCat(
        "the state that rank ", plan_.source, " has sent after step ",
        all[static_cast<size_t>(plan_.source)].step,
        " is not the one that it had when the ranks compared theirs: all ",
        "others have received the same, so its memory has changed meanwhile, ",
        "and may be damaged; start the job again from a checkpoint")));
  }
  const absl::Status same =
      CheckSameBits(all, plan_.source, std::vector<bool>(all.size(), true));
  return same.ok() ? same : AfterAll(same);
}

absl::Status Recovery::CopyLoose() {
  std::string bytes;
  if (plan_.copies_any_loose) {
    if (static_cast<int>(rank_) == plan_.source) bytes = state_.LooseBytes();
    COXSWAIN_ASSIGN_OR_RETURN(
        bytes, BroadcastBytes(communicator_, bytes, plan_.source,
                              plan_.copies_loose[rank_], options_.max_bytes,
                              options_.timeout));
  }
  const std::vector<Span> spans = state_.LooseTensors();
  if (!spans.empty()) {
    COXSWAIN_RETURN_IF_ERROR(
        BroadcastSpans(communicator_, spans, plan_.source, options_.timeout));
    const absl::Status taken = state_.TakeTensors();
    if (!taken.ok()) return Fail("loading the copied buffers", taken);
  }
  if (!plan_.copies_loose[rank_]) return absl::OkStatus();
  // Last, as the backup of a rank in step does not have them.
  const absl::Status loaded = state_.LoadLooseBytes(bytes);
  return loaded.ok() ? loaded : Fail("loading a peer's counters", loaded);
}

absl::Status Recovery::AfterAll(absl::Status error) {
  GatherValues(communicator_, {0}, options_.timeout).status().IgnoreError();
  return error;
}

absl::Status Recovery::Fail(absl::string_view what,
                            const absl::Status& status) {
  absl::Status failed = WithPrefix(
      absl::StrCat("recovery: rank ", rank_, ", ", what, ": "), status);
  communicator_.Abort(failed.message());
  return failed;
}

}  // namespace

absl::StatusOr<Recovered> Recover(Communicator& communicator,
                                  int64_t generation,
                                  const RecoveryOptions& options,
                                  ElasticState* state, RankStanding* standing) {
  return Recovery(&communicator, generation, options, state, standing).Run();
}

}  // namespace coxswain
