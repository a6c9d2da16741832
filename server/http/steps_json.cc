// Rank by time: how each rank spent the last steps of a job.

#include <algorithm>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "server/components/components.h"
#include "server/http/api_json.h"
#include "server/telemetry/stragglers.h"

namespace coxswain::server {
namespace {

constexpr int kDefaultSteps = 64;
constexpr int kDefaultRanks = 64;
constexpr int kMaxRanks = 1024;
constexpr int64_t kMaxCells = 65'536;
constexpr size_t kMaxListed = 64;
constexpr size_t kMaxStepStragglers = 64;

struct Page {
  int last = kDefaultSteps;
  int first_rank = 0;
  int ranks = kDefaultRanks;
  bool slowest_first = false;
  std::vector<int> list;  // not empty: these ranks
};

absl::Status ReadList(const std::string& text, std::vector<int>* list) {
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    int rank = 0;
    if (!absl::SimpleAtoi(word, &rank) || rank < 0 ||
        list->size() >= kMaxListed) {
      return absl::InvalidArgumentError(
          absl::StrCat("'rank_list' must be up to ", kMaxListed,
                       " ranks with commas between, not '", text, "'"));
    }
    list->push_back(rank);
  }
  return absl::OkStatus();
}

absl::StatusOr<Page> ReadPage(const Query& query, int capacity) {
  Page page;
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t last,
      NumberOf(query, "last", std::min(kDefaultSteps, capacity), 1, capacity));
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t first,
      NumberOf(query, "first_rank", 0, 0, std::numeric_limits<int>::max()));
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t ranks,
      NumberOf(query, "ranks", kDefaultRanks, 1, kMaxRanks));
  if (last * ranks > kMaxCells) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'last' times 'ranks' is ", last * ranks, ", and at most ", kMaxCells));
  }
  page.last = static_cast<int>(last);
  page.first_rank = static_cast<int>(first);
  page.ranks = static_cast<int>(ranks);
  const auto order = query.find("order");
  if (order != query.end()) {
    page.slowest_first = order->second == "slowest";
    if (!page.slowest_first && order->second != "rank") {
      return absl::InvalidArgumentError(absl::StrCat(
          "'order' must be rank or slowest, not '", order->second, "'"));
    }
  }
  const auto list = query.find("rank_list");
  if (list != query.end()) {
    COXSWAIN_RETURN_IF_ERROR(ReadList(list->second, &page.list));
  }
  return page;
}

Json SummaryJson(StepSummary summary) {
  if (summary.stragglers.size() > kMaxStepStragglers) {
    summary.stragglers.resize(kMaxStepStragglers);
  }
  return {{"step", summary.step},
          {"reported", summary.reported},
          {"compute_median_seconds", summary.compute_median},
          {"compute_max_seconds", summary.compute_max},
          {"slowest_rank", summary.slowest_rank},
          {"duration_max_seconds", summary.duration_max},
          {"stragglers", summary.stragglers}};
}

// How often each rank was a straggler, and how long it computed.
struct Slowness {
  std::vector<int> times;
  std::vector<double> computed;
};

Slowness MeasureSlowness(const StepMatrix& matrix,
                         const std::vector<StepSummary>& steps, size_t ranks) {
  Slowness slowness;
  slowness.times.resize(ranks, 0);
  slowness.computed.resize(ranks, 0);
  for (const StepSummary& step : steps) {
    for (const int rank : step.stragglers) {
      if (static_cast<size_t>(rank) < ranks) ++slowness.times[rank];
    }
  }
  for (size_t rank = 0; rank < std::min(ranks, matrix.ranks); ++rank) {
    for (size_t i = 0; i < matrix.steps; ++i) {
      slowness.computed[rank] +=
          std::max(matrix.compute[rank * matrix.steps + i], 0.0F);
    }
  }
  return slowness;
}

// Returns the ranks of a page, in its order.
std::vector<int> Choose(const Page& page, const Slowness& slowness) {
  const int world = static_cast<int>(slowness.times.size());
  std::vector<int> chosen;
  if (!page.list.empty()) {
    for (const int rank : page.list) {
      if (rank < world) chosen.push_back(rank);
    }
    return chosen;
  }
  chosen.resize(static_cast<size_t>(world));
  std::iota(chosen.begin(), chosen.end(), 0);
  if (page.slowest_first) {
    std::sort(chosen.begin(), chosen.end(), [&](int a, int b) {
      if (slowness.times[a] != slowness.times[b]) {
        return slowness.times[a] > slowness.times[b];
      }
      if (slowness.computed[a] != slowness.computed[b]) {
        return slowness.computed[a] > slowness.computed[b];
      }
      return a < b;
    });
  }
  const int first = std::min(page.first_rank, world);
  const int end = first + std::min(page.ranks, world - first);
  return {chosen.begin() + first, chosen.begin() + end};
}

// One entry for each step that is shown; null where the rank did not report.
Json RowJson(const Member& member, int straggler_steps,
             const std::vector<StepTiming>& timings,
             const std::vector<StepSummary>& steps) {
  Json compute = Json::array(), wait = Json::array(), exchange = Json::array();
  Json payload = Json::array(), wire = Json::array();
  auto timing = timings.begin();
  for (const StepSummary& step : steps) {
    while (timing != timings.end() && timing->step < step.step) ++timing;
    const bool known = timing != timings.end() && timing->step == step.step;
    compute.push_back(known ? Json(timing->compute) : Json());
    wait.push_back(known ? Json(timing->wait) : Json());
    exchange.push_back(known ? Json(timing->exchange) : Json());
    payload.push_back(known ? Json(timing->payload_bytes) : Json());
    wire.push_back(known ? Json(timing->wire_bytes) : Json());
  }
  return {{"rank", member.rank},
          {"host", member.host},
          {"node", member.identity.node},
          {"slot", member.identity.slot},
          {"straggler_steps", straggler_steps},
          {"compute_seconds", std::move(compute)},
          {"wait_seconds", std::move(wait)},
          {"exchange_seconds", std::move(exchange)},
          {"payload_bytes", std::move(payload)},
          {"wire_bytes", std::move(wire)}};
}

}  // namespace

absl::StatusOr<Json> StepsJson(const CoordinatorView& view,
                               const std::string& name, const Query& query) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto found, view.membership->Describe(name));
  const JobDescription& job = found.front();
  const int capacity = view.telemetry->limits().steps_per_rank;
  COXSWAIN_ASSIGN_OR_RETURN(const Page page, ReadPage(query, capacity));
  const auto members = view.membership->MembersOf(name, job.generation);
  const size_t world = members.ok() ? members->size() : 0;
  const StepMatrix matrix = view.telemetry->Matrix(name, page.last);
  const std::vector<StepSummary> steps = SummariseSteps(matrix);
  const Slowness slowness = MeasureSlowness(matrix, steps, world);
  const std::vector<int> ranks = Choose(page, slowness);
  const auto timings = view.telemetry->Timings(name, ranks, matrix.first_step);
  Json summaries = Json::array();
  for (const StepSummary& step : steps) summaries.push_back(SummaryJson(step));
  Json rows = Json::array();
  for (size_t i = 0; i < ranks.size(); ++i) {
    rows.push_back(RowJson((*members)[static_cast<size_t>(ranks[i])].member,
                           slowness.times[static_cast<size_t>(ranks[i])],
                           timings[i], steps));
  }
  return Json{{"job", name},
              {"name", name},  // of an earlier version
              {"generation", job.generation.value()},
              {"world_size", world},
              {"order", page.slowest_first ? "slowest" : "rank"},
              {"rule", StragglerRule()},
              {"straggler_factor", kStragglerFactor},
              {"straggler_least_seconds", kStragglerSeconds},
              {"capacity", capacity},
              {"steps", std::move(summaries)},
              {"ranks", std::move(rows)}};
}

}  // namespace coxswain::server
