#include "tests/bench/schedule/audit_rank.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/accumulate/accumulator.h"
#include "client/comm/communicator.h"
#include "hooks/registry/registry.h"
#include "schedule/step_gate.h"
#include "schedule/terms.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(1);
constexpr int kParameters = 16;
constexpr int64_t kElements = 4096;

std::vector<ParameterSpec> Parameters() {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < kParameters; ++i) {
    ParameterSpec spec;
    spec.name = absl::StrCat("weight", i);
    spec.shape = {kElements};
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::Duration ProcessCpuTime() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) +
         absl::DurationFromTimeval(usage.ru_stime);
}

// As much work for each call, independent of what else uses the processor.
void Compute(int64_t iterations) {
  volatile double sink = 0;
  double x = 1;
  for (int64_t i = 0; i < iterations; ++i) x = x * 1.0000001 + 1e-9;
  sink = x;
  static_cast<void>(sink);
}

double IterationsPerSecond() {
  constexpr int64_t kIterations = 20'000'000;
  const absl::Duration before = ThreadCpuTime();
  Compute(kIterations);
  return kIterations / absl::ToDoubleSeconds(ThreadCpuTime() - before);
}

absl::Duration Median(std::vector<absl::Duration> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditRank>> AuditRank::Join(
    const Options& options) {
  auto made = std::unique_ptr<AuditRank>(new AuditRank(options));
  for (const std::string enforcement : {"off", "audit"}) {
    COXSWAIN_ASSIGN_OR_RETURN(Job job, made->JoinOne(enforcement));
    made->jobs_.emplace(enforcement, std::move(job));
  }
  made->iterations_per_second_ = IterationsPerSecond();
  return made;
}

absl::StatusOr<AuditRank::Job> AuditRank::JoinOne(
    const std::string& enforcement) const {
  SessionOptions session;
  session.coordinator = options_.coordinator;
  session.job = enforcement;
  session.identity = {"bench", options_.rank};
  session.local_rank = options_.rank;
  session.local_world_size = session.world_size = options_.size;
  session.backend = options_.backend;
  session.collective_timeout = kTimeout;
  JobManifest manifest;
  manifest.parameters = Parameters();
  COXSWAIN_RETURN_IF_ERROR(manifest.terms.Set("enforcement", enforcement));
  Job job;
  COXSWAIN_ASSIGN_OR_RETURN(job.session, Session::Join(session, manifest));
  COXSWAIN_ASSIGN_OR_RETURN(job.world, job.session->World());
  COXSWAIN_ASSIGN_OR_RETURN(job.hook, MakeHook("allreduce"));
  COXSWAIN_ASSIGN_OR_RETURN(schedule::StepGate* const gate,
                            job.session->schedule().Gate());
  job.gate = std::make_unique<TimedGate>(gate);
  ReducerOptions reducer;
  reducer.gate = job.gate.get();
  FollowPlan(job.session->plan(), options_.size, &reducer);
  COXSWAIN_ASSIGN_OR_RETURN(
      job.reducer, Reducer::Create(reducer, manifest.parameters, job.hook.get(),
                                   &job.world->communicator()));
  return job;
}

AuditRank::~AuditRank() {
  for (auto& [enforcement, job] : jobs_) {
    job.session->Leave("done").IgnoreError();
  }
}

absl::Status AuditRank::Step(const std::function<void()>& compute, Job& job) {
  schedule::Ticket ticket;
  ticket.step = job.step++;
  COXSWAIN_RETURN_IF_ERROR(job.reducer->BeginStep(ticket, 1));
  compute();
  for (int p = kParameters; p-- > 0;) {
    COXSWAIN_RETURN_IF_ERROR(job.reducer->MarkReady(p));
  }
  COXSWAIN_RETURN_IF_ERROR(job.reducer->Finish());
  COXSWAIN_RETURN_IF_ERROR(job.reducer->Decide().status());
  return job.reducer->Commit();
}

absl::StatusOr<AuditRank::Steps> AuditRank::Take(const std::string& enforcement,
                                                 int count,
                                                 absl::Duration compute,
                                                 bool elsewhere) {
  const auto found = jobs_.find(enforcement);
  if (found == jobs_.end() || count < 1) {
    return absl::InvalidArgumentError(
        "steps off|audit COUNT SECONDS here|elsewhere");
  }
  Job& job = found->second;
  const auto iterations = static_cast<int64_t>(absl::ToDoubleSeconds(compute) *
                                               iterations_per_second_);
  const CancelSignal never;
  const auto work = [&] {
    if (elsewhere) {
      never.WaitFor(compute);
    } else {
      Compute(iterations);
    }
  };
  COXSWAIN_RETURN_IF_ERROR(job.world->communicator().Barrier()->Wait(kTimeout));
  std::vector<absl::Duration> walls, gates, gate_cpus;
  const absl::Duration cpu = ProcessCpuTime();
  for (int i = 0; i < count; ++i) {
    job.gate->Reset();
    const absl::Time begun = Clock::Real()->Now();
    COXSWAIN_RETURN_IF_ERROR(Step(work, job));
    walls.push_back(Clock::Real()->Now() - begun);
    gates.push_back(job.gate->wall());
    gate_cpus.push_back(job.gate->cpu());
  }
  Steps steps;
  steps.cpu = (ProcessCpuTime() - cpu) / count;
  steps.wall = Median(std::move(walls));
  steps.in_gate = Median(std::move(gates));
  steps.in_gate_cpu = Median(std::move(gate_cpus));
  return steps;
}

absl::StatusOr<int64_t> AuditRank::WireBytes(int micro_batches, bool each) {
  Job& job = jobs_.at("audit");
  COXSWAIN_ASSIGN_OR_RETURN(Accumulator accumulator,
                            Accumulator::Create(each ? 1 : micro_batches));
  const int64_t before = job.world->communicator().wire_bytes();
  for (int i = 0; i < micro_batches; ++i) {
    COXSWAIN_ASSIGN_OR_RETURN(const MicroBatch micro,
                              accumulator.BeginMicroBatch());
    if (micro.exchange) COXSWAIN_RETURN_IF_ERROR(Step([] {}, job));
  }
  return job.world->communicator().wire_bytes() - before;
}

}  // namespace coxswain::bench
