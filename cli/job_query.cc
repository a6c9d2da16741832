#include "cli/job_query.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coxswain {

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
        "which job? The coordinator at ", stub.address(), " has ",
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

}  // namespace coxswain
