#include "schedule/schedule_errors.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/types.pb.h"
#include "transport/error_detail.h"

namespace coxswain::schedule {
namespace {

// A detail travels in trailing metadata, which receivers bound at 8 KiB.
constexpr size_t kMaxDetailBytes = 2048;
constexpr size_t kMaxDetailRanks = 256;
constexpr size_t kMaxDifferences = 20;
constexpr size_t kMaxRanges = 6;

struct Range {
  int first = 0;
  int last = 0;
};

std::vector<Range> RangesOf(const std::vector<int>& ranks) {
  std::vector<Range> ranges;
  for (int rank : ranks) {
    if (!ranges.empty() && ranges.back().last + 1 == rank) {
      ranges.back().last = rank;
    } else {
      ranges.push_back({rank, rank});
    }
  }
  return ranges;
}

// Two neighbours read better as a list: "0, 1", but "0-2".
std::string RangeText(const Range& range) {
  if (range.first == range.last) return absl::StrCat(range.first);
  const char* joint = range.first + 1 == range.last ? ", " : "-";
  return absl::StrCat(range.first, joint, range.last);
}

}  // namespace

std::string RankList(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  std::string text = "ranks ";
  size_t named = 0;
  const std::vector<Range> ranges = RangesOf(ranks);
  for (size_t i = 0; i < std::min(ranges.size(), kMaxRanges); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", RangeText(ranges[i]));
    named += static_cast<size_t>(ranges[i].last - ranges[i].first + 1);
  }
  if (named < ranks.size()) {
    absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  }
  return text;
}

std::string Rounded(absl::Duration duration) {
  if (duration < absl::Seconds(1)) {
    duration = absl::Floor(duration, absl::Milliseconds(1));
  } else if (duration < absl::Minutes(1)) {
    duration = absl::Floor(duration, absl::Milliseconds(100));
  } else {
    duration = absl::Floor(duration, absl::Seconds(1));
  }
  return absl::FormatDuration(duration);
}

absl::Status ScheduleMismatchError(absl::string_view message,
                                   const ScheduleMismatch& mismatch) {
  v1::ErrorDetail detail;
  v1::ScheduleMismatch* proto = detail.mutable_schedule_mismatch();
  proto->set_stream(mismatch.stream);
  proto->set_round(mismatch.round);
  for (int rank : mismatch.outliers) {
    if (static_cast<size_t>(proto->odd_ranks_size()) >= kMaxDetailRanks) break;
    proto->add_odd_ranks(rank);
  }
  size_t bytes = detail.ByteSizeLong();
  for (const std::string& line : mismatch.differences) {
    bytes += line.size() + 3;
    if (bytes > kMaxDetailBytes) break;
    if (static_cast<size_t>(proto->differences_size()) >= kMaxDifferences) {
      break;
    }
    proto->add_differences(line);
  }
  return WithDetail(absl::AbortedError(message), detail);
}

}  // namespace coxswain::schedule
