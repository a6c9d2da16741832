#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "hooks/registry/registry.h"
#include "schedule/memory/configuration.h"
#include "schedule/memory/model.h"
#include "schedule/memory/rank_memory.h"
#include "server/describe/json.h"

namespace coxswain {
namespace {

using memory::Configuration;
using memory::Estimate;
using memory::RankMemory;

absl::StatusOr<std::string> ReadModel(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(memory::kMaxModelText) + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.gcount() == 0 && !file.eof())) {
    return absl::NotFoundError(
        absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// Returns what a hook remembers of each element (docs/hooks.md, "memory"); of a
// low-rank one without its factors, which are small beside.
absl::StatusOr<double> HookBytes(const std::string& spec, int ranks) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string hook, CanonicalSpec(spec));
  COXSWAIN_ASSIGN_OR_RETURN(const auto averager, MakeAverager(hook));
  if (averager != nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("what ", hook,
                     " keeps of the parameters is not counted here: see its "
                     "\"memory\" in docs/hooks.md, and leave --hook out"));
  }
  if (absl::StrContains(hook, "error_feedback=false")) return 0;
  if (absl::StrContains(hook, "int8")) return 8 + 8.0 / ranks;
  const bool is_low_rank =
      absl::StrContains(hook, "powersgd") || absl::StrContains(hook, "acp_sgd");
  return is_low_rank ? 8 : 0;
}

absl::StatusOr<Configuration> ConfigurationOf(
    const PlanMemoryOptions& options) {
  Configuration configuration;
  if (!options.mesh.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(configuration.mesh, Mesh::Parse(options.mesh));
  }
  configuration.zero = options.zero;
  configuration.force_zero = options.force_zero;
  configuration.offload = options.offload;
  configuration.accumulation = options.accumulation;
  configuration.pipeline = options.pipeline;
  configuration.stages = options.stages;
  configuration.sequence = options.sequence;
  configuration.optimizer = options.optimizer;
  configuration.sync_each_batch = options.sync_each_batch;
  configuration.gradient_as_bucket_view = options.gradient_as_bucket_view;
  configuration.bucket_bytes = int64_t{options.bucket_mib} << 20;
  const int replicas =
      configuration.mesh.extent("dp") * configuration.mesh.extent("shard");
  COXSWAIN_ASSIGN_OR_RETURN(
      configuration.hook_bytes,
      HookBytes(options.hook, replicas > 0 ? replicas : 1));
  return configuration;
}

bool HasTensorRanks(const Estimate& estimate) {
  const RankMemory& last = estimate.by_pp.back();
  return last.tp + last.tp_ranks > 1;
}

// Of neighbours that are alike, "0-3".
std::string TensorText(const RankMemory& rank) {
  return rank.tp_ranks == 1
             ? absl::StrCat(rank.tp)
             : absl::StrCat(rank.tp, "-", rank.tp + rank.tp_ranks - 1);
}

std::string RanksText(const Estimate& estimate) {
  std::string text =
      absl::StrCat(estimate.ranks, estimate.ranks == 1 ? " rank" : " ranks");
  if (!estimate.pipeline.empty()) {
    absl::StrAppend(&text, ", ", estimate.pipeline, ", ",
                    estimate.ranks_of_each, " of each pp",
                    HasTensorRanks(estimate) ? " and tp" : "");
  }
  if (estimate.sharers > 1) {
    absl::StrAppend(&text, ", ", estimate.sharers, " share a state");
  }
  return text;
}

// Leaves out columns in which no rank has anything.
void DropEmptyColumns(std::vector<TableRow>* rows) {
  const std::string nothing = SizeText(0);
  for (size_t column = rows->front().size(); column-- > 0;) {
    bool empty = true;
    for (size_t i = 1; i < rows->size(); ++i) {
      empty = empty && (*rows)[i][column] == nothing;
    }
    if (!empty) continue;
    for (TableRow& row : *rows) {
      row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
    }
  }
}

std::string Text(const Estimate& estimate) {
  std::vector<TableRow> rows = {{"PP", "STAGES", "LAYERS", "PARAMETERS",
                                 "GRADIENTS", "BUCKETS", "OPTIMIZER", "HOOK",
                                 "ACTIVATIONS", "MESSAGES", "WORKING", "TOTAL",
                                 "HOST", "MOST IN"}};
  for (const RankMemory& rank : estimate.by_pp) {
    rows.push_back({absl::StrCat(rank.pp), rank.stages, rank.layers,
                    SizeText(rank.parameters), SizeText(rank.gradients),
                    SizeText(rank.buckets), SizeText(rank.optimizer),
                    SizeText(rank.hook), SizeText(rank.activations),
                    SizeText(rank.messages), SizeText(rank.working),
                    SizeText(rank.total()), SizeText(rank.host),
                    rank.in_step ? "step" : "passes"});
  }
  DropEmptyColumns(&rows);
  for (size_t i = 0; HasTensorRanks(estimate) && i < rows.size(); ++i) {
    rows[i].insert(rows[i].begin() + 1,
                   i == 0 ? "TP" : TensorText(estimate.by_pp[i - 1]));
  }
  const RankMemory& largest =
      estimate.by_pp[static_cast<size_t>(estimate.largest)];
  int64_t all = 0;
  for (const RankMemory& rank : estimate.by_pp) {
    all += rank.total() * estimate.ranks_of_each * rank.tp_ranks;
  }
  return absl::StrCat(
      RanksText(estimate), "\n\n", AlignTable(rows), "\nthe largest  pp ",
      largest.pp,
      HasTensorRanks(estimate) ? absl::StrCat(", tp ", TensorText(largest))
                               : "",
      ", ", SizeText(largest.total()), "\nall ranks    ", SizeText(all), "\n");
}

std::string JsonText(const Estimate& estimate) {
  server::Json ranks = server::Json::array();
  for (const RankMemory& rank : estimate.by_pp) {
    ranks.push_back({{"pp", rank.pp},
                     {"tp", rank.tp},
                     {"tp_ranks", rank.tp_ranks},
                     {"stages", rank.stages},
                     {"layers", rank.layers},
                     {"elements", rank.elements},
                     {"parameters", rank.parameters},
                     {"gradients", rank.gradients},
                     {"buckets", rank.buckets},
                     {"optimizer", rank.optimizer},
                     {"hook", rank.hook},
                     {"activations", rank.activations},
                     {"messages", rank.messages},
                     {"working", rank.working},
                     {"total", rank.total()},
                     {"host", rank.host},
                     {"most_in", rank.in_step ? "step" : "passes"}});
  }
  const RankMemory& largest =
      estimate.by_pp[static_cast<size_t>(estimate.largest)];
  server::Json json = {{"ranks", estimate.ranks},
                       {"ranks_of_each", estimate.ranks_of_each},
                       {"sharers", estimate.sharers},
                       {"pipeline", estimate.pipeline},
                       {"largest_pp", largest.pp},
                       {"largest_tp", largest.tp},
                       {"by_pp", ranks}};
  return server::DumpLines(json);
}

}  // namespace

absl::StatusOr<std::string> DescribeMemory(const PlanMemoryOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string text, ReadModel(options.model));
  const auto model = memory::ParseModel(text);
  if (!model.ok()) {
    return WithPrefix(absl::StrCat(options.model, ": "), model.status());
  }
  COXSWAIN_ASSIGN_OR_RETURN(const Configuration configuration,
                            ConfigurationOf(options));
  COXSWAIN_ASSIGN_OR_RETURN(const Estimate estimate,
                            memory::EstimateMemory(*model, configuration));
  return options.json ? JsonText(estimate) : Text(estimate);
}

}  // namespace coxswain
