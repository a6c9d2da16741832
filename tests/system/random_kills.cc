#include "tests/system/random_kills.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"

namespace coxswain {
namespace {

constexpr int kWorld = 4;
constexpr int kSpares = 4;
constexpr int kMinWorkers = 2;
// Milliseconds between kills, at most: of the same order as a recovery.
constexpr uint64_t kMostIdle = 600;
// Between actions of churn, and between two calms.
constexpr uint64_t kLeastPause = 50;
constexpr uint64_t kMostPause = 200;
constexpr absl::Duration kWhile = absl::Seconds(10);
// What a survivor does before it counts as training again.
constexpr int64_t kProgress = 3;

const std::vector<std::string> kToyOptions = {"--steps", "1000000000",
                                              "--pace-ms", "2"};

absl::Time Now() { return Clock::Real()->Now(); }

}  // namespace

void RandomKills::Run() {
  StartAll();
  const absl::Time last = Now() + options_.at_most;
  next_coordinator_kill_ = Now() + options_.coordinator_every;
  while (kills_ < options_.kills && Now() < last) {
    options_.churn ? Churn() : Round();
    if (testing::Test::HasFailure()) return;
  }
  if (spares_leave_) {
    ASSERT_TRUE(cluster_.Await("the spares have left", [&] {
      return cluster_.status(spares_).has_value();
    }));
    StartSpares();
  }
  ASSERT_TRUE(cluster_.AwaitDescribed("all are back", [](const auto& job) {
    return job.members_size() == kWorld && job.spares_size() == kSpares;
  }));
  ASSERT_TRUE(cluster_.AwaitSteps(kWorld, kProgress));
  cluster_.EndTraining();
  cluster_.Finish({{workers_, 0}, {spares_, 0}});
  cluster_.ExpectExactAndEqual(kWorld);
  coordinator_growth_.ExpectNone("the coordinators, before they are killed");
  launcher_growth_.ExpectNone("the launcher");
  worker_growth_.ExpectNone("a worker that is never killed");
  Report();
}

void RandomKills::StartAll() {
  cluster_.Serve();
  workers_ = cluster_.Start({"workers", kWorld, RunOptions(), kToyOptions,
                             /*before=*/{}, options_.program});
  ASSERT_TRUE(cluster_.AwaitSteps(kWorld, kProgress));
  StartSpares();
}

std::vector<std::string> RandomKills::RunOptions() const {
  return {"--min-workers",  absl::StrCat(kMinWorkers),
          "--max-restarts", "1000000",
          "--backend",      options_.backend};
}

void RandomKills::StartSpares() {
  static_assert(kSpares == kWorld, "all launchers of a job have the same");
  spares_ = cluster_.Start({"spares", kSpares, RunOptions(), kToyOptions,
                            /*before=*/{}, options_.program});
  spares_leave_ = false;
}

void RandomKills::Round() {
  // Mostly when all train again; sometimes in the middle of that.
  if (Chance(70) && !AwaitProgress()) return;
  Idle();
  const std::vector<WorkerLife*> training = cluster_.Training();
  const uint64_t kind = Pick(100);
  const bool coordinator = kind < 8;
  const size_t workers = kind < 4 ? 0 : kind < 80 ? 1 : kind < 95 ? 2 : 3;
  if (coordinator) KillCoordinator();
  const std::vector<pid_t> victims = Victims(workers);
  const absl::Time at = Now();
  for (const pid_t pid : victims) cluster_.Kill(pid);
  kills_ += static_cast<int>(victims.size());
  if (coordinator) {
    Idle();
    cluster_.Serve();
    return;
  }
  // To be measured, all must have been in the midst of it.
  Struck struck = {at, 0, cluster_.Training()};
  const bool all =
      training.size() > struck.survivors.size() &&
      static_cast<int>(training.size()) == training[0]->world() &&
      std::all_of(training.begin(), training.end(), [](const WorkerLife* life) {
        return life->step_generation == life->generation();
      });
  if (!all) return;
  struck.generation = training[0]->generation();
  Measure(struck);
}

void RandomKills::Churn() {
  const absl::Time end = Now() + kWhile;
  while (Now() < end && !testing::Test::HasFailure()) Act();
  if (AwaitProgress()) LookAtGrowth();
}

void RandomKills::Act() {
  cluster_.processes().WaitUntil(
      [] { return false; },
      absl::Milliseconds(kLeastPause + Pick(kMostPause - kLeastPause)));
  if (Now() >= next_coordinator_kill_) {
    next_coordinator_kill_ = Now() + options_.coordinator_every;
    coordinator_growth_.Look(cluster_.coordinator_pid());
    KillCoordinator();
    Idle();
    return cluster_.Serve();
  }
  if (Pick(100) < 10) return LeaveOrJoin();
  for (const pid_t pid : Victims(1)) {
    cluster_.Kill(pid);
    ++kills_;
  }
}

void RandomKills::LeaveOrJoin() {
  if (!spares_leave_) {
    cluster_.Signal(spares_, SIGTERM);
    spares_leave_ = true;
    ++leaves_;
  } else if (cluster_.status(spares_).has_value()) {
    StartSpares();
    ++joins_;
  }
}

void RandomKills::KillCoordinator() {
  cluster_.KillCoordinator();
  ++coordinator_kills_;
  ++kills_;
}

void RandomKills::LookAtGrowth() {
  launcher_growth_.Look(cluster_.pid(workers_));
  worker_growth_.Look(spared_);
}

void RandomKills::Idle() {
  cluster_.processes().WaitUntil([] { return false; },
                                 absl::Milliseconds(Pick(kMostIdle)));
}

std::vector<pid_t> RandomKills::Victims(size_t count) {
  std::vector<pid_t> pids = cluster_.PidsOf(workers_);
  for (const pid_t pid : cluster_.PidsOf(spares_)) pids.push_back(pid);
  std::sort(pids.begin(), pids.end());
  const std::vector<WorkerLife*> training = cluster_.Training();
  if (!training.empty()) {
    const pid_t kept = training[Pick(training.size())]->pid;
    pids.erase(std::remove(pids.begin(), pids.end(), kept), pids.end());
  }
  if (options_.churn) Spare(training, &pids);
  std::vector<pid_t> victims;
  while (victims.size() < count && !pids.empty()) {
    const size_t at = Pick(pids.size());
    victims.push_back(pids[at]);
    pids.erase(pids.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return victims;
}

// Of the launcher that stays, as long as it can.
void RandomKills::Spare(const std::vector<WorkerLife*>& training,
                        std::vector<pid_t>* pids) {
  const std::vector<pid_t> own = cluster_.PidsOf(workers_);
  if (std::find(own.begin(), own.end(), spared_) == own.end()) {
    for (const WorkerLife* life : training) {
      if (std::find(own.begin(), own.end(), life->pid) == own.end()) continue;
      spared_ = life->pid;
      ++spared_changes_;
      worker_growth_.Clear();
      break;
    }
  }
  pids->erase(std::remove(pids->begin(), pids->end(), spared_), pids->end());
}

// That enough of those that are alive take steps together.
bool RandomKills::AwaitProgress() {
  int64_t step = 0;
  for (const auto& life : cluster_.lives()) step = std::max(step, life->step);
  step += kProgress;
  return cluster_.Await("training goes on", [&] {
    const std::vector<WorkerLife*> training = cluster_.Training();
    return static_cast<int>(training.size()) >= kMinWorkers &&
           static_cast<int>(training.size()) == training[0]->world() &&
           std::all_of(training.begin(), training.end(),
                       [&](const WorkerLife* life) {
                         return life->step >= step &&
                                life->step_generation == life->generation();
                       });
  });
}

void RandomKills::Measure(const Struck& struck) {
  const auto hit = [&](const WorkerLife* life) {
    return std::find_if(
        life->generations.begin(), life->generations.end(),
        [&](const auto& one) { return one.generation == struck.generation; });
  };
  const auto trains = [&](const WorkerLife* life) {
    return std::find_if(hit(life) + 1, life->generations.end(),
                        [](const auto& one) {
                          return one.first_step < absl::InfiniteFuture();
                        });
  };
  const auto all = [&](const auto& is) {
    return std::all_of(struck.survivors.begin(), struck.survivors.end(), is);
  };
  if (!cluster_.Await("the survivors notice", [&] {
        return all([&](const WorkerLife* life) {
          // Without an error: it was about to end in favour of another worker.
          return hit(life)->ended < absl::InfiniteFuture() ||
                 hit(life) + 1 != life->generations.end();
        });
      })) {
    return;
  }
  for (const WorkerLife* life : struck.survivors) {
    const absl::Time ended = hit(life)->ended;
    if (ended < absl::InfiniteFuture()) to_error_.Add(ended - struck.at);
  }
  // Fewer must wait for a process to start.
  if (struck.survivors.size() < kMinWorkers) return;
  if (!cluster_.Await("the survivors train again", [&] {
        return all([&](const WorkerLife* life) {
          return trains(life) != life->generations.end();
        });
      })) {
    return;
  }
  for (const WorkerLife* life : struck.survivors) {
    to_training_.Add(trains(life)->first_step - struck.at);
  }
}

void RandomKills::Report() const {
  if (options_.churn) {
    std::printf(
        "seed %llu over %s: %d kills, %d of them of the coordinator, %d "
        "leaves, "
        "%d joins, %zu lives, %d workers never killed\n"
        "the coordinators, before they are killed: %s\n"
        "the launcher: %s\n"
        "the worker that was never killed: %s\n",
        static_cast<unsigned long long>(options_.seed),
        options_.backend.c_str(), kills_, coordinator_kills_, leaves_, joins_,
        cluster_.lives().size(), spared_changes_,
        coordinator_growth_.ToString().c_str(),
        launcher_growth_.ToString().c_str(), worker_growth_.ToString().c_str());
    return;
  }
  std::printf(
      "seed %llu: %d kills, %d of them of the coordinator, %zu lives\n"
      "death -> error at survivors: %s\n"
      "death -> training again:     %s\n",
      static_cast<unsigned long long>(options_.seed), kills_,
      coordinator_kills_, cluster_.lives().size(), to_error_.ToString().c_str(),
      to_training_.ToString().c_str());
  const char* const folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  if (folder == nullptr) return;
  std::ofstream(absl::StrCat(folder, "/random_kills.json"))
      << "{\"seed\": " << options_.seed << ", \"kills\": " << kills_
      << ", \"coordinator_kills\": " << coordinator_kills_
      << ", \"to_error\": " << to_error_.ToJson()
      << ", \"to_training\": " << to_training_.ToJson() << "}\n";
}

}  // namespace coxswain
