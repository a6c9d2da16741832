#include "schedule/pipeline/stage_cut.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace coxswain::pipeline {
namespace {

absl::Status CheckCounts(int layers, int stages) {
  if (stages >= 1 && layers >= stages) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a model of ", layers, " layers does not make ", stages,
      " stages, of which each has a layer or more: start fewer ranks along pp, "
      "take fewer chunks, or list the model in smaller layers"));
}

absl::Status WrongCut(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "stages \"", text, "\": ", why,
      "; give the first and the last layer of each stage, as in \"0-3,4-7\""));
}

}  // namespace

absl::StatusOr<StageCut> StageCut::Even(int layers, int stages) {
  COXSWAIN_RETURN_IF_ERROR(CheckCounts(layers, stages));
  std::vector<int> begins;
  int begin = 0;
  for (int stage = 0; stage < stages; ++stage) {
    begins.push_back(begin);
    begin += layers / stages + (stage < layers % stages ? 1 : 0);
  }
  return StageCut(std::move(begins), layers);
}

absl::StatusOr<StageCut> StageCut::ByWeight(const std::vector<int64_t>& weights,
                                            int stages) {
  const size_t layers = weights.size();
  const auto count = static_cast<size_t>(stages);
  COXSWAIN_RETURN_IF_ERROR(CheckCounts(static_cast<int>(layers), stages));
  std::vector<int64_t> before = {0};
  for (const int64_t weight : weights) before.push_back(before.back() + weight);
  // By stages and by layers in them: the weight of the heaviest, and where the
  // last one begins.
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<int64_t>> heaviest(
      count + 1, std::vector<int64_t>(layers + 1, kNone));
  std::vector<std::vector<size_t>> last(count + 1,
                                        std::vector<size_t>(layers + 1, 0));
  heaviest[0][0] = 0;
  for (size_t stage = 1; stage <= count; ++stage) {
    for (size_t end = stage; end <= layers; ++end) {
      for (size_t begin = stage - 1; begin < end; ++begin) {
        const int64_t weight =
            std::max(heaviest[stage - 1][begin], before[end] - before[begin]);
        if (weight >= heaviest[stage][end]) continue;
        heaviest[stage][end] = weight;
        last[stage][end] = begin;
      }
    }
  }
  std::vector<int> begins(count);
  size_t end = layers;
  for (size_t stage = count; stage > 0; --stage) {
    end = last[stage][end];
    begins[stage - 1] = static_cast<int>(end);
  }
  return StageCut(std::move(begins), static_cast<int>(layers));
}

absl::StatusOr<StageCut> StageCut::Parse(absl::string_view text, int layers,
                                         int stages) {
  std::vector<int> begins;
  int next = 0;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    const bool one = ends.first.size() == part.size();
    if (!absl::SimpleAtoi(ends.first, &first) ||
        !absl::SimpleAtoi(one ? ends.first : ends.second, &last)) {
      return WrongCut(text, absl::StrCat("\"", part, "\" is no stage"));
    }
    if (first != next || last < first) {
      return WrongCut(
          text, absl::StrCat("\"", part, "\" is to begin with ", "layer ", next,
                             ", and to end with it or later"));
    }
    if (last >= layers) {
      return WrongCut(text,
                      absl::StrCat("\"", part, "\" ends with layer ", last,
                                   ", and the model has ", layers, " layers"));
    }
    begins.push_back(first);
    next = last + 1;
  }
  if (next != layers) {
    return WrongCut(text,
                    absl::StrCat("it leaves out the layers from ", next,
                                 " on, and the model has ", layers, " layers"));
  }
  if (static_cast<int>(begins.size()) != stages) {
    return WrongCut(text,
                    absl::StrCat("it has ", begins.size(),
                                 " stages, and the pipeline has ", stages));
  }
  return StageCut(std::move(begins), layers);
}

std::string StageCut::ToString() const {
  std::string text;
  for (int stage = 0; stage < stages(); ++stage) {
    absl::StrAppend(&text, stage == 0 ? "" : ",", begin(stage));
    if (end(stage) - begin(stage) > 1) {
      absl::StrAppend(&text, "-", end(stage) - 1);
    }
  }
  return text;
}

int StageCut::StageOf(int layer) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), layer);
  return static_cast<int>(after - begins_.begin()) - 1;
}

}  // namespace coxswain::pipeline
