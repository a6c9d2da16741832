#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "capi/call.h"
#include "capi/checkpoint_pieces.h"
#include "capi/open_session.h"
#include "capi/resumed_hooks.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/resume/session_checkpoints.h"

namespace coxswain::capi {
namespace {

constexpr char kNewest[] = "newest";
constexpr char kHook[] = "hook";
constexpr char kWorldSize[] = "world_size";

using Descriptions = std::vector<CheckpointDescription>;

// Returns the checkpoint that is named by its id, by its step, or as "newest".
absl::StatusOr<CheckpointDescription> Choose(const Descriptions& list,
                                             const std::string& which) {
  int64_t step = -1;
  if (!absl::SimpleAtoi(which, &step)) step = -1;
  const auto found = std::find_if(
      list.begin(), list.end(), [&](const CheckpointDescription& checkpoint) {
        return which == kNewest || checkpoint.id == which ||
               (step >= 0 && checkpoint.step == step);
      });
  if (found != list.end()) return *found;
  if (list.empty()) {
    return absl::NotFoundError("this job has no complete checkpoint");
  }
  return absl::NotFoundError(absl::StrCat(
      "this job has no complete checkpoint '", which,
      "': name one by its id, by its step, or as \"newest\"; the newest is '",
      list.front().id, "'"));
}

// Fills a struct whose texts are kept for the caller's thread.
void Describe(CheckpointDescription description,
              const Result<cx_checkpoint_info>& result) {
  thread_local CheckpointDescription kept;
  thread_local std::vector<cx_setting> metadata;
  kept = std::move(description);
  metadata.clear();
  cx_checkpoint_info filled{};
  filled.step = kept.step;
  filled.bytes = kept.bytes;
  filled.created_ms = absl::ToUnixMillis(kept.created);
  filled.id = kept.id.c_str();
  filled.hook = kept.metadata[kHook].c_str();
  if (!absl::SimpleAtoi(kept.metadata[kWorldSize], &filled.world_size)) {
    filled.world_size = kept.shards;
  }
  for (const auto& [name, value] : kept.metadata) {
    metadata.push_back({name.c_str(), value.c_str()});
  }
  filled.metadata = metadata.data();
  filled.metadata_count = metadata.size();
  result.Fill(filled);
}

absl::StatusOr<std::string> WhichOf(const char* which) {
  COXSWAIN_RETURN_IF_ERROR(CheckPresent(which, "which"));
  return TextOf(which, "which");
}

// Lists the checkpoints, and describes the one that `choose` returns.
Answer FindBy(
    const std::shared_ptr<OpenSession>& open, cx_checkpoint_info* info,
    cx_call* call,
    std::function<absl::StatusOr<CheckpointDescription>(const Descriptions&)>
        choose) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto result,
                            Result<cx_checkpoint_info>::Of(info, "info"));
  const auto found = std::make_shared<CheckpointDescription>();
  Work work;
  work.run = [open, found, choose = std::move(choose)]() -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(const auto list,
                              open->session->checkpoints().List());
    COXSWAIN_ASSIGN_OR_RETURN(*found, choose(list));
    return absl::OkStatus();
  };
  work.deliver = [found, result]() {
    Describe(std::move(*found), result);
    return absl::OkStatus();
  };
  return Do(call, std::move(work));
}

struct Loaded {
  CheckpointDescription description;
  std::shared_ptr<const TrainingState> state;
};

absl::StatusOr<std::string> Newest(OpenSession& open) {
  int64_t number = 0;
  {
    MutexLock lock(&open.checkpoints);
    number = open.agreements;
  }
  auto newest = AgreeOnNewest(*open.session, &number);
  MutexLock lock(&open.checkpoints);
  open.agreements = std::max(open.agreements, number);
  return newest;
}

// Where each rank's own errors were saved, as many ranks load no shards but
// their own and rank 0's. Of the pieces of the latter they have no use.
void KeepOwn(const TrainingRank& me, TrainingState* state) {
  if (state->own.size() != static_cast<size_t>(me.world_size)) return;
  const std::string own = OwnPiece(me.rank, "");
  for (auto it = state->blobs.begin(); it != state->blobs.end();) {
    const bool stays = !absl::StartsWith(it->first, kOwnPieces) ||
                       absl::StartsWith(it->first, own);
    it = stays ? std::next(it) : state->blobs.erase(it);
  }
}

absl::StatusOr<Loaded> Load(OpenSession& open, const std::string& which) {
  CheckpointClient& checkpoints = open.session->checkpoints();
  std::string wanted = which;
  if (which == kNewest) {
    COXSWAIN_ASSIGN_OR_RETURN(wanted, Newest(open));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto list, checkpoints.List());
  auto found = Choose(list, wanted);
  // NOT_FOUND of "newest" means that all ranks begin anew; here others go on.
  if (absl::IsNotFound(found.status()) && which == kNewest) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint ", wanted, ", on which the ranks have agreed, is gone: ",
        found.status().message(), "; resume again"));
  }
  COXSWAIN_RETURN_IF_ERROR(found.status());
  Loaded loaded;
  loaded.description = *std::move(found);
  const TrainingRank me{open.session->rank(), open.session->world_size()};
  COXSWAIN_ASSIGN_OR_RETURN(
      TrainingState state,
      LoadTrainingState(checkpoints, loaded.description.id, me));
  KeepOwn(me, &state);
  loaded.state = std::make_shared<TrainingState>(std::move(state));
  return loaded;
}

absl::Status CheckLoaded(const OpenSession& open)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(open.checkpoints) {
  if (open.loaded != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "no checkpoint is loaded: call cx_checkpoint_load first");
}

void DescribePiece(const std::string& blob, const std::string& bytes,
                   const Result<cx_piece_info>& result) {
  thread_local std::string name;
  cx_piece_info filled{};
  filled.rank = -1;
  absl::string_view rest = blob;
  const size_t slash = blob.find('/', sizeof(kOwnPieces) - 1);
  if (absl::ConsumePrefix(&rest, kOwnPieces) && slash != std::string::npos &&
      absl::SimpleAtoi(rest.substr(0, rest.find('/')), &filled.rank)) {
    name = blob.substr(slash + 1);
  } else {
    filled.rank = -1;
    name = blob;
  }
  filled.name = name.c_str();
  filled.data = bytes.data();
  filled.data_size = bytes.size();
  result.Fill(filled);
}

}  // namespace
}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_checkpoint_find(cx_session session, const char* which,
                           cx_checkpoint_info* info, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const std::string name, capi::WhichOf(which));
    return capi::FindBy(open, info, call,
                        [name](const capi::Descriptions& list) {
                          return capi::Choose(list, name);
                        });
  });
}

cx_code cx_checkpoint_at(cx_session session, int64_t index,
                         cx_checkpoint_info* info, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    if (index < 0) {
      return capi::InvalidArgument("index", absl::StrCat("is ", index));
    }
    return capi::FindBy(
        open, info, call,
        [index](const capi::Descriptions& list)
            -> absl::StatusOr<coxswain::CheckpointDescription> {
          if (static_cast<uint64_t>(index) < list.size()) {
            return list[static_cast<size_t>(index)];
          }
          return absl::OutOfRangeError(absl::StrCat(
              "this job has ", list.size(), " complete checkpoints"));
        });
  });
}

cx_code cx_checkpoint_load(cx_session session, const char* which,
                           cx_checkpoint_info* info, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const std::string name, capi::WhichOf(which));
    std::optional<capi::Result<cx_checkpoint_info>> result;
    if (info != nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(
          result, capi::Result<cx_checkpoint_info>::Of(info, "info"));
    }
    const auto loaded = std::make_shared<capi::Loaded>();
    capi::Work work;
    work.run = [open, name, loaded]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(*loaded, capi::Load(*open, name));
      return absl::OkStatus();
    };
    work.deliver = [open, loaded, result]() {
      {
        coxswain::MutexLock lock(&open->checkpoints);
        open->loaded = std::move(loaded->state);
      }
      if (result.has_value()) {
        capi::Describe(std::move(loaded->description), *result);
      }
      return absl::OkStatus();
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_checkpoint_hook(cx_session session, const char* stream,
                           cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const std::string name, capi::StreamOf(stream));
    std::shared_ptr<const coxswain::TrainingState> loaded;
    {
      coxswain::MutexLock lock(&open->checkpoints);
      COXSWAIN_RETURN_IF_ERROR(capi::CheckLoaded(*open));
      loaded = open->loaded;
    }
    COXSWAIN_ASSIGN_OR_RETURN(const auto state,
                              capi::HookStateIn(*loaded, name));
    const auto exchange = open->ExchangeOf(name);
    if (exchange == nullptr) {
      open->KeepResumed(name, state);
      return absl::OkStatus();
    }
    capi::Work work;
    work.run = [open, exchange, state]() {
      return capi::LoadInto(*open, *state, *exchange);
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_checkpoint_piece(cx_session session, int64_t index,
                            cx_piece_info* piece) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto result,
                              capi::Result<cx_piece_info>::Of(piece, "piece"));
    coxswain::MutexLock lock(&open->checkpoints);
    COXSWAIN_RETURN_IF_ERROR(capi::CheckLoaded(*open));
    const auto& blobs = open->loaded->blobs;
    if (index < 0) {
      return capi::InvalidArgument("index", absl::StrCat("is ", index));
    }
    if (static_cast<uint64_t>(index) >= blobs.size()) {
      return absl::OutOfRangeError(
          absl::StrCat("checkpoint '", open->loaded->checkpoint_id, "' has ",
                       blobs.size(), " pieces"));
    }
    const auto found = std::next(blobs.begin(), index);
    capi::DescribePiece(found->first, found->second, result);
    return absl::OkStatus();
  });
}

cx_code cx_checkpoint_release(cx_session session) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    coxswain::MutexLock lock(&open->checkpoints);
    open->loaded = nullptr;
    return absl::OkStatus();
  });
}
