#include "server/checkpoint/lead_folder.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace coxswain::server {
namespace {

// No job has a name with such a character.
constexpr absl::string_view kTermPrefix = "@term-";
constexpr absl::string_view kEndedPrefix = "@ended-";
constexpr absl::string_view kGoneSuffix = ".gone";

// A change that was under way when the term ended may come in between.
constexpr int kRemoveTries = 10;

// A change that has found the folder under its old name, in the kernel or on a
// file server, looks its entry up only when it runs: it finds none of these
// either, and once the folder is removed no target.
absl::Status RemoveEnded(FileSystem* file_system, const std::string& path) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            file_system->List(path));
  for (const std::string& name : names) {
    if (absl::EndsWith(name, kGoneSuffix)) continue;
    const std::string entry = absl::StrCat(path, "/", name);
    const absl::Status renamed =
        file_system->Rename(entry, absl::StrCat(entry, kGoneSuffix));
    // One of that name that could not be removed before is removed below.
    if (!absl::IsNotFound(renamed) && !absl::IsFailedPrecondition(renamed)) {
      COXSWAIN_RETURN_IF_ERROR(renamed);
    }
  }
  absl::Status removed;
  for (int i = 0; i < kRemoveTries; ++i) {
    removed = file_system->RemoveTree(path);
    // Anything else than a folder that is not empty stays so.
    if (!absl::IsFailedPrecondition(removed)) break;
  }
  return removed;
}

}  // namespace

LeadFolder::LeadFolder(FileSystem* file_system, std::string folder,
                       RandomSource* random)
    : file_system_(file_system),
      folder_(std::move(folder)),
      id_(random->NextId()) {}

void LeadFolder::SetTerm(Term term) { term_ = term; }

std::string LeadFolder::PathOf(absl::string_view name) const {
  return absl::StrFormat("%s/%s%d-%016x%s%s", folder_, kTermPrefix,
                         term_.value(), id_, name.empty() ? "" : "/", name);
}

absl::Status LeadFolder::Make() {
  // Held while the disk works: only until the folder is there.
  MutexLock lock(&mutex_);
  if (made_) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(file_system_->MakeFolder(PathOf("")));
  made_ = true;
  return absl::OkStatus();
}

absl::Status LeadFolder::EndEarlier(FileSystem* file_system,
                                    const std::string& folder) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            file_system->List(folder));
  std::vector<std::string> ended;
  for (const std::string& name : names) {
    absl::string_view rest = name;
    std::string path = absl::StrCat(folder, "/", name);
    if (absl::ConsumePrefix(&rest, kTermPrefix)) {
      const std::string to = absl::StrCat(folder, "/", kEndedPrefix, rest);
      const absl::Status renamed = file_system->Rename(path, to);
      if (absl::IsNotFound(renamed)) continue;
      COXSWAIN_RETURN_IF_ERROR(renamed);
      path = to;
    } else if (!absl::StartsWith(name, kEndedPrefix)) {
      continue;
    }
    ended.push_back(std::move(path));
  }
  // Nothing is served before this would survive a power cut.
  if (!ended.empty()) COXSWAIN_RETURN_IF_ERROR(file_system->SyncFolder(folder));
  for (const std::string& path : ended) {
    const absl::Status removed = RemoveEnded(file_system, path);
    LogInfo("checkpoint_leftover_removed",
            {{"path", path}, {"result", removed.ToString()}});
  }
  return absl::OkStatus();
}

}  // namespace coxswain::server
