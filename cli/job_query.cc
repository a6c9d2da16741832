#include "cli/job_query.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest_word.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr char kNewest[] = "newest";
// How many checkpoints, or jobs, an error names.
constexpr size_t kMaxNamed = 8;

std::string Ids(const std::vector<v1::CheckpointInfo>& checkpoints) {
  std::vector<std::string> names;
  for (const v1::CheckpointInfo& one : checkpoints) {
    if (names.size() == kMaxNamed) {
      names.push_back(absl::StrCat(checkpoints.size() - kMaxNamed, " more"));
      break;
    }
    names.push_back(one.checkpoint_id());
  }
  return absl::StrJoin(names, ", ");
}

// "; did you mean 'mnist'?", or the names of all.
std::string OtherJobs(const std::string& job, const v1::DescribeResponse& has) {
  std::vector<std::string> all;
  for (const v1::JobDescription& one : has.jobs()) all.push_back(one.job());
  if (all.empty()) {
    return "; it shows no jobs to you; is it the right coordinator, and has a "
           "launcher of the job reached it?";
  }
  const std::string nearest = DidYouMean(job, all);
  if (!nearest.empty()) return nearest;
  const size_t rest = all.size() > kMaxNamed ? all.size() - kMaxNamed : 0;
  all.resize(all.size() - rest);
  return absl::StrCat("; it has ", absl::StrJoin(all, ", "),
                      rest > 0 ? absl::StrCat(" and ", rest, " more") : "");
}

}  // namespace

absl::Status NameKnownJobs(CoordinatorStub& stub, const std::string& job,
                           absl::Duration timeout, const absl::Status& error) {
  if (job.empty() || !absl::IsNotFound(error)) return error;
  CallOptions call;
  call.timeout = timeout;
  const auto all = stub.Describe(v1::DescribeRequest(), call);
  // A job's own credentials show no other job.
  if (!all.ok()) return error;
  return absl::Status(error.code(),
                      absl::StrCat(error.message(), OtherJobs(job, *all)));
}

absl::Status ExplainCall(const CoordinatorStub& stub, absl::string_view failed,
                         const absl::Status& error) {
  return absl::Status(error.code(),
                      absl::StrCat("the coordinator at ", stub.address(), " ",
                                   failed, ": ", error.message()));
}

absl::StatusOr<FoundJob> FindJob(CoordinatorStub& stub, const std::string& name,
                                 absl::Duration timeout) {
  v1::DescribeRequest request;
  request.set_job(name);
  CallOptions call;
  call.timeout = timeout;
  auto response = stub.Describe(request, call);
  if (absl::IsNotFound(response.status())) {
    // A plan outlives what the coordinator remembers of its job.
    request.clear_job();
    response = stub.Describe(request, call);
    if (response.ok()) {
      FoundJob kept{response->cluster_id(), response->term(), {}};
      kept.job.set_job(name);
      kept.job.set_state("ended");
      return kept;
    }
  }
  if (!response.ok()) {
    return ExplainCall(stub, "did not describe its jobs", response.status());
  }
  if (response->jobs_size() == 0) {
    return absl::NotFoundError(
        absl::StrCat("the coordinator at ", stub.address(), " has no jobs"));
  }
  if (response->jobs_size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name one of the jobs; the coordinator at ", stub.address(), " has ",
        absl::StrJoin(response->jobs(), ", ",
                      [](std::string* out, const v1::JobDescription& job) {
                        out->append(job.job());
                      })));
  }
  return FoundJob{response->cluster_id(), response->term(), response->jobs(0)};
}

v1::Fence OperatorFence(const FoundJob& found, RandomSource* random) {
  v1::Fence fence;
  fence.set_cluster_id(found.cluster_id);
  fence.set_term(found.term);
  fence.set_job(found.job.job());
  fence.set_request_id(random->NextId());
  return fence;
}

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
    return absl::NotFoundError(absl::StrCat(
        "job ", job, " has no checkpoint ", is_step ? "of step " : "", which,
        "; ",
        checkpoints.empty() ? "it has none"
                            : absl::StrCat("it has ", Ids(checkpoints))));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("job ", job, " has several checkpoints of step ", which,
                   "; give the id of one: ", Ids(hits)));
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
