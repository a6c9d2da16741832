#include "schedule/pipeline/generate.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/nearest_word.h"
#include "base/status_macros.h"

namespace coxswain::pipeline {
namespace {

using SpecKind = ScheduleSpec::Kind;

// One rank's list as it is written.
struct List {
  Schedule::Actions actions;

  void Add(int stage, ActionKind kind, int micro_batch) {
    actions.push_back({stage, micro_batch, kind});
  }
};

List Gpipe(int rank, int micro_batches, bool fifo) {
  List list;
  for (int i = 0; i < micro_batches; ++i) {
    list.Add(rank, ActionKind::kForward, i);
  }
  for (int i = 0; i < micro_batches; ++i) {
    list.Add(rank, ActionKind::kBackward, fifo ? i : micro_batches - 1 - i);
  }
  return list;
}

List OneForwardOneBackward(int rank, int ranks, int micro_batches) {
  List list;
  const int ahead = std::min(micro_batches, ranks - 1 - rank);
  for (int i = 0; i < micro_batches + ahead; ++i) {
    if (i < micro_batches) list.Add(rank, ActionKind::kForward, i);
    if (i >= ahead) list.Add(rank, ActionKind::kBackward, i - ahead);
  }
  return list;
}

// A pass through one of a rank's chunks.
struct ChunkPass {
  int chunk = 0;
  int micro_batch = 0;
};

// Returns the forward passes of a rank in their order; `largest` is set to the
// size of the largest group. A group smaller than the number of ranks, while
// there are others, would come back to the first rank before it is awaited
// there, and a rank would then wait for what it does later itself.
std::vector<ChunkPass> InGroups(int ranks, int micro_batches, int chunks,
                                int* largest) {
  const int groups = std::max(1, micro_batches / ranks);
  const int least = micro_batches / groups;
  const int larger = micro_batches % groups;  // groups with one more
  *largest = least + (larger > 0 ? 1 : 0);
  std::vector<ChunkPass> passes;
  passes.reserve(static_cast<size_t>(micro_batches) * chunks);
  int begin = 0;
  for (int group = 0; group < groups; ++group) {
    const int end = begin + least + (group < larger ? 1 : 0);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = begin; i < end; ++i) passes.push_back({chunk, i});
    }
    begin = end;
  }
  return passes;
}

List Interleaved(int rank, int ranks, int chunks, int largest,
                 const std::vector<ChunkPass>& passes) {
  List list;
  const int total = static_cast<int>(passes.size());
  const int ahead =
      std::min(total, 2 * (ranks - 1 - rank) + (chunks - 1) * largest);
  for (int k = 0; k < total + ahead; ++k) {
    if (k < total) {
      const ChunkPass& pass = passes[k];
      list.Add(pass.chunk * ranks + rank, ActionKind::kForward,
               pass.micro_batch);
    }
    if (k >= ahead) {
      const ChunkPass& pass = passes[k - ahead];
      list.Add((chunks - 1 - pass.chunk) * ranks + rank, ActionKind::kBackward,
               pass.micro_batch);
    }
  }
  return list;
}

List ZbH1(int rank, int ranks, int micro_batches) {
  List list;
  const int ahead = std::min(micro_batches, ranks - 1 - rank);
  int weights = 0;  // W so far
  for (int i = 0; i < micro_batches + ahead; ++i) {
    if (i < micro_batches) list.Add(rank, ActionKind::kForward, i);
    if (i < ahead) continue;
    const int backward = i - ahead;
    list.Add(rank, ActionKind::kBackwardInput, backward);
    // While there are forward passes, as many W stay back as ranks come before
    // this one: they fill its waits for the last gradients.
    if (i >= micro_batches || backward + 1 - weights > rank) {
      list.Add(rank, ActionKind::kBackwardWeight, weights++);
    }
  }
  while (weights < micro_batches) {
    list.Add(rank, ActionKind::kBackwardWeight, weights++);
  }
  return list;
}

absl::Status WrongSpec(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the pipeline schedule '", text.substr(0, 64), "' ", why));
}

}  // namespace

absl::StatusOr<ScheduleSpec> ScheduleSpec::Parse(absl::string_view text) {
  absl::string_view name = text;
  absl::string_view option;
  const size_t open = text.find('(');
  if (open != absl::string_view::npos) {
    name = text.substr(0, open);
    option = text.substr(open + 1);
    if (!absl::ConsumeSuffix(&option, ")")) {
      return WrongSpec(text, "has no ) at its end");
    }
  }
  ScheduleSpec spec;
  if (name == "gpipe") {
    spec.kind = SpecKind::kGpipe;
    if (option == "order=fifo") spec.fifo = true;
    if (option.empty() || option == "order=fifo" || option == "order=lifo") {
      return spec;
    }
    return WrongSpec(text,
                     "has no such option: write order=lifo or order=fifo");
  }
  if (name == "interleaved") {
    spec.kind = SpecKind::kInterleaved;
    spec.chunks = 2;
    if (option.empty()) return spec;
    if (absl::ConsumePrefix(&option, "chunks=") &&
        absl::SimpleAtoi(option, &spec.chunks) && spec.chunks >= 2 &&
        spec.chunks <= kMaxChunks) {
      return spec;
    }
    return WrongSpec(text, absl::StrCat("has no such option: write chunks=2 "
                                        "to ",
                                        kMaxChunks));
  }
  if (name != "1f1b" && name != "zb_h1") {
    return WrongSpec(
        text, absl::StrCat(
                  "is not known: there are gpipe, 1f1b, interleaved "
                  "and zb_h1",
                  DidYouMean(name, {"gpipe", "1f1b", "interleaved", "zb_h1"})));
  }
  if (!option.empty()) return WrongSpec(text, "has an option; it takes none");
  spec.kind = name == "1f1b" ? SpecKind::k1f1b : SpecKind::kZbH1;
  return spec;
}

std::string ScheduleSpec::ToString() const {
  switch (kind) {
    case Kind::kGpipe:
      return fifo ? "gpipe(order=fifo)" : "gpipe";
    case Kind::k1f1b:
      return "1f1b";
    case Kind::kInterleaved:
      return absl::StrCat("interleaved(chunks=", chunks, ")");
    case Kind::kZbH1:
      break;
  }
  return "zb_h1";
}

absl::StatusOr<Schedule> Generate(const ScheduleSpec& spec, int ranks,
                                  int micro_batches) {
  if (ranks < 1 || ranks > kMaxRanks || micro_batches < 1 ||
      micro_batches > kMaxMicroBatches) {
    return WrongSpec(spec.ToString(),
                     absl::StrCat("has 1 to ", kMaxRanks, " ranks and 1 to ",
                                  kMaxMicroBatches, " micro-batches, not ",
                                  ranks, " and ", micro_batches));
  }
  const int64_t passes = spec.kind == SpecKind::kZbH1 ? 3 : 2;
  const int64_t actions = passes * ranks * spec.chunks * micro_batches;
  if (ranks * spec.chunks > kMaxStages) {
    return WrongSpec(
        spec.ToString(),
        absl::StrCat("of ", ranks, " ranks has ", ranks * spec.chunks,
                     " stages; at most ", kMaxStages, " can be"));
  }
  if (actions > kMaxActions) {
    return WrongSpec(spec.ToString(),
                     absl::StrCat("of ", ranks, " ranks and ", micro_batches,
                                  " micro-batches has ", actions,
                                  " passes; at most ", kMaxActions, " can be"));
  }
  int largest = 0;
  std::vector<ChunkPass> in_groups;
  if (spec.kind == SpecKind::kInterleaved) {
    in_groups = InGroups(ranks, micro_batches, spec.chunks, &largest);
  }
  std::vector<Schedule::Actions> of_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    List list;
    switch (spec.kind) {
      case SpecKind::kGpipe:
        list = Gpipe(rank, micro_batches, spec.fifo);
        break;
      case SpecKind::k1f1b:
        list = OneForwardOneBackward(rank, ranks, micro_batches);
        break;
      case SpecKind::kInterleaved:
        list = Interleaved(rank, ranks, spec.chunks, largest, in_groups);
        break;
      case SpecKind::kZbH1:
        list = ZbH1(rank, ranks, micro_batches);
        break;
    }
    of_rank.push_back(std::move(list.actions));
  }
  return Schedule::Create(std::move(of_rank));
}

absl::StatusOr<Schedule> MakeSchedule(absl::string_view spec, int ranks,
                                      int micro_batches) {
  COXSWAIN_ASSIGN_OR_RETURN(const ScheduleSpec parsed,
                            ScheduleSpec::Parse(spec));
  COXSWAIN_ASSIGN_OR_RETURN(const Schedule compute,
                            Generate(parsed, ranks, micro_batches));
  return WithTransfers(compute);
}

}  // namespace coxswain::pipeline
