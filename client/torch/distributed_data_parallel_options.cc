#include "client/torch/distributed_data_parallel_options.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "client/group/mesh_groups.h"
#include "client/reduce/planned_step.h"
#include "client/schedule/schedule_client.h"
#include "client/session/session.h"
#include "client/torch/ddp_internal.h"
#include "client/torch/distributed_data_parallel.h"
#include "schedule/memory/zero_limits.h"
#include "schedule/ticket.h"

namespace coxswain::torch {
namespace {

absl::Status NotTogether(absl::string_view one, absl::string_view other,
                         absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      one, " does not go with ", other, ": ", why, "; leave one of them out"));
}

absl::Status CheckOverlap(const DistributedDataParallelOptions& options,
                          const schedule::Plan& plan, const Hook& hook,
                          const Averager* averager) {
  if (!options.overlapped_optimizer) return absl::OkStatus();
  const auto refuse = [](absl::string_view what, absl::string_view why) {
    return NotTogether("overlapped_optimizer", what,
                       absl::StrCat("it steps before ", why));
  };
  if (options.reducer.max_norm > 0) {
    return refuse("max_norm", "the norm of all gradients is known");
  }
  if (options.reducer.find_unused_parameters) {
    return refuse("find_unused_parameters",
                  "it is known which parameters no rank used");
  }
  if (averager != nullptr || hook.needs_averager()) {
    return refuse("an averager", "AfterOptimizerStep is called with the step");
  }
  if (plan.terms.sync_each_batch) {
    return refuse("sync_each_batch", "the window's last micro-batch is in");
  }
  if (plan.terms.commit_vote) {
    return refuse("commit_vote", "the ranks have voted");
  }
  if (options.skip_non_finite) {
    return refuse("skip_non_finite", "all averages have been looked at");
  }
  if (options.commit_with_optimizer) {
    return refuse("commit_with_optimizer", "the program steps the optimizer");
  }
  return absl::OkStatus();
}

absl::Status CheckZero(const DistributedDataParallelOptions& options,
                       const Hook& hook, const Averager* averager) {
  if (options.zero == 0) {
    if (options.offload) {
      return absl::InvalidArgumentError(
          "offload keeps what zero leaves a rank of the optimizer's state in "
          "the host's memory, and zero=0 shards none; set zero to 1, or leave "
          "it out");
    }
    if (options.reducer.hybrid.shard == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "reducer.hybrid says which ranks share the state that zero shards, and "
        "zero=0 shards none; set zero to 1 or 2, or leave it out");
  }
  COXSWAIN_RETURN_IF_ERROR(memory::CheckZeroStage(options.zero));
  if (averager != nullptr || hook.reach() != GradientReach::kAll) {
    return absl::InvalidArgumentError(absl::StrCat(
        "zero=", options.zero, " does not go with the hook ", hook.spec(),
        ": the ranks' parameters diverge, and each rank would step a slice of "
        "them for the others; take a hook that averages gradients, or zero=0"));
  }
  if (!options.overlapped_optimizer) return absl::OkStatus();
  return NotTogether("overlapped_optimizer", "zero",
                     "its optimizers are of whole parameters");
}

absl::string_view OnOff(bool value) { return value ? "true" : "false"; }

// Returns what the program asks for, whatever it follows.
schedule::Plan AskedFor(const DistributedDataParallelOptions& options) {
  schedule::Plan plan;
  plan.accumulation_steps = options.accumulation_steps;
  plan.terms = options.terms;
  if (options.reducer.uneven_inputs &&
      plan.terms.uneven_data == schedule::UnevenData::kRefuse) {
    plan.terms.uneven_data = options.reducer.end_at_first
                                 ? schedule::UnevenData::kEndAtFirst
                                 : schedule::UnevenData::kWaitForAll;
  }
  return plan;
}

// By the names of a plan's settings.
std::map<std::string, std::string> SettingsOf(const schedule::Plan& plan) {
  std::map<std::string, std::string> settings = plan.terms.ToMap();
  settings["accumulation"] = absl::StrCat(plan.accumulation_steps);
  return settings;
}

bool Same(const HybridGroups& a, const HybridGroups& b) {
  return a.shard == b.shard && a.replicas == b.replicas;
}

// Hybrid sharding where the job's mesh has replicas and ranks that share the
// state of each: the slices are then those of the shard group. Otherwise all
// ranks share it, or those of groups of the program's own.
absl::Status FollowMesh(Session& session,
                        DistributedDataParallelOptions* options) {
  const Mesh& mesh = session.mesh();
  const int shards = mesh.extent("shard");
  // Ranks and mesh may be others than those of an earlier generation.
  options->reducer.counts_in_norm.reset();
  options->rank_name.clear();
  if (mesh.extent("pp") > 1 || mesh.extent("tp") > 1) {
    // Of those with the same part of the model the first one counts.
    const MeshAxes data = mesh.AxesOf({"dp", "shard"});
    options->reducer.counts_in_norm =
        mesh.GroupOf(session.rank(), data)[0] == session.rank();
    options->rank_name = absl::StrCat(
        "rank ", session.rank(), InParentheses(mesh.Describe(session.rank())));
  }
  HybridGroups& hybrid = options->reducer.hybrid;
  // Those of an earlier generation have ended with it.
  if (Same(hybrid, options->session_groups)) hybrid = HybridGroups();
  options->session_groups = HybridGroups();
  options->held_groups.clear();
  if (options->zero == 0) {
    if (shards > 1 && session.rank() == 0) {
      LogWarning("mesh_shards_nothing",
                 {{"job", session.job()},
                  {"mesh", mesh.ToString()},
                  {"effect",
                   "with zero=0 each rank keeps the whole optimizer's state; "
                   "set zero to 1 or 2 to share it along shard"}});
    }
    return absl::OkStatus();
  }
  if (shards == 1 || mesh.extent("dp") == 1) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const MeshGroups groups, session.GroupsOf(mesh));
  const HybridGroups of_mesh = {&groups.shard->communicator(),
                                &groups.dp->communicator()};
  if (!Same(hybrid, HybridGroups()) && !Same(hybrid, of_mesh)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reducer.hybrid has groups of the program's own, and the job's mesh ",
        mesh.ToString(),
        " has others: leave reducer.hybrid out, which follows the mesh, or "
        "leave shard out of the mesh"));
  }
  hybrid = options->session_groups = of_mesh;
  options->held_groups = {groups.shard, groups.dp};
  return absl::OkStatus();
}

}  // namespace

schedule::Plan PlanOf(const DistributedDataParallelOptions& options) {
  return options.plan ? *options.plan : AskedFor(options);
}

absl::Status CheckAskedFor(const DistributedDataParallelOptions& options) {
  if (!options.plan) return absl::OkStatus();
  const auto defaults = SettingsOf(schedule::Plan());
  const auto planned = SettingsOf(*options.plan);
  std::vector<std::string> contradictions;
  for (const auto& [name, asked] : SettingsOf(AskedFor(options))) {
    if (asked == defaults.at(name) || asked == planned.at(name)) continue;
    if (options.changed_by_operator.count(name) > 0) continue;
    contradictions.push_back(absl::StrCat(name, "=", asked, " against ", name,
                                          "=", planned.at(name)));
  }
  if (contradictions.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the options ask for another schedule than version ",
      options.plan->version, " of the plan that they follow, which counts: ",
      absl::StrJoin(contradictions, ", "),
      "; give DescribeJob the same options, which puts them into the plan, or "
      "leave them out"));
}

absl::Status CheckRunsPipeline(const DistributedDataParallelOptions& options,
                               const schedule::Plan& plan) {
  if (plan.terms.pipeline.empty() || options.runs_pipeline) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the plan has pipeline=", plan.terms.pipeline,
      ", and this program trains the whole model on each rank: ranks that "
      "differ along pp and tp alone have one data index, so they would train "
      "on the same data and count as several. Train with a Pipeline "
      "(client/torch/pipeline), or leave pipeline out of the plan, and pp and "
      "tp out of the mesh; a program that runs the stages itself sets "
      "runs_pipeline"));
}

absl::Status CheckPlan(const DistributedDataParallelOptions& options,
                       const schedule::Plan& plan, int world_size,
                       const Hook& hook, const Averager* averager) {
  COXSWAIN_RETURN_IF_ERROR(CheckRunsPipeline(options, plan));
  if (options.reducer.on_average) {
    return absl::InvalidArgumentError(
        "ReducerOptions::on_average is for the wrapper itself; to step while "
        "buckets still travel, set overlapped_optimizer");
  }
  if (options.reducer.slices || options.reducer.release_buckets) {
    return absl::InvalidArgumentError(
        "ReducerOptions::slices and release_buckets are for the wrapper "
        "itself; to shard the optimizer's state, set zero to 1, and to shard "
        "the gradients, too, to 2");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckZero(options, hook, averager));
  COXSWAIN_RETURN_IF_ERROR(CheckAveragerFits(plan, world_size, hook, averager));
  COXSWAIN_RETURN_IF_ERROR(CheckOverlap(options, plan, hook, averager));
  return CheckTermsFit(plan, options.reducer, options.skip_non_finite, hook,
                       averager);
}

absl::Status CheckPlannedHook(const DistributedDataParallelOptions& options,
                              const Hook& hook) {
  if (!options.plan || !options.make_hook) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Hook> planned,
                            options.make_hook(*options.plan));
  if (planned->spec() == hook.spec()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the hook is ", hook.spec(), ", and version ", options.plan->version,
      " of the plan, by make_hook, is ", planned->spec(),
      ": make the hook from the plan, as by MakePlannedHook(*options.plan)"));
}

std::map<std::string, std::string> AgreedSettings(
    const DistributedDataParallelOptions& options) {
  std::map<std::string, std::string> settings;
  const auto set = [&](absl::string_view name, bool value) {
    settings[std::string(name)] = std::string(OnOff(value));
  };
  const schedule::Plan plan = PlanOf(options);
  settings["accumulation_steps"] = absl::StrCat(plan.accumulation_steps);
  settings["schedule"] = absl::StrJoin(plan.terms.Changed(), ",");
  set("skip_non_finite", options.skip_non_finite);
  set("static_graph", options.static_graph);
  set("broadcast_buffers", options.broadcast_buffers);
  set("overlapped_optimizer", options.overlapped_optimizer != nullptr);
  // Said only where it is so: workers of before do not know it.
  if (options.zero > 0) settings["zero"] = absl::StrCat(options.zero);
  return settings;
}

absl::StatusOr<JobManifest> DescribeJob(
    const ::torch::nn::Module& module, const std::string& hook_spec,
    const DistributedDataParallelOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(CheckRunsPipeline(options, PlanOf(options)));
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> parameters,
                            DescribeParameters(module));
  return DescribeJob(std::move(parameters), hook_spec, options);
}

JobManifest DescribeJob(std::vector<ParameterSpec> parameters,
                        const std::string& hook_spec,
                        const DistributedDataParallelOptions& options) {
  JobManifest manifest;
  manifest.hook = hook_spec;
  const schedule::Plan plan = PlanOf(options);
  manifest.accumulation_steps = plan.accumulation_steps;
  manifest.terms = plan.terms;
  manifest.parameters = std::move(parameters);
  manifest.settings = ReducerSettings(options.reducer);
  for (const auto& [name, value] : AgreedSettings(options)) {
    // Of these the manifest has fields.
    if (name == "accumulation_steps" || name == "schedule") continue;
    manifest.settings[name] = value;
  }
  return manifest;
}

absl::Status FollowSession(Session& session,
                           DistributedDataParallelOptions* options) {
  COXSWAIN_ASSIGN_OR_RETURN(options->reducer.gate,
                            session.schedule().Gate(schedule::kTrainStream));
  options->plan = session.schedule().plan();
  COXSWAIN_RETURN_IF_ERROR(CheckRunsPipeline(*options, *options->plan));
  options->changed_by_operator = session.ChangedByOperator(*options->plan);
  options->on_micro_batch = [&session] { session.schedule().NoteMicroBatch(); };
  return FollowMesh(session, options);
}

}  // namespace coxswain::torch
