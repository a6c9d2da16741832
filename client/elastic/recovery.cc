#include "client/elastic/recovery.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/communicator.h"
#include "client/elastic/broadcast_bytes.h"
#include "client/elastic/hook_recovery.h"
#include "client/elastic/rank_facts.h"
#include "client/reduce/root_broadcast.h"

namespace coxswain {
namespace {

absl::string_view BytesOf(const Span& span) {
  return absl::string_view(static_cast<const char*>(span.data),
                           static_cast<size_t>(span.bytes()));
}

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

uint32_t ChecksumOf(const std::vector<Span>& spans) {
  uint32_t checksum = 0;
  for (const Span& span : spans) checksum = Crc32c(BytesOf(span), checksum);
  return checksum;
}

uint32_t LayoutOf(const std::vector<Span>& spans, uint32_t seed) {
  std::string text;
  for (const Span& span : spans) {
    absl::StrAppend(&text, NameOf(span.dtype), " ", span.count, "\n");
  }
  return Crc32c(text + "\n", seed);
}

std::vector<std::string> CopiesOf(const std::vector<Span>& spans) {
  std::vector<std::string> copies;
  for (const Span& span : spans) copies.emplace_back(BytesOf(span));
  return copies;
}

void PutBack(const std::vector<std::string>& copies,
             const std::vector<Span>& spans) {
  for (size_t i = 0; i < spans.size(); ++i) {
    if (copies[i].empty()) continue;
    std::memcpy(spans[i].data, copies[i].data(), copies[i].size());
  }
}

// What a rank goes back to if it cannot be brought forward.
class Backup {
 public:
  // Of a rank that is in step only the loose tensors are written to.
  absl::Status Take(ElasticState* state, bool loose_only) {
    loose_ = CopiesOf(state->LooseTensors());
    if (loose_only) return absl::OkStatus();
    COXSWAIN_ASSIGN_OR_RETURN(bytes_, state->Save());
    step_ = state->step();
    tensors_ = CopiesOf(state->Tensors());
    return absl::OkStatus();
  }
  absl::Status Restore(ElasticState* state) const {
    PutBack(loose_, state->LooseTensors());
    if (bytes_) PutBack(tensors_, state->Tensors());
    COXSWAIN_RETURN_IF_ERROR(state->TakeTensors());
    return bytes_ ? state->Load(*bytes_, step_) : absl::OkStatus();
  }

 private:
  std::vector<std::string> loose_;
  std::vector<std::string> tensors_;
  std::optional<std::string> bytes_;  // unset: only the loose ones
  int64_t step_ = 0;
};

class Recovery {
 public:
  Recovery(Communicator* communicator, const RecoveryOptions& options,
           ElasticState* state, RankStanding* standing)
      : communicator_(*communicator),
        options_(options),
        state_(*state),
        standing_(*standing),
        rank_(static_cast<size_t>(communicator->rank())) {}

  absl::StatusOr<Recovered> Run(int64_t generation);

 private:
  absl::StatusOr<RankFacts> Facts();
  absl::Status Plan();
  // Takes part in the copying, and takes over what this rank needs: all of it,
  // or, after an error, nothing.
  absl::Status Copy();
  absl::Status CopyParts();
  absl::Status CopyTensorsAndBytes();
  absl::Status CheckCopies();
  absl::Status CopyLoose();
  // The peers wait for collectives that this rank will not start.
  absl::Status Fail(absl::string_view what, const absl::Status& status);

  Communicator& communicator_;
  const RecoveryOptions& options_;
  ElasticState& state_;
  RankStanding& standing_;
  const size_t rank_;
  std::vector<RankFacts> facts_;
  RecoveryPlan plan_;
};

absl::StatusOr<Recovered> Recovery::Run(int64_t generation) {
  COXSWAIN_RETURN_IF_ERROR(Plan());
  COXSWAIN_RETURN_IF_ERROR(Copy());
  // From here on it holds what all hold, whatever becomes of the hook's state.
  const RankFacts& source = facts_[static_cast<size_t>(plan_.source)];
  standing_.has_state = true;
  standing_.lineage = source.lineage;
  standing_.trained = source.trained;
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
  recovered.warnings = plan_.warnings;
  recovered.error_scale = recovered_hook.error_scale;
  recovered.hook_state = std::move(recovered_hook.state);
  standing_.recovered = generation;
  return recovered;
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
  if (standing_.has_state) {
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

absl::Status Recovery::Plan() {
  const absl::StatusOr<RankFacts> own = Facts();
  if (!own.ok()) return Fail("reading its state", own.status());
  COXSWAIN_ASSIGN_OR_RETURN(
      facts_, ExchangeFacts(communicator_, *own, options_.timeout));
  COXSWAIN_ASSIGN_OR_RETURN(
      plan_, PlanRecovery(facts_, static_cast<int>(rank_), options_.mesh));
  return absl::OkStatus();
}

absl::Status Recovery::Copy() {
  if (static_cast<int>(rank_) == plan_.source) return CopyParts();
  Backup backup;
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
  now.tensors = ChecksumOf(state_.Tensors());
  const absl::StatusOr<uint64_t> digest = state_.Digest();
  if (!digest.ok()) return Fail("reading its state", digest.status());
  now.digest = static_cast<int64_t>(*digest);
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<RankFacts> all,
      ExchangeFacts(communicator_, now, options_.timeout));
  return CheckSameBits(all, plan_.source, std::vector<bool>(all.size(), true));
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

absl::Status Recovery::Fail(absl::string_view what,
                            const absl::Status& status) {
  const absl::Status failed = WithPrefix(
      absl::StrCat("recovery: rank ", rank_, ", ", what, ": "), status);
  communicator_.Abort(failed.message());
  return failed;
}

}  // namespace

absl::StatusOr<Recovered> Recover(Communicator& communicator,
                                  int64_t generation,
                                  const RecoveryOptions& options,
                                  ElasticState* state, RankStanding* standing) {
  COXSWAIN_RETURN_IF_ERROR(CheckOnHost(state->Tensors()));
  COXSWAIN_RETURN_IF_ERROR(CheckOnHost(state->LooseTensors()));
  return Recovery(&communicator, options, state, standing).Run(generation);
}

}  // namespace coxswain
