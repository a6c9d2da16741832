#include "client/torch/pipeline/rank_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mesh.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/communicator.h"
#include "client/comm/work.h"
#include "client/device/tensor.h"

namespace coxswain::torch {
namespace {

// As many ranks are named with what they have in common.
constexpr size_t kMostNamed = 4;

using Row = std::vector<double>;

// Returns each rank's, which all have as many elements.
absl::StatusOr<std::vector<Row>> Gather(ProcessGroup& group, Row own,
                                        absl::Duration timeout) {
  struct Memory {
    Row own;
    Row all;
  };
  const auto memory = std::make_shared<Memory>();
  memory->own = std::move(own);
  const size_t columns = memory->own.size();
  const auto ranks = static_cast<size_t>(group.size());
  memory->all.resize(ranks * columns);
  const auto span = [](Row& row) {
    return Span{
        row.data(), static_cast<int64_t>(row.size()), DType::kFloat64, {}};
  };
  COXSWAIN_RETURN_IF_ERROR(WaitHolding(
      group.communicator().AllGather(span(memory->own), span(memory->all)),
      memory, timeout));
  std::vector<Row> rows;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double* const row = memory->all.data() + rank * columns;
    rows.emplace_back(row, row + columns);
  }
  return rows;
}

// Returns a hash of numbers, the same for the same ones.
double HashOf(const std::vector<double>& numbers) {
  uint64_t hash = numbers.size();
  for (const double number : numbers) {
    // Zeros have two forms, and what is no number has many.
    const double one = std::isnan(number)
                           ? std::numeric_limits<double>::quiet_NaN()
                           : number + 0.0;
    hash = Mix64(hash) ^ absl::bit_cast<uint64_t>(one);
  }
  // As many bits as a double holds.
  return static_cast<double>(Mix64(hash) >> 11);
}

bool Same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

std::string NameOf(double kind, double micro_batches) {
  switch (static_cast<PipelineCall::Kind>(static_cast<int>(kind))) {
    case PipelineCall::Kind::kStep:
      return absl::StrCat("a step of ", micro_batches, " micro-batches");
    case PipelineCall::Kind::kStepWithoutData:
      return "a step without data";
    case PipelineCall::Kind::kEvaluation:
      return absl::StrCat("an evaluation of ", micro_batches, " micro-batches");
  }
  return "another call";
}

// Returns "rank 4 (pp 1, dp 0)".
std::string NameOfRank(const Mesh& mesh, int rank) {
  return absl::StrCat("rank ", rank, InParentheses(mesh.Describe(rank)));
}

// Returns what the ranks do, those with the same together: "... on rank 0
// (pp 0, dp 0), rank 4 (pp 1, dp 0)".
std::string WhoDoesWhat(const ProcessGroup& group, const Mesh& mesh,
                        const std::vector<std::string>& calls) {
  std::vector<std::string> parts;
  std::vector<bool> named(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    if (named[i]) continue;
    std::vector<std::string> those;
    size_t more = 0;
    for (size_t k = i; k < calls.size(); ++k) {
      if (calls[k] != calls[i]) continue;
      named[k] = true;
      if (those.size() == kMostNamed) {
        ++more;
      } else {
        those.push_back(NameOfRank(mesh, group.ranks()[k]));
      }
    }
    parts.push_back(
        absl::StrCat(calls[i], " on ", absl::StrJoin(those, ", "),
                     more > 0 ? absl::StrCat(" and ", more, " more") : ""));
  }
  return absl::StrJoin(parts, "; ");
}

// Of a row.
constexpr size_t kData = 2;

// Compares what the ranks of each stage have of the micro-batches.
absl::Status CompareData(const ProcessGroup& group, const Mesh& mesh,
                         const std::vector<Row>& rows) {
  std::map<int, size_t> first_of;  // by the coordinates along all other axes
  for (size_t i = 0; i < rows.size(); ++i) {
    const int stage = mesh.GroupIndexOf(group.ranks()[i], mesh.AxesOf({"tp"}));
    const size_t first = first_of.emplace(stage, i).first->second;
    if (rows[i][kData] == rows[first][kData]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        NameOfRank(mesh, group.ranks()[i]), " has other micro-batches than ",
        NameOfRank(mesh, group.ranks()[first]),
        ": ranks along tp compute the same ones together, so all of them read "
        "the data of their data_index()"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<double>> CompareCalls(
    ProcessGroup& group, const Mesh& mesh, const PipelineCall& own,
    const std::vector<int>& weighing, absl::Duration timeout) {
  Row row = {static_cast<double>(own.kind),
             static_cast<double>(own.micro_batches),
             static_cast<double>(own.data), HashOf(own.weights)};
  const auto hash = row.size() - 1;
  const auto head = static_cast<Row::difference_type>(row.size());
  row.insert(row.end(), own.weights.begin(), own.weights.end());
  row.resize(static_cast<size_t>(head) + own.expected);
  absl::StatusOr<std::vector<Row>> rows =
      Gather(group, std::move(row), timeout);
  COXSWAIN_RETURN_IF_ERROR(
      WithPrefix("comparing the ranks' micro-batches: ", rows.status()));
  std::vector<std::string> calls;
  bool equal = true;
  for (const Row& one : *rows) {
    calls.push_back(NameOf(one[0], one[1]));
    equal = equal && calls.back() == calls.front();
  }
  if (!equal) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the ranks of one data index are called to do different things: ",
        WhoDoesWhat(group, mesh, calls),
        "; they have the same micro-batches, so give each of them as many"));
  }
  COXSWAIN_RETURN_IF_ERROR(CompareData(group, mesh, *rows));
  const auto row_of = [&](int rank) -> const Row& {
    return (*rows)[static_cast<size_t>(rank)];
  };
  const Row& of = row_of(weighing[0]);
  for (size_t i = 1; i < weighing.size(); ++i) {
    const Row& other = row_of(weighing[i]);
    const auto [a, b] =
        std::mismatch(of.begin() + head, of.end(), other.begin() + head, Same);
    if (a == of.end() && of[hash] == other[hash]) continue;
    const auto name = [&](int at) {
      return NameOfRank(mesh, group.ranks()[static_cast<size_t>(at)]);
    };
    const auto at = a - (of.begin() + head);
    if (a == of.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the ranks along tp weigh micro-batches from ", at,
          " on differently: ", name(weighing[0]), " and ", name(weighing[i]),
          "; they have the same micro-batches"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "the ranks along tp weigh micro-batch ", at, " differently: ", *a,
        " on ", name(weighing[0]), ", ", *b, " on ", name(weighing[i]),
        "; they have the same micro-batches"));
  }
  return std::vector<double>(of.begin() + head, of.end());
}

}  // namespace coxswain::torch
