#include "tests/simulation/history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/simulation/dice.h"

namespace coxswain::simulation {
namespace {

int DrawWorld(Dice* dice) {
  const int kind = dice->Int(0, 9999);
  if (kind < 10) return 1000;
  if (kind < 110) return 64;
  if (kind < 300) return 1;
  return dice->Int(2, 8);
}

void DrawTerms(Dice* dice, schedule::Plan* plan) {
  schedule::Terms& terms = plan->terms;
  if (dice->Chance(0.3)) terms.enforcement = schedule::Enforcement::kStrict;
  terms.commit_vote = dice->Chance(0.4);
  if (dice->Chance(0.3)) terms.checksum_every = dice->Int(1, 4);
  if (dice->Chance(0.15)) terms.on_stall = schedule::OnStall::kWarn;
  if (dice->Chance(0.15)) {
    terms.sync_each_batch = true;
  } else if (dice->Chance(0.3)) {
    terms.uneven_data = dice->Chance(0.7) ? schedule::UnevenData::kWaitForAll
                                          : schedule::UnevenData::kEndAtFirst;
  }
  if (terms.uneven_data != schedule::UnevenData::kRefuse && dice->Chance(0.5)) {
    terms.on_resize = schedule::OnResize::kKeepGlobalBatch;
    plan->global_micro_batches = dice->Int(1, 40);
  }
}

schedule::Plan DrawPlan(Dice* dice) {
  schedule::Plan plan;
  plan.version = 1;
  plan.accumulation_steps = dice->Int(1, 4);
  plan.hook = "allreduce";
  DrawTerms(dice, &plan);
  return plan;
}

// The link delivers in time, if each message is sent often enough: 60 times
// within the timeout.
void DrawLink(Dice* dice, History* history) {
  Link& link = history->link;
  history->resend = absl::Seconds(1);
  if (dice->Chance(0.7)) {
    link.loss = 0.3 * dice->Int(0, 10) / 10;
    link.duplicates = 0.3 * dice->Int(0, 10) / 10;
    link.slowest = absl::Milliseconds(dice->Int(1, 3000));
    link.reconnects = dice->Int(0, 2 * std::min(history->world_size, 8));
    link.longest_break = absl::Milliseconds(dice->Int(1, 3000));
  }
  history->plan.terms.progress_timeout = 60 * history->resend;
  history->slowest_step = absl::Milliseconds(dice->Int(1, 1000));
  if (dice->Chance(0.2)) history->straggle_chance = 0.05;
}

void DrawData(Dice* dice, History* history) {
  history->steps = history->world_size > 8 ? dice->Int(2, 8) : dice->Int(2, 16);
  const schedule::Terms& terms = history->plan.terms;
  if (terms.uneven_data != schedule::UnevenData::kRefuse) {
    for (int rank = 0; rank < history->world_size; ++rank) {
      history->data.push_back(dice->Int(1, 24));
    }
  } else if (!terms.sync_each_batch &&
             terms.on_resize == schedule::OnResize::kKeepLocalBatch &&
             dice->Chance(0.3)) {
    history->short_window = 1;
  }
}

void DrawProposals(Dice* dice, History* history) {
  if (!dice->Chance(0.4)) return;
  const int count = dice->Int(1, 3);
  for (int i = 0; i < count; ++i) {
    Proposal& proposal = history->proposals.emplace_back();
    proposal.after = dice->Between(absl::ZeroDuration(),
                                   history->slowest_step * history->steps);
    if (dice->Chance(0.5)) proposal.at_step = dice->Int(1, history->steps);
    proposal.accumulation_steps = dice->Int(1, 4);
    proposal.other_hook = dice->Chance(0.3);
    proposal.strict = dice->Chance(0.5);
    proposal.commit_vote = dice->Chance(0.5);
  }
}

void DrawDeviation(Dice* dice, History* history) {
  if (history->world_size < 2 || !dice->Chance(0.4)) return;
  history->deviation = static_cast<Deviation>(dice->Int(1, kDeviations - 1));
  history->deviation_round = dice->Int(0, std::max(1, history->steps * 2 / 3));
  history->deviants.push_back(dice->Int(0, history->world_size - 1));
  const int second = dice->Int(0, history->world_size - 1);
  const bool alone = history->deviation == Deviation::kLeaves ||
                     history->deviation == Deviation::kTwoTickets ||
                     history->deviation == Deviation::kFutureRound;
  if (history->world_size > 4 && !alone && dice->Chance(0.2) &&
      second != history->deviants[0]) {
    history->deviants.push_back(second);
    std::sort(history->deviants.begin(), history->deviants.end());
  }
  schedule::Terms& terms = history->plan.terms;
  if (history->deviation == Deviation::kNoVote) {
    terms.commit_vote = true;
    history->proposals.clear();
  }
  // A thousand ranks that wait for nothing take long to watch.
  if (history->deviation == Deviation::kHangsInExchange ||
      history->world_size > 64) {
    terms.on_stall = schedule::OnStall::kAbort;
  }
  if (history->deviation == Deviation::kIgnoresStop) {
    history->stops_requested = 1;
  }
}

// Returns false for a deviation that a rank sends once, and does not repeat
// after a crash: it cannot be found afterwards.
bool OutlivesCrash(Deviation deviation) {
  return deviation != Deviation::kTwoTickets &&
         deviation != Deviation::kFutureRound;
}

void DrawCrashes(Dice* dice, History* history) {
  const absl::Duration about = history->slowest_step * history->steps;
  if (OutlivesCrash(history->deviation) && dice->Chance(0.4)) {
    const int count = dice->Int(1, 4);
    for (int i = 0; i < count; ++i) {
      Crash& crash = history->crashes.emplace_back();
      crash.when = static_cast<Crash::When>(dice->Int(0, 2));
      crash.after = dice->Between(absl::ZeroDuration(), 1.5 * about);
      crash.round = dice->Int(0, history->steps);
      crash.down = absl::Milliseconds(dice->Int(1, 3000));
    }
    history->slowest_return = absl::Milliseconds(dice->Int(1, 5000));
    if (dice->Chance(0.15)) {
      // Late, but before the timeout of the ranks that wait for it: so only
      // once.
      history->slowest_return = absl::Seconds(25);
      history->crashes.resize(1);
    }
    history->slowest_write = absl::Milliseconds(dice->Int(1, 2000));
  }
  if (!dice->Chance(0.2)) return;
  const int count = dice->Int(1, 3);
  for (int i = 0; i < count; ++i) {
    Regroup& regroup = history->regroups.emplace_back();
    regroup.after = dice->Between(absl::ZeroDuration(), about);
    if (dice->Chance(0.5)) {
      regroup.drains = dice->Int(0, history->world_size - 1);
    }
  }
}

void DrawCheckpoints(Dice* dice, History* history) {
  if (dice->Chance(0.3)) {
    history->plan.terms.checkpoint_every = dice->Int(1, 5);
  }
  if (!dice->Chance(0.4)) return;
  const int count = dice->Int(1, 3);
  for (int i = 0; i < count; ++i) {
    CheckpointRequest& request = history->checkpoints.emplace_back();
    request.after = dice->Between(absl::ZeroDuration(),
                                  history->slowest_step * history->steps);
    if (dice->Chance(0.5)) {
      request.rank = dice->Int(0, history->world_size - 1);
    }
  }
}

// Returns one of a number's divisors above 1.
int DrawDivisor(Dice* dice, int number) {
  std::vector<int> divisors;
  for (int i = 2; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors[static_cast<size_t>(
      dice->Int(0, static_cast<int>(divisors.size()) - 1))];
}

// Some of the ranks hold one replica together: stages of a pipeline, layers in
// parallel, or both.
void DrawMesh(Dice* dice, History* history) {
  const int world = history->world_size;
  if (world < 2 || !dice->Chance(0.5)) return;
  schedule::Terms& terms = history->plan.terms;
  int pp = DrawDivisor(dice, world);
  int tp = 1;
  if (terms.sync_each_batch) {
    tp = std::exchange(pp, 1);
  } else if (pp % 2 == 0 && dice->Chance(0.3)) {
    pp /= 2;
    tp = 2;
  }
  int dp = world / pp / tp;
  const int shard = dp % 2 == 0 && dice->Chance(0.3) ? 2 : 1;
  dp /= shard;
  history->mesh = *Mesh::Parse(
      absl::StrCat("pp=", pp, ",dp=", dp, ",shard=", shard, ",tp=", tp));
  if (pp > 1) terms.pipeline = "1f1b";
  for (size_t rank = 0; rank < history->data.size(); ++rank) {
    const int index = history->DataPlaceOf(static_cast<int>(rank)).index;
    history->data[rank] = history->data[static_cast<size_t>(index)];
  }
  if (history->deviants.empty()) return;
  history->deviants.resize(1);
  if (history->deviation == Deviation::kNoVote ||
      history->deviation == Deviation::kIgnoresStop || !dice->Chance(0.5)) {
    return;
  }
  const bool uneven = terms.uneven_data != schedule::UnevenData::kRefuse;
  const int last = static_cast<int>(uneven ? Deviation::kFewerMicroBatches
                                           : Deviation::kOtherWeight);
  history->deviation = static_cast<Deviation>(
      dice->Int(static_cast<int>(Deviation::kPipeline), last));
}

}  // namespace

const char* ToString(Deviation deviation) {
  switch (deviation) {
    case Deviation::kNone:
      return "none";
    case Deviation::kMicroBatches:
      return "micro_batches";
    case Deviation::kHook:
      return "hook";
    case Deviation::kLayout:
      return "layout";
    case Deviation::kDigest:
      return "digest";
    case Deviation::kChecksum:
      return "checksum";
    case Deviation::kPlanVersion:
      return "plan_version";
    case Deviation::kWeight:
      return "weight";
    case Deviation::kEndOfData:
      return "end_of_data";
    case Deviation::kSkipsExchange:
      return "skips an exchange";
    case Deviation::kSilent:
      return "silent";
    case Deviation::kNoVote:
      return "no vote";
    case Deviation::kLeaves:
      return "leaves";
    case Deviation::kHangsInExchange:
      return "hangs in the exchange";
    case Deviation::kIgnoresStop:
      return "ignores a stop";
    case Deviation::kTwoTickets:
      return "two tickets";
    case Deviation::kFutureRound:
      return "future round";
    case Deviation::kPipeline:
      return "pipeline";
    case Deviation::kOtherWeight:
      return "another weight";
    case Deviation::kFewerMicroBatches:
      return "fewer micro-batches";
  }
  return "unknown";
}

History History::Random(uint64_t seed) {
  Dice dice(seed, 1);
  History history;
  history.seed = seed;
  history.world_size = DrawWorld(&dice);
  history.plan = DrawPlan(&dice);
  DrawLink(&dice, &history);
  DrawData(&dice, &history);
  DrawProposals(&dice, &history);
  if (dice.Chance(0.3)) history.skip_chance = 0.2 / history.world_size;
  if (dice.Chance(0.2)) history.stops_requested = dice.Int(1, 2);
  DrawDeviation(&dice, &history);
  Dice crashes(seed, 3);
  DrawCrashes(&crashes, &history);
  Dice checkpoints(seed, 4);
  DrawCheckpoints(&checkpoints, &history);
  Dice mesh(seed, 5);
  DrawMesh(&mesh, &history);
  return history;
}

int History::PartOf(int rank) const {
  return mesh.empty() ? 0
                      : mesh.GroupIndexOf(rank, mesh.AxesOf({"dp", "shard"}));
}

int History::AlikeWithDeviants() const {
  if (mesh.empty()) return world_size;
  const int replicas = DataPlaceOf(0).count;
  switch (deviation) {
    case Deviation::kLayout:
    case Deviation::kDigest:
    case Deviation::kChecksum:
    // The forged ticket has another digest.
    case Deviation::kTwoTickets:
    case Deviation::kFutureRound:
      return replicas;
    case Deviation::kPipeline:
    case Deviation::kOtherWeight:
    case Deviation::kFewerMicroBatches:
      return world_size / replicas;
    default:
      return world_size;
  }
}

std::string History::Describe() const {
  return absl::StrCat(
      "seed ", seed, ": ", world_size, " ranks",
      mesh.empty() ? "" : absl::StrCat(" of ", mesh.ToString()),
      ", accumulation ", plan.accumulation_steps, ", ",
      absl::StrJoin(plan.terms.Changed(), " "), ", ", steps, " steps, ",
      proposals.size(), " proposals, ", stops_requested, " stops, loss ",
      link.loss, ", duplicates ", link.duplicates, ", delays to ",
      absl::FormatDuration(link.slowest), ", ", link.reconnects,
      " reconnects, ", crashes.size(), " crashes, ", regroups.size(),
      " regroups, ", checkpoints.size(),
      " wishes for a checkpoint, deviation: ", ToString(deviation),
      " of ranks ", absl::StrJoin(deviants, ","), " from round ",
      deviation_round);
}

}  // namespace coxswain::simulation
