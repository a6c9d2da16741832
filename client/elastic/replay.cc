#include "client/elastic/replay.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/exception_status.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

uint32_t RestChecksumOf(const StateCopy& copy,
                        const std::optional<HookState>& hook_state) {
  uint32_t checksum = copy.RestChecksum();
  if (!hook_state) return checksum;
  for (const StateTensor& tensor : hook_state->tensors) {
    checksum = Crc32c(tensor.data, checksum);
  }
  return checksum;
}

CopyFacts FactsOf(const std::optional<KeptState>& kept) {
  CopyFacts facts;
  if (!kept || kept->copy.TensorsChecksum() != kept->tensors ||
      RestChecksumOf(kept->copy, kept->hook_state) != kept->rest) {
    return facts;
  }
  facts.intact = 1;
  facts.confirmed = kept->confirmed ? 1 : 0;
  facts.version = kept->version;
  facts.step = kept->step;
  facts.tensors = kept->tensors;
  return facts;
}

}  // namespace

std::optional<std::string> Replay::Begin(const Generation& generation) {
  generation_ = generation;
  first_ = true;
  waiting_.reset();
  if (!generation_.keep || FactsOf(known_).intact == 0) known_.reset();
  if (!dispute_) return std::nullopt;
  if (dispute_->generation == generation_.number && generation_.keep) {
    return std::nullopt;
  }
  const int64_t step = dispute_->step;
  dispute_.reset();
  return absl::StrCat(
      "the members have changed, or a generation has ended, before the ranks "
      "were at step ",
      step,
      " again, in which they had different bits: it is not found out which of "
      "them was wrong");
}

void Replay::BeforeStep(
    int64_t every, ElasticState* state,
    const std::function<absl::StatusOr<HookState>()>& save_hook) {
  const bool first = std::exchange(first_, false);
  if (dispute_ && state->progress() == dispute_->progress) NoteBits(state);
  if (!generation_.keep || every <= 0) return Forget();
  const int64_t step = state->step();
  if (!first && (step % every != 0 || (waiting_ && waiting_->step == step))) {
    return;
  }
  if (known_ && known_->version == VersionAt(state->progress())) return;
  if (first) known_.reset();
  absl::StatusOr<KeptState> kept = CopyIfItFits(state, save_hook);
  if (!kept.ok()) {
    LogWarning("state_not_kept",
               {{"generation", generation_.number},
                {"step", step},
                {"reason", kept.status().message()},
                {"next",
                 "where ranks hold different bits without a majority, "
                 "steps before this one are not replayed"}});
    return Forget();
  }
  kept->confirmed = first;
  (first ? known_ : waiting_) = *std::move(kept);
}

StateVersion Replay::VersionAt(int64_t progress) const {
  StateVersion version = generation_.version;
  if (progress != version.progress) version.trained = generation_.number;
  version.progress = progress;
  return version;
}

absl::StatusOr<KeptState> Replay::CopyIfItFits(
    ElasticState* state,
    const std::function<absl::StatusOr<HookState>()>& save_hook) const {
  // Also of memory. Training can go on without.
  return WithoutExceptions([&] { return Copy(state, save_hook); });
}

absl::StatusOr<KeptState> Replay::Copy(
    ElasticState* state,
    const std::function<absl::StatusOr<HookState>()>& save_hook) const {
  KeptState kept;
  kept.version = VersionAt(state->progress());
  kept.step = state->step();
  kept.tensors = ChecksumOf(state->Tensors());
  COXSWAIN_RETURN_IF_ERROR(kept.copy.Take(state));
  COXSWAIN_ASSIGN_OR_RETURN(kept.hook_state, save_hook());
  kept.hook_world = generation_.world_size;
  kept.rest = RestChecksumOf(kept.copy, kept.hook_state);
  return kept;
}

void Replay::NoteBits(ElasticState* state) {
  if (dispute_->now) return;
  const absl::Status noted = WithoutExceptions([&]() -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(const uint64_t digest, state->Digest());
    dispute_->now =
        StateBits{ChecksumOf(state->Tensors()), static_cast<int64_t>(digest)};
    return absl::OkStatus();
  });
  if (noted.ok()) return;
  LogWarning("replayed_bits_not_read",
             {{"generation", generation_.number},
              {"step", dispute_->step},
              {"reason", noted.message()},
              {"next", "this rank does not find out which one was wrong"}});
}

void Replay::Forget() {
  known_.reset();
  waiting_.reset();
}

std::optional<ReplayResult> Replay::AfterStep(int64_t step) {
  // What it holds by now has been compared by no recovery.
  if (step > generation_.step) first_ = false;
  if (!waiting_ || step <= waiting_->step) return std::nullopt;
  known_ = std::exchange(waiting_, std::nullopt);
  known_->confirmed = true;
  if (known_->version.progress < disputed_progress_) return std::nullopt;
  replays_ = 0;
  if (!dispute_) return std::nullopt;
  ReplayResult result;
  result.step = dispute_->step;
  result.from_step = dispute_->from_step;
  if (dispute_->now && dispute_->comparable)
    result.wrong = RanksThatWereWrong(*dispute_);
  dispute_.reset();
  return result;
}

ReplayFacts Replay::Facts() const {
  ReplayFacts facts;
  facts.known = FactsOf(known_);
  facts.waiting = FactsOf(waiting_);
  facts.replays = replays_;
  if (!dispute_) return facts;
  facts.generation = dispute_->comparable ? dispute_->generation : 0;
  facts.progress = dispute_->progress;
  facts.from_step = dispute_->from_step;
  facts.had = dispute_->had[static_cast<size_t>(rank_)];
  return facts;
}

void Replay::NoteDispute(ReplayDispute dispute, int rank, int64_t generation) {
  const size_t size = dispute.had.size();
  dispute.generation = generation;
  // Compared to the last generation that this rank has begun.
  dispute.comparable = dispute.ranks.size() == size &&
                       static_cast<size_t>(generation_.world_size) == size &&
                       dispute.from.progress >= generation_.version.progress;
  replays_ = dispute.replays;
  disputed_progress_ = dispute.progress;
  rank_ = rank;
  dispute_ = std::move(dispute);
}

const KeptState* Replay::Find(const StateVersion& version) const {
  for (const auto* kept : {&known_, &waiting_}) {
    if (!*kept || !((*kept)->version == version)) continue;
    if (FactsOf(*kept).intact != 0) return &**kept;
  }
  return nullptr;
}

}  // namespace coxswain
