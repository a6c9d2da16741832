#include "client/comm/nccl/nccl_meeting.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/comm/nccl/nccl_status.h"

namespace coxswain {
namespace {

// How long one question to the store lasts before it looks for cancellation.
constexpr absl::Duration kLook = absl::Seconds(1);

// Verdicts of rank 0: one of the words, or "roots=N".
constexpr absl::string_view kLate = "late: ";
constexpr absl::string_view kFailed = "failed: ";
constexpr absl::string_view kUnfit = "unfit: ";
constexpr absl::string_view kRoots = "roots=";

class Meeting {
 public:
  Meeting(const CommunicatorOptions& options, const NcclPresence& self,
          NcclApi* api)
      : options_(options), self_(self), api_(api) {}

  absl::StatusOr<std::vector<NcclUniqueId>> Run();

 private:
  std::string Key(absl::string_view what, int who) const {
    return absl::StrCat("nccl/", options_.id, "/", what, "/", who);
  }
  std::string name() const {
    return absl::StrCat("connecting rank ", options_.rank, " of ",
                        options_.size, " of communicator '", options_.id, "'");
  }
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::string_view who);
  // A rank's word: NCCL's version, its GPU.
  std::string Word() const {
    return absl::StrCat(api_->version(), " ", self_.gpu);
  }
  absl::StatusOr<std::string> Verdict();
  absl::StatusOr<std::string> Judge();
  absl::StatusOr<std::vector<NcclUniqueId>> Follow(absl::string_view verdict);
  // The rank that makes the k-th of `roots` ids.
  int MakerOf(int root, int roots) const {
    return static_cast<int>(static_cast<int64_t>(root) * options_.size / roots);
  }
  absl::Status MakeIds(int roots);

  const CommunicatorOptions& options_;
  const NcclPresence& self_;
  NcclApi* const api_;
};

absl::StatusOr<std::string> Meeting::Get(const std::string& key,
                                         absl::string_view who) {
  while (true) {
    if (options_.cancel != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(options_.cancel->status());
    }
    const absl::Duration left = self_.end - self_.clock->Now();
    auto value =
        options_.store->Get(key, std::clamp(left, absl::ZeroDuration(), kLook));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status())) return value;
    if (left > absl::ZeroDuration()) continue;
    return absl::DeadlineExceededError(
        absl::StrCat(name(), ": ", who, " did not arrive in time"));
  }
}

// What a rank has sent.
struct Said {
  int version = 0;
  std::string gpu;
};

absl::StatusOr<Said> Read(absl::string_view word, int rank) {
  const std::vector<std::string> parts =
      absl::StrSplit(word, absl::MaxSplits(' ', 1));
  Said said;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &said.version)) {
    return absl::InternalError(
        absl::StrCat("rank ", rank,
                     " sent a message that cannot be read; give all ranks the "
                     "same version of "
                     "the library"));
  }
  said.gpu = parts[1];
  return said;
}

// Waits for all words; the verdict.
absl::StatusOr<std::string> Meeting::Judge() {
  std::map<std::string, int> users;
  for (int rank = 0; rank < options_.size; ++rank) {
    COXSWAIN_ASSIGN_OR_RETURN(
        const std::string word,
        Get(Key("word", rank), absl::StrCat("rank ", rank)));
    COXSWAIN_ASSIGN_OR_RETURN(const Said said, Read(word, rank));
    if (said.version != api_->version()) {
      return absl::StrCat(kUnfit, "rank ", rank, " has NCCL ",
                          NcclVersionText(said.version), ", and rank 0 has ",
                          NcclVersionText(api_->version()),
                          "; give all ranks the same one");
    }
    const auto user = users.emplace(said.gpu, rank);
    if (!user.second) {
      return absl::StrCat(kUnfit, "ranks ", user.first->second, " and ", rank,
                          " use the same GPU, ", said.gpu,
                          "; give each rank one of its own");
    }
  }
  const bool scalable = api_->has(NcclFeature::kInitRankScalable);
  const int roots =
      scalable ? (options_.size + kNcclRanksPerRoot - 1) / kNcclRanksPerRoot
               : 1;
  return absl::StrCat(kRoots, roots);
}

absl::StatusOr<std::string> Meeting::Verdict() {
  const std::string key = Key("verdict", 0);
  if (options_.rank != 0) {
    return Get(key, "rank 0, or a rank that it waits for,");
  }
  absl::StatusOr<std::string> verdict = Judge();
  if (!verdict.ok()) {
    const bool late = absl::IsDeadlineExceeded(verdict.status());
    // For those that still wait; whether it arrives changes nothing here.
    options_.store
        ->Set(key,
              absl::StrCat(late ? kLate : kFailed, verdict.status().message()))
        .IgnoreError();
    return verdict;
  }
  COXSWAIN_RETURN_IF_ERROR(options_.store->Set(key, *verdict));
  return verdict;
}

absl::Status Meeting::MakeIds(int roots) {
  for (int root = 0; root < roots; ++root) {
    if (MakerOf(root, roots) != options_.rank) continue;
    NcclUniqueId id;
    COXSWAIN_RETURN_IF_ERROR(NcclStatus(absl::StrCat(name(), ": unique id"),
                                        api_->GetUniqueId(&id), api_, nullptr));
    COXSWAIN_RETURN_IF_ERROR(options_.store->Set(
        Key("id", root), absl::string_view(id.data(), id.size())));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NcclUniqueId>> Meeting::Follow(
    absl::string_view verdict) {
  if (absl::ConsumePrefix(&verdict, kLate)) {
    return absl::DeadlineExceededError(absl::StrCat(name(), ": ", verdict));
  }
  if (absl::ConsumePrefix(&verdict, kFailed)) {
    return absl::UnavailableError(
        absl::StrCat(name(), ": rank 0 failed: ", verdict));
  }
  if (absl::ConsumePrefix(&verdict, kUnfit)) {
    return absl::FailedPreconditionError(absl::StrCat(name(), ": ", verdict));
  }
  int roots = 0;
  if (!absl::ConsumePrefix(&verdict, kRoots) ||
      !absl::SimpleAtoi(verdict, &roots) || roots < 1 ||
      roots > options_.size) {
    return absl::InternalError(
        absl::StrCat(name(), ": rank 0 published no valid number of ids"));
  }
  COXSWAIN_RETURN_IF_ERROR(MakeIds(roots));
  std::vector<NcclUniqueId> ids;
  for (int root = 0; root < roots; ++root) {
    COXSWAIN_ASSIGN_OR_RETURN(
        const std::string id,
        Get(Key("id", root),
            absl::StrCat("the unique id of rank ", MakerOf(root, roots))));
    ids.emplace_back();
    if (id.size() != ids.back().size()) {
      return absl::InternalError(absl::StrCat(name(), ": a unique id of ",
                                              id.size(), " bytes is none"));
    }
    std::copy(id.begin(), id.end(), ids.back().begin());
  }
  return ids;
}

absl::StatusOr<std::vector<NcclUniqueId>> Meeting::Run() {
  COXSWAIN_RETURN_IF_ERROR(
      options_.store->Set(Key("word", options_.rank), Word()));
  COXSWAIN_ASSIGN_OR_RETURN(const std::string verdict, Verdict());
  return Follow(verdict);
}

}  // namespace

absl::StatusOr<std::vector<NcclUniqueId>> MeetForNccl(
    const CommunicatorOptions& options, const NcclPresence& self,
    NcclApi* api) {
  return Meeting(options, self, api).Run();
}

}  // namespace coxswain
