// Two coordinators over one folder, of which the first is frozen at every
// single change that it makes to the disk, after it has found that it leads.
// The second takes over and goes on; then the first does. The second one's
// checkpoints stay as they are, and a third one finds exactly these.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/storage/fault_file_system.h"
#include "server/storage/fenced_file_system.h"
#include "server/storage/memory_file_system.h"

namespace coxswain::server::two_leads_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int kShards = 2;
constexpr char kJob[] = "job";
constexpr char kLeadsNoMore[] = "another one leads";

// Complete checkpoints by id, with the bytes of their shards.
using Content = std::map<std::string, std::vector<std::string>>;

std::string ShardData(int64_t step, int shard) {
  return absl::StrCat("step ", step, " shard ", shard);
}

Fence FenceOf(int64_t generation) {
  Fence fence;
  fence.job = kJob;
  fence.generation = Generation(generation);
  return fence;
}

class Notice {
 public:
  void Give() {
    MutexLock lock(&mutex_);
    given_ = true;
    changed_.NotifyAll();
  }
  bool Wait() {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(
        &mutex_, kTimeout,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return given_; });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool given_ ABSL_GUARDED_BY(mutex_) = false;
};

// One of the coordinators that lead in turn.
class Lead {
 public:
  Lead(MemoryFileSystem* disk, std::atomic<int>* leader, int name)
      : files_(disk),
        fenced_(&files_,
                [leader, name]() -> absl::Status {
                  if (leader->load() == name) return absl::OkStatus();
                  return absl::UnavailableError(kLeadsNoMore);
                }),
        name_(name) {}

  absl::Status Open() {
    COXSWAIN_ASSIGN_OR_RETURN(
        store_, CheckpointStore::Open(&fenced_, "/checkpoints", {}, &clock_,
                                      RandomSource::System()));
    EXPECT_OK(store_->BeginTerm(Term(name_)));
    return absl::OkStatus();
  }
  FaultFileSystem& files() { return files_; }
  CheckpointStore& store() { return *store_; }

  absl::StatusOr<std::string> Upload(int64_t step, int64_t generation = 1) {
    const Fence fence = FenceOf(generation);
    COXSWAIN_ASSIGN_OR_RETURN(const std::string id,
                              store_->Begin(fence, step, kShards, {}));
    for (int shard = 0; shard < kShards; ++shard) {
      const std::string data = ShardData(step, shard);
      COXSWAIN_ASSIGN_OR_RETURN(
          const auto upload,
          store_->StartUpload(fence, id, shard,
                              static_cast<int64_t>(data.size()), Crc32c(data)));
      COXSWAIN_RETURN_IF_ERROR(upload->Append(0, data, Crc32c(data)));
      COXSWAIN_RETURN_IF_ERROR(upload->Finish());
    }
    return id;
  }
  absl::StatusOr<std::string> Save(int64_t step, int64_t generation = 1) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::string id, Upload(step, generation));
    COXSWAIN_RETURN_IF_ERROR(store_->Commit(FenceOf(generation), id).status());
    return id;
  }

  // Returns all that is listed, which must be whole.
  Content Whole() {
    Content content;
    for (const CheckpointRecord& record : store_->List(kJob)) {
      EXPECT_OK(store_->CheckManifest(kJob, record.id));
      for (int shard = 0; shard < kShards; ++shard) {
        content[record.id].push_back(
            Download(record.id, shard).value_or("unreadable"));
        EXPECT_EQ(content[record.id].back(), ShardData(record.step, shard));
      }
    }
    return content;
  }

 private:
  absl::StatusOr<std::string> Download(const std::string& id, int shard) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto download,
                              store_->StartDownload(kJob, id, shard));
    std::string data;
    while (true) {
      COXSWAIN_ASSIGN_OR_RETURN(const auto chunk, download->Next());
      if (!chunk.has_value()) return data;
      data.append(chunk->data.data(), chunk->data.size());
    }
  }

  FakeClock clock_;
  FaultFileSystem files_;
  FencedFileSystem fenced_;
  const int name_;
  std::unique_ptr<CheckpointStore> store_;
};

std::string IdOf(Lead& lead, int64_t step) {
  for (const CheckpointRecord& record : lead.store().List(kJob)) {
    if (record.step == step) return record.id;
  }
  return "none";
}

// What the first one does when it is frozen. Steps 1 and 2 are complete, and 3
// is open with all its shards.
struct Work {
  std::string name;
  std::function<absl::Status(Lead&, const std::string& open)> run;
  // Whether it is done, as the second has found it.
  std::function<bool(Lead& second, const std::string& open)> is_done;
  // Whether it is the first thing that the first one changes: 3 is not open.
  bool reopened = false;
};

void PrintTo(const Work& work, std::ostream* os) { *os << work.name; }

absl::Status DeleteTheFirst(Lead& lead, const std::string& open) {
  static_cast<void>(open);
  return lead.store().Delete(kJob, IdOf(lead, 1));
}

absl::Status CommitWithRetention(Lead& lead, const std::string& open) {
  RetentionRules rules;
  rules.keep_last = 1;
  return lead.store().Commit(FenceOf(1), open, rules).status();
}

// The rename is done and its sync is not; then the generation ends.
absl::Status DiscardAfterAFailedCommit(Lead& lead, const std::string& open) {
  lead.files().FailNextSync(absl::StrCat("/checkpoints/", kJob),
                            absl::DataLossError("bad disk"));
  EXPECT_FALSE(lead.store().Commit(FenceOf(1), open).ok());
  const absl::Status ended = absl::AbortedError("a worker is lost");
  lead.store().OnGenerationEnded(kJob, Generation(1), ended);
  return ended;
}

std::vector<Work> AllWork() {
  const auto has = [](int64_t step, int64_t generation) {
    return [step, generation](Lead& second, const std::string&) {
      for (const CheckpointRecord& record : second.store().List(kJob)) {
        if (record.step == step &&
            record.generation == Generation(generation)) {
          return true;
        }
      }
      return false;
    };
  };
  const auto first_is_gone = [](Lead& second, const std::string&) {
    return IdOf(second, 1) == "none";
  };
  const auto has_open = [](Lead& second, const std::string& open) {
    return second.store().Find(kJob, open).ok();
  };
  return {
      {"Save",
       [](Lead& lead, const std::string&) { return lead.Save(4).status(); },
       has(4, 1)},
      {"SaveAStepAgain",
       [](Lead& lead, const std::string&) { return lead.Save(1, 2).status(); },
       has(1, 2)},
      {"CommitWithRetention", CommitWithRetention, has_open},
      {"Delete", DeleteTheFirst, first_is_gone},
      {"DeleteAtFirst", DeleteTheFirst, first_is_gone, /*reopened=*/true},
      {"DiscardAfterAFailedCommit", DiscardAfterAFailedCommit, has_open},
  };
}

// One disk, two that lead one after the other, and a third.
class World {
 public:
  explicit World(const Work& work) : work_(work) {
    EXPECT_OK(first_.Open());
    EXPECT_OK(first_.Save(1));
    EXPECT_OK(first_.Save(2));
    if (work_.reopened) {
      EXPECT_OK(first_.Open());
    } else {
      open_ = first_.Upload(3).value_or("not uploaded");
    }
  }

  Lead& first() { return first_; }
  Lead& second() { return second_; }

  absl::Status Run() { return work_.run(first_, open_); }

  // Returns how many changes the work makes.
  int64_t Changes() {
    const int64_t before = first_.files().mutations();
    Run().IgnoreError();
    return first_.files().mutations() - before;
  }

  // The second leads. Returns whether it could.
  bool Open() {
    leader_ = 2;
    const absl::Status opened = second_.Open();
    EXPECT_OK(opened);
    if (!opened.ok()) return false;
    done_ = work_.is_done(second_, open_);
    second_.Whole();
    return true;
  }
  // It commits one and deletes one.
  void GoOn() {
    EXPECT_OK(second_.Save(5));
    const std::string doomed = IdOf(second_, 2);
    if (doomed != "none") {
      EXPECT_OK(second_.store().Delete(kJob, doomed));
    }
    left_ = second_.Whole();
  }

  // Checks the folder after both have ended, the first with `status`.
  void Check(const absl::Status& status) {
    if (status.ok()) {
      EXPECT_TRUE(done_) << "done, and lost";
    } else if (!absl::IsAborted(status)) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                   HasSubstr(kLeadsNoMore)));
    }
    EXPECT_EQ(second_.Whole(), left_);
    leader_ = 3;
    Lead third(&disk_, &leader_, 3);
    ASSERT_OK(third.Open());
    EXPECT_EQ(third.Whole(), left_);
    // Beside the job's there is the folder of its own term, in which nothing
    // is.
    EXPECT_THAT(*disk_.List("/checkpoints"),
                ElementsAre(StartsWith("@term-3-"), kJob))
        << "leftovers";
    const std::string own = disk_.List("/checkpoints")->front();
    EXPECT_THAT(*disk_.List(absl::StrCat("/checkpoints/", own)), IsEmpty());
    EXPECT_EQ(disk_.List(absl::StrCat("/checkpoints/", kJob))->size(),
              left_.size())
        << "leftovers";
  }

 private:
  const Work& work_;
  MemoryFileSystem disk_;
  std::atomic<int> leader_{1};
  Lead first_{&disk_, &leader_, 1};
  Lead second_{&disk_, &leader_, 2};
  std::string open_;
  bool done_ = false;
  Content left_;
};

class TwoLeadsTest : public testing::TestWithParam<Work> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetLogLevel("error")); }
  void TearDown() override { ASSERT_TRUE(SetLogLevel("info")); }
};

TEST_P(TwoLeadsTest, OneThatWasFrozenChangesNothingOfTheNextOnes) {
  const int64_t changes = World(GetParam()).Changes();
  EXPECT_GT(changes, 2);
  for (int64_t change = 0; change < changes && !HasFailure(); ++change) {
    SCOPED_TRACE(absl::StrCat("frozen before change ", change));
    World world(GetParam());
    bool frozen = false;
    world.first().files().Before(change, [&] {
      frozen = true;
      if (world.Open()) world.GoOn();
    });
    const absl::Status status = world.Run();
    ASSERT_TRUE(frozen);
    world.Check(status);
  }
}

// The one change that was under way comes in the middle of the takeover.
TEST_P(TwoLeadsTest, AChangeThatWasUnderWayIsDoneAndSeenOrNotDone) {
  const int64_t changes = World(GetParam()).Changes();
  for (int64_t change = 0; change < changes; ++change) {
    bool came_within = true;
    for (int64_t moment = 0; came_within && !HasFailure(); ++moment) {
      SCOPED_TRACE(absl::StrCat("change ", change, " comes before change ",
                                moment, " of the takeover"));
      World world(GetParam());
      Notice frozen;
      Notice thawed;
      world.first().files().Before(change, [&] {
        frozen.Give();
        EXPECT_TRUE(thawed.Wait());
      });
      absl::Status status;
      std::thread first([&] { status = world.Run(); });
      ASSERT_TRUE(frozen.Wait());
      came_within = false;
      world.second().files().Before(moment, [&] {
        came_within = true;
        thawed.Give();
        first.join();
      });
      const bool opened = world.Open();
      if (!came_within) {
        world.second().files().Before(0, nullptr);
        thawed.Give();
        first.join();
      }
      if (!opened) return;
      world.GoOn();
      world.Check(status);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllWork, TwoLeadsTest, testing::ValuesIn(AllWork()),
                         [](const testing::TestParamInfo<Work>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace coxswain::server::two_leads_test
