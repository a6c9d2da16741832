#include "cli/checkpoint_query.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr char kNewest[] = "newest";
// In an error.
constexpr size_t kMaxNamed = 8;

std::string Name(const std::vector<v1::CheckpointInfo>& checkpoints) {
  if (checkpoints.empty()) return "it has none";
  std::vector<std::string> names;
  for (const v1::CheckpointInfo& one : checkpoints) {
    if (names.size() == kMaxNamed) {
      names.push_back(absl::StrCat(checkpoints.size() - kMaxNamed, " more"));
      break;
    }
    names.push_back(one.checkpoint_id());
  }
  return absl::StrCat("it has ", absl::StrJoin(names, ", "));
}

}  // namespace

absl::StatusOr<std::vector<v1::CheckpointInfo>> ListCheckpoints(
    CoordinatorStub& stub, const std::string& job, absl::Duration timeout) {
  v1::ListRequest request;
  request.set_job(job);
  CallOptions call;
  call.timeout = timeout;
  const auto response = stub.ListCheckpoints(request, call);
  if (!response.ok()) {
    return ExplainCall(stub, "did not list the checkpoints", response.status());
  }
  return std::vector<v1::CheckpointInfo>(response->checkpoints().begin(),
                                         response->checkpoints().end());
}

absl::StatusOr<v1::CheckpointInfo> PickCheckpoint(
    const std::vector<v1::CheckpointInfo>& checkpoints, const std::string& job,
    const std::string& which) {
  if (which == kNewest && !checkpoints.empty()) return checkpoints.front();
  int64_t step = -1;
  const bool is_step = absl::SimpleAtoi(which, &step);
  std::vector<v1::CheckpointInfo> hits;
  for (const v1::CheckpointInfo& one : checkpoints) {
    if (is_step ? one.step() == step : one.checkpoint_id() == which) {
      hits.push_back(one);
    }
  }
  if (hits.size() == 1) return hits.front();
  if (hits.empty()) {
    return absl::NotFoundError(absl::StrCat("job ", job, " has no checkpoint ",
                                            is_step ? "of step " : "", which,
                                            ": ", Name(checkpoints)));
  }
  return absl::InvalidArgumentError(absl::StrCat("which one? Of step ", which,
                                                 " job ", job,
                                                 " has several: ", Name(hits)));
}

absl::StatusOr<FoundCheckpoint> FindCheckpoint(CoordinatorStub& stub,
                                               const std::string& job,
                                               const std::string& which,
                                               absl::Duration timeout) {
  FoundCheckpoint result;
  COXSWAIN_ASSIGN_OR_RETURN(result.found, FindJob(stub, job, timeout));
  const std::string& name = result.found.job.job();
  COXSWAIN_ASSIGN_OR_RETURN(const auto checkpoints,
                            ListCheckpoints(stub, name, timeout));
  COXSWAIN_ASSIGN_OR_RETURN(result.checkpoint,
                            PickCheckpoint(checkpoints, name, which));
  return result;
}

}  // namespace coxswain
