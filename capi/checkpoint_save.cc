#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "capi/call.h"
#include "capi/checkpoint_pieces.h"
#include "capi/open_session.h"
#include "capi/resumed_hooks.h"
#include "client/reduce/hook_state.h"
#include "client/resume/session_checkpoints.h"
#include "hooks/plain_hook.h"
#include "hooks/registry/planned_hook.h"
#include "schedule/ticket.h"

namespace coxswain::capi {
namespace {

constexpr size_t kMostPieces = 1 << 20;
constexpr size_t kLongestName = 512;
constexpr char kPosition[] = "position/";

struct Piece {
  std::string blob;
  const void* data = nullptr;
  size_t size = 0;
};

absl::StatusOr<std::vector<Piece>> PiecesOf(const cx_checkpoint& given,
                                            int rank) {
  if (given.piece_count > kMostPieces) {
    return InvalidArgument("piece_count",
                           absl::StrCat("is ", given.piece_count,
                                        ", and there may be ", kMostPieces));
  }
  if (given.piece_count > 0) {
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(given.pieces, "pieces"));
  }
  std::vector<Piece> pieces;
  for (size_t i = 0; i < given.piece_count; ++i) {
    const cx_piece& piece = given.pieces[i];
    const std::string where = absl::StrCat("pieces[", i, "]");
    COXSWAIN_ASSIGN_OR_RETURN(const std::string name,
                              TextOf(piece.name, absl::StrCat(where, ".name")));
    if (name.empty() || name.size() > kLongestName) {
      return InvalidArgument(
          absl::StrCat(where, ".name"),
          absl::StrCat("has ", name.size(), " bytes, not 1 to ", kLongestName));
    }
    if (absl::StartsWith(name, kOwnPieces) || IsHookPiece(name)) {
      return InvalidArgument(
          absl::StrCat(where, ".name"),
          absl::StrCat("is \"", name, "\", which is the library's own"));
    }
    if ((piece.flags & ~uint64_t{CX_PIECE_OWN}) != 0) {
      return InvalidArgument(absl::StrCat(where, ".flags"),
                             "has one that does not exist");
    }
    if (piece.size > 0) {
      COXSWAIN_RETURN_IF_ERROR(
          CheckPresent(piece.data, absl::StrCat(where, ".data")));
    }
    const bool own = (piece.flags & CX_PIECE_OWN) != 0;
    if (!own && rank != 0) continue;
    pieces.push_back(
        {own ? OwnPiece(rank, name) : name, piece.data, piece.size});
  }
  std::set<absl::string_view> ended;
  for (size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i].blob == pieces[i - 1].blob) continue;
    ended.insert(pieces[i - 1].blob);
    if (ended.count(pieces[i].blob) == 0) continue;
    return InvalidArgument("pieces",
                           absl::StrCat("has '", pieces[i].blob,
                                        "' twice, with others in between"));
  }
  return pieces;
}

absl::Status Fill(const std::vector<Piece>& pieces,
                  AsyncCheckpoint::Blobs* blobs) {
  AsyncCheckpoint::Blobs before = std::exchange(*blobs, {});
  std::map<std::string, size_t> sizes;
  for (const Piece& piece : pieces) sizes[piece.blob] += piece.size;
  for (const auto& [name, size] : sizes) {
    // Memory of an earlier copy is used again.
    std::string& bytes = (*blobs)[name] = std::move(before[name]);
    bytes.clear();
    bytes.reserve(size);
  }
  for (const Piece& piece : pieces) {
    if (piece.size == 0) continue;
    (*blobs)[piece.blob].append(static_cast<const char*>(piece.data),
                                piece.size);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> MetadataOf(
    const cx_checkpoint& given) {
  if (given.metadata_count > 0) {
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(given.metadata, "metadata"));
  }
  std::map<std::string, std::string> metadata;
  for (size_t i = 0; i < given.metadata_count; ++i) {
    const std::string where = absl::StrCat("metadata[", i, "]");
    COXSWAIN_ASSIGN_OR_RETURN(
        const std::string name,
        TextOf(given.metadata[i].name, absl::StrCat(where, ".name")));
    COXSWAIN_ASSIGN_OR_RETURN(
        metadata[name],
        TextOf(given.metadata[i].value, absl::StrCat(where, ".value")));
  }
  return metadata;
}

// What a stream exchanges by, for a copy.
struct StreamHook {
  std::unique_ptr<Hook> made;  // for this copy; may be null
  const Hook* hook = nullptr;
  schedule::Plan plan;
  std::vector<ParameterSpec> parameters;
};

// Returns the hook of the plan after so many steps. Fails with
// FAILED_PRECONDITION if it would have learned something.
absl::StatusOr<StreamHook> HookAt(const schedule::Plan& plan, int world_size,
                                  int64_t step) {
  StreamHook train;
  COXSWAIN_ASSIGN_OR_RETURN(train.made, MakePlannedHook(plan));
  Hook& hook = *train.made;
  if (dynamic_cast<const PlainHook*>(&hook) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the plan's hook is ", hook.spec(),
        ", whose state is not known here, as the stream \"",
        schedule::kTrainStream,
        "\" exchanges nothing by it: call cx_exchange_open, or use allreduce, "
        "fp16 or bf16"));
  }
  COXSWAIN_RETURN_IF_ERROR(hook.Configure({}, world_size));
  HookState state;
  state.spec = hook.spec();
  state.step = step;
  COXSWAIN_RETURN_IF_ERROR(hook.LoadOwn(state, /*error_scale=*/1));
  train.hook = &hook;
  train.plan = plan;
  return train;
}

// Returns the hook that a stream exchanges by next.
absl::StatusOr<StreamHook> HookOf(const OpenSession& open,
                                  StreamExchange& exchange) {
  StreamHook next;
  COXSWAIN_ASSIGN_OR_RETURN(next.hook, exchange.SettledHook());
  next.plan = open.plan();
  next.parameters = exchange.stream().parameters();
  if (next.plan.SameHook(exchange.stream().plan())) return next;
  // The ranks change over to it with their next exchange.
  COXSWAIN_ASSIGN_OR_RETURN(next.made, MakePlannedHook(next.plan));
  COXSWAIN_RETURN_IF_ERROR(
      next.made->Configure(next.parameters, open.session->world_size()));
  if (next.plan.terms.hook_state == schedule::HookStatePolicy::kCarry) {
    COXSWAIN_ASSIGN_OR_RETURN(const HookState own, next.hook->SaveOwn());
    COXSWAIN_RETURN_IF_ERROR(next.made->LoadOwn(own, /*error_scale=*/1));
  }
  next.hook = next.made.get();
  return next;
}

absl::StatusOr<StreamHook> TrainHook(const OpenSession& open, int64_t step) {
  const auto exchange = open.ExchangeOf(schedule::kTrainStream);
  if (exchange != nullptr) return HookOf(open, *exchange);
  return HookAt(open.plan(), open.session->world_size(), step);
}

// Adds this rank's own states of the hooks of the other streams.
absl::Status AddHooks(const OpenSession& open, AsyncCheckpoint::Blobs* blobs) {
  for (const auto& [stream, exchange] : open.exchanges()) {
    if (stream == schedule::kTrainStream) continue;
    COXSWAIN_ASSIGN_OR_RETURN(const StreamHook next, HookOf(open, *exchange));
    COXSWAIN_ASSIGN_OR_RETURN(const HookState own, next.hook->SaveOwn());
    (*blobs)[OwnPiece(open.session->rank(), HookPiece(stream))] =
        SerializeHookState(own);
  }
  return absl::OkStatus();
}

absl::Status Save(OpenSession& open, const cx_checkpoint& given) {
  if ((given.flags & ~uint64_t{CX_CHECKPOINT_OWN_ERRORS}) != 0) {
    return InvalidArgument("flags", "has one that does not exist");
  }
  if (given.step < 0 || given.step > schedule::kMaxStep) {
    return InvalidArgument("step", absl::StrCat("is ", given.step));
  }
  if (given.keep_last < 0 || given.keep_every < 0) {
    return InvalidArgument("keep_last or keep_every", "is below 0");
  }
  AsyncCheckpoint::Source source;
  source.step = given.step;
  COXSWAIN_ASSIGN_OR_RETURN(source.reason, TextOf(given.reason, "reason"));
  COXSWAIN_ASSIGN_OR_RETURN(source.metadata, MetadataOf(given));
  source.metadata["plan_version"] = absl::StrCat(open.plan().version);
  source.metadata[absl::StrCat(kPosition, schedule::kTrainStream)] =
      absl::StrCat(given.step);
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<Piece> pieces,
                            PiecesOf(given, open.session->rank()));
  COXSWAIN_ASSIGN_OR_RETURN(const StreamHook train,
                            TrainHook(open, given.step));
  source.hook = train.hook;
  source.make_hook = [plan = train.plan] { return MakePlannedHook(plan); };
  source.parameters = train.parameters;
  source.ranks_have_blobs = true;
  source.fill_blobs = [&](AsyncCheckpoint::Blobs* blobs) {
    COXSWAIN_RETURN_IF_ERROR(Fill(pieces, blobs));
    return AddHooks(open, blobs);
  };
  MutexLock lock(&open.checkpoints);
  if (open.saver == nullptr) {
    AsyncCheckpoint::Options options = SaverOf(*open.session);
    options.own_errors = (given.flags & CX_CHECKPOINT_OWN_ERRORS) != 0;
    open.saver_flags = given.flags;
    options.retention.keep_last = given.keep_last;
    options.retention.keep_every = given.keep_every;
    open.saver = std::make_unique<AsyncCheckpoint>(open.session->checkpoints(),
                                                   std::move(options));
  }
  if (open.saver_flags != given.flags) {
    return InvalidArgument("flags", "differ from those of the save before");
  }
  return open.saver->Snapshot(source);
}

// Waits in slices until no save is in progress.
class SavedCall : public Call {
 public:
  SavedCall(std::shared_ptr<OpenSession> open, int64_t timeout_ms,
            const Result<cx_checkpoint_report>& result)
      : open_(std::move(open)),
        timeout_(absl::Milliseconds(timeout_ms)),
        deadline_(Clock::Real()->Now() + timeout_),
        result_(result) {}

  std::optional<absl::Status> Wait(absl::Duration slice) override {
    AsyncCheckpoint* const saver = Saver();
    const absl::Duration left =
        std::max(absl::ZeroDuration(), deadline_ - Clock::Real()->Now());
    if (saver != nullptr) {
      saver->Finish(std::min(slice, left)).IgnoreError();
    }
    const bool busy = saver != nullptr && saver->busy();
    if (busy && left > slice) return std::nullopt;
    Report(saver, busy);
    if (!busy) return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat("a checkpoint is still being saved after ",
                     absl::FormatDuration(timeout_)));
  }
  void Cancel(const absl::Status&, absl::Duration) override {}

 private:
  AsyncCheckpoint* Saver() {
    MutexLock lock(&open_->checkpoints);
    return open_->saver.get();
  }
  void Report(AsyncCheckpoint* saver, bool busy) {
    thread_local std::string id, error;
    cx_checkpoint_report filled{};
    filled.busy = busy ? 1 : 0;
    filled.step = -1;
    id.clear();
    error.clear();
    if (saver != nullptr) {
      const std::optional<SaveReport> last = saver->last();
      if (last.has_value()) {
        filled.step = last->step;
        filled.code = static_cast<cx_code>(last->status.code());
        id = last->checkpoint_id;
        error = std::string(last->status.message());
      }
    }
    filled.checkpoint = id.c_str();
    filled.error = error.c_str();
    result_.Fill(filled);
  }

  const std::shared_ptr<OpenSession> open_;
  const absl::Duration timeout_;
  const absl::Time deadline_;
  const Result<cx_checkpoint_report> result_;
};

}  // namespace
}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_checkpoint_save(cx_session session,
                           const cx_checkpoint* checkpoint) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const cx_checkpoint given,
                              capi::ReadStruct(checkpoint, "checkpoint"));
    return capi::Save(*open, given);
  });
}

cx_code cx_checkpoint_saved(cx_session session, int64_t timeout_ms,
                            cx_checkpoint_report* report, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto result,
        capi::Result<cx_checkpoint_report>::Of(report, "report"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckTimeout(timeout_ms));
    return capi::Await(
        call, std::make_shared<capi::SavedCall>(open, timeout_ms, result));
  });
}
