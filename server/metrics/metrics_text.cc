#include "server/metrics/metrics_text.h"

#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/histogram.h"
#include "base/version.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"
#include "server/telemetry/stragglers.h"

namespace coxswain::server {
namespace {

// Collects samples, and brings those of one metric together, as the text format
// wants them. One thread.
class MetricFamilies {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // The name and the help count the first time.
  void Gauge(absl::string_view name, absl::string_view help, double value,
             const Labels& labels = {});
  // Its name ends in _total.
  void Counter(absl::string_view name, absl::string_view help, double value,
               const Labels& labels = {});
  void Durations(absl::string_view name, absl::string_view help,
                 const Histogram& histogram, const Labels& labels = {});

  std::string Text() const;

 private:
  prometheus::ClientMetric* Add(absl::string_view name, absl::string_view help,
                                prometheus::MetricType type,
                                const Labels& labels);

  std::vector<prometheus::MetricFamily> families_;
  std::map<std::string, size_t> by_name_;
};

prometheus::ClientMetric* MetricFamilies::Add(absl::string_view name,
                                              absl::string_view help,
                                              prometheus::MetricType type,
                                              const Labels& labels) {
  const std::string full = absl::StrCat("coxswain_", name);
  const auto [entry, added] = by_name_.emplace(full, families_.size());
  if (added) {
    prometheus::MetricFamily family;
    family.name = full;
    family.help = std::string(help);
    family.type = type;
    families_.push_back(std::move(family));
  }
  auto& metrics = families_[entry->second].metric;
  prometheus::ClientMetric& metric = metrics.emplace_back();
  for (const auto& [label, value] : labels) {
    metric.label.push_back({label, value});
  }
  return &metric;
}

void MetricFamilies::Gauge(absl::string_view name, absl::string_view help,
                           double value, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels)->gauge.value = value;
}

void MetricFamilies::Counter(absl::string_view name, absl::string_view help,
                             double value, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels)->counter.value =
      value;
}

void MetricFamilies::Durations(absl::string_view name, absl::string_view help,
                               const Histogram& histogram,
                               const Labels& labels) {
  auto& target =
      Add(name, help, prometheus::MetricType::Histogram, labels)->histogram;
  target.sample_count = histogram.count();
  target.sample_sum = histogram.sum();
  for (size_t i = 0; i < Histogram::kBounds.size(); ++i) {
    target.bucket.push_back({histogram.Cumulative(i), Histogram::kBounds[i]});
  }
  target.bucket.push_back(
      {histogram.count(), std::numeric_limits<double>::infinity()});
}

std::string MetricFamilies::Text() const {
  return prometheus::TextSerializer().Serialize(families_);
}

double Number(int64_t value) { return static_cast<double>(value); }

void AddCoordinator(const CoordinatorView& view, MetricFamilies* out) {
  const absl::Time now = view.clock->Now();
  out->Gauge("coordinator_term",
             "The term of this coordinator: grows by one with each start.",
             Number(view.membership->term().value()));
  out->Gauge("coordinator_uptime_seconds",
             "How long this coordinator has been serving.",
             absl::ToDoubleSeconds(now - view.started));
  out->Gauge("coordinator_tick_age_seconds",
             "How long ago the coordinator looked at its deadlines.",
             absl::ToDoubleSeconds(now - view.last_tick()));
  const Telemetry::Generations generations = view.telemetry->generations();
  out->Counter("generations_begun_total", "Generations that began.",
               Number(generations.begun));
  // All of them from the beginning, so that a first one is seen as a rise.
  std::map<std::string, int64_t> ended = {
      {"left", 0}, {"member", 0}, {"other", 0}, {"schedule", 0}};
  for (const auto& [reason, count] : generations.ended) ended[reason] = count;
  for (const auto& [reason, count] : ended) {
    out->Counter("generations_ended_total",
                 "Generations that ended: all members left (left), one was "
                 "lost or failed (member), or ranks did not do the same "
                 "(schedule).",
                 Number(count), {{"reason", reason}});
  }
  out->Gauge("telemetry_records", "Timings of steps that are kept.",
             Number(view.telemetry->records()));
  out->Gauge("state_quarantined_records",
             "Records of the state that could not be read, and are in "
             "quarantine since this start or an earlier one.",
             static_cast<double>(view.quarantined.size()));
  out->Gauge("parameter_bytes",
             "Bytes that the parameter service holds for jobs.",
             Number(view.parameters->bytes()));
  out->Durations("checkpoint_duration_seconds",
                 "From a checkpoint's begin to its commit.",
                 view.checkpoints->Durations());
}

void AddRpc(const RpcMetrics& rpc, MetricFamilies* out) {
  const RpcMetrics::Snapshot counted = rpc.Read();
  for (const auto& [kind, count] : counted.messages) {
    out->Counter("attach_messages_total",
                 "Messages of workers: heartbeats, tickets, votes and others.",
                 Number(count), {{"kind", kind}});
  }
  for (const auto& [name, method] : counted.methods) {
    for (const auto& [code, count] : method.codes) {
      out->Counter("rpc_handled_total", "Calls that ended, by their status.",
                   Number(count), {{"method", name}, {"code", code}});
    }
  }
  for (const auto& [name, method] : counted.methods) {
    if (method.duration.count() == 0) continue;
    out->Durations("rpc_duration_seconds",
                   "How long calls took that are no streams; Join, Barrier, "
                   "Get and Wait wait for others.",
                   method.duration, {{"method", name}});
  }
}

void AddMembers(const JobSummary& job, MetricFamilies* out) {
  const std::vector<std::pair<const char*, int>> states = {
      {"joined", job.joined},
      {"attached", job.attached},
      {"detached", job.detached},
      {"left", job.left},
      {"lost", job.lost}};
  for (const auto& [state, count] : states) {
    out->Gauge("job_members", "Members of the last generation, by state.",
               count, {{"job", job.job}, {"state", state}});
  }
}

void AddJob(const JobSummary& job, const CoordinatorView& view,
            MetricFamilies* out) {
  const MetricFamilies::Labels labels = {{"job", job.job}};
  AddMembers(job, out);
  out->Gauge("job_waiting_workers",
             "Workers that wait for the next generation, spares among them.",
             job.waiting, labels);
  out->Gauge("job_world_size", "Workers that the job may have at most.",
             job.world_size, labels);
  out->Gauge("job_min_world_size", "Workers that the job needs.",
             job.min_world_size, labels);
  out->Gauge("job_generation", "The last generation's number.",
             Number(job.generation.value()), labels);
  out->Gauge("job_plan_version", "The version of the plan in force.",
             Number(job.plan_version), labels);
  out->Gauge("job_step", "The highest optimizer step that a member reported.",
             Number(job.step), labels);
  if (job.idle.has_value()) {
    out->Gauge("job_idle_seconds",
               "Since one of the attached members got on last.",
               absl::ToDoubleSeconds(*job.idle), labels);
  }
  const auto steps =
      SummariseSteps(view.telemetry->Matrix(job.job, kStragglerSteps));
  out->Gauge("job_stragglers",
             absl::StrCat("Ranks that were stragglers of half of the last ",
                          kStragglerSteps, " steps."),
             static_cast<double>(PersistentStragglers(steps).size()), labels);
}

void AddCheckpoints(const std::string& job, const CoordinatorView& view,
                    MetricFamilies* out) {
  const MetricFamilies::Labels labels = {{"job", job}};
  // Open ones come first: there are few of them.
  const CheckpointOverview overview = view.checkpoints->Overview(job, 64);
  out->Gauge("checkpoints", "Complete checkpoints of the job.",
             static_cast<double>(overview.complete), labels);
  for (const CheckpointSummary& newest : overview.newest) {
    if (!newest.complete) continue;
    out->Gauge("checkpoint_newest_step", "The newest checkpoint's step.",
               Number(newest.step), labels);
    out->Gauge("checkpoint_newest_bytes", "The newest checkpoint's size.",
               Number(newest.bytes), labels);
    out->Gauge("checkpoint_newest_age_seconds",
               "How long ago the newest checkpoint was made.",
               absl::ToDoubleSeconds(view.clock->WallTime() - newest.created),
               labels);
    break;
  }
}

void AddTraffic(const JobTelemetry& job, MetricFamilies* out) {
  for (const auto& [hook, traffic] : job.hooks) {
    const MetricFamilies::Labels labels = {{"job", job.job}, {"hook", hook}};
    out->Counter("job_gradient_bytes_total",
                 "Bytes of the gradients that ranks averaged, by hook.",
                 Number(traffic.gradient_bytes), labels);
    out->Counter("job_payload_bytes_total",
                 "Bytes that ranks handed to collectives, by hook.",
                 Number(traffic.payload_bytes), labels);
    out->Counter("job_wire_bytes_total",
                 "Bytes that left the processes of ranks, by hook.",
                 Number(traffic.wire_bytes), labels);
    if (traffic.gradient_bytes > 0 && traffic.payload_bytes > 0) {
      out->Gauge("job_compression_ratio",
                 "Gradient bytes over payload bytes, by hook.",
                 Number(traffic.gradient_bytes) / Number(traffic.payload_bytes),
                 labels);
    }
    if (traffic.wire_bytes <= 0) continue;
    out->Gauge(
        "job_payload_wire_ratio", "Payload bytes over wire bytes, by hook.",
        Number(traffic.payload_bytes) / Number(traffic.wire_bytes), labels);
  }
}

void AddSteps(const JobTelemetry& job, MetricFamilies* out) {
  const MetricFamilies::Labels labels = {{"job", job.job}};
  out->Counter("job_steps_total", "Optimizer steps that the job made.",
               Number(job.steps), labels);
  out->Counter("job_timings_refused_total",
               "Timings of steps that made no sense.", Number(job.refused),
               labels);
  out->Durations("job_step_duration_seconds",
                 "How long ranks took for a step, each counted by itself.",
                 job.duration, labels);
  out->Durations("job_step_compute_seconds", "Of a step, what a rank computed.",
                 job.compute, labels);
  out->Durations("job_step_wait_seconds",
                 "Of a step, what a rank waited for peers or a decision.",
                 job.wait, labels);
  out->Durations("job_step_exchange_seconds",
                 "Of a step, what collectives took that nothing hid.",
                 job.exchange, labels);
}

void AddJobs(const CoordinatorView& view, MetricFamilies* out) {
  std::map<std::string, int> states = {
      {"ended", 0}, {"forming", 0}, {"running", 0}};
  const std::vector<JobTelemetry> followed = view.telemetry->AllTotals();
  std::set<std::string> alive;
  for (const JobTelemetry& job : followed) alive.insert(job.job);
  for (const JobSummary& job : view.membership->Summaries()) {
    ++states[std::string(ToString(job.state))];
    // A job that ended long ago is counted, and no more.
    if (job.state == JobState::kEnded && alive.count(job.job) == 0) continue;
    AddJob(job, view, out);
    AddCheckpoints(job.job, view, out);
  }
  for (const auto& [state, count] : states) {
    out->Gauge("jobs", "Jobs that the coordinator knows, by state.", count,
               {{"state", state}});
  }
  for (const JobTelemetry& job : followed) {
    AddTraffic(job, out);
    AddSteps(job, out);
  }
}

}  // namespace

std::string MetricsText(const CoordinatorView* view) {
  MetricFamilies out;
  out.Gauge("build_info", "Always 1; its labels say what runs.", 1,
            {{"version", kVersion}});
  out.Gauge("coordinator_leads",
            "1: this coordinator serves; 0: it stands by for another one.",
            view != nullptr && view->leads() ? 1 : 0);
  if (view != nullptr) {
    AddCoordinator(*view, &out);
    if (view->rpc != nullptr) AddRpc(*view->rpc, &out);
    AddJobs(*view, &out);
  }
  return out.Text();
}

}  // namespace coxswain::server
