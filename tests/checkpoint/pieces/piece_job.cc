#include "tests/checkpoint/pieces/piece_job.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "tests/support/in_threads.h"

namespace coxswain {

namespace fs = std::filesystem;

PieceJobTest::PieceJobTest() {
  folder_ = testing::TempDir() + "/pieces-XXXXXX";
  EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  StartCoordinator();
  SessionOptions options;
  options.coordinator = absl::StrCat("127.0.0.1:", port_);
  options.job = "job";
  options.identity = {"host-a", 0};
  options.host = "host-a";
  options.world_size = 1;
  auto joined = Session::Join(options, {});
  EXPECT_OK(joined);
  if (joined.ok()) session_ = *std::move(joined);
}

PieceJobTest::~PieceJobTest() {
  if (session_ == nullptr) return;
  EXPECT_OK(session_->Leave("done"));
}

void PieceJobTest::StartCoordinator() {
  server::CoordinatorOptions options;
  options.listen = absl::StrCat("127.0.0.1:", port_);
  options.state_dir = folder_;
  auto started = server::Coordinator::Start(options);
  ASSERT_OK(started);
  coordinator_ = *std::move(started);
  port_ = coordinator_->port();
}

std::vector<absl::StatusOr<std::string>> PieceJobTest::OnRanks(
    int size, const RankWork& work) {
  const auto world = InProcessWorld::Create(size, absl::Seconds(60));
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(world->MakeRank(rank));
  }
  std::vector<absl::StatusOr<std::string>> results(
      static_cast<size_t>(size), absl::UnknownError("did not run"));
  InThreads(size, [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    results[i] = work(rank, communicators[i]);
  });
  return results;
}

std::string PieceJobTest::Save(const ShardedModel& model, const TestMesh& mesh,
                               int64_t step) {
  std::string id;
  for (const auto& saved :
       OnRanks(mesh.size(), [&](int rank, std::shared_ptr<Communicator> all) {
         return SavePieces(client(), *all, At(step),
                           model.Cut(mesh, rank).memory(),
                           absl::StrCat("state of ", rank));
       })) {
    EXPECT_OK(saved);
    if (saved.ok()) id = *saved;
  }
  return id;
}

void PieceJobTest::ExpectLoads(const std::string& id, const ShardedModel& model,
                               const TestMesh& mesh) {
  for (int rank = 0; rank < mesh.size(); ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", mesh.text()));
    auto saved = PieceCheckpoint::Open(client(), id);
    ASSERT_OK(saved);
    const RankPieces expected = model.Cut(mesh, rank);
    RankPieces loaded = model.Cut(mesh, rank);
    loaded.Spoil();
    ASSERT_OK(saved->Load(loaded.memory()));
    for (size_t i = 0; i < expected.memory().size(); ++i) {
      const TensorPiece& piece = expected.memory()[i].piece;
      EXPECT_TRUE(loaded.bytes(i) == expected.bytes(i)) << Describe(piece);
      EXPECT_EQ(saved->index().StepOf(piece.parameter, piece.kind).value_or(-1),
                piece.step);
    }
  }
}

std::vector<int64_t> PieceJobTest::Sizes(const std::string& id) {
  auto sizes = client().ShardSizes(id);
  EXPECT_OK(sizes);
  return sizes.value_or(std::vector<int64_t>());
}

std::vector<std::string> PieceJobTest::Ids() {
  std::vector<std::string> ids;
  const auto list = client().List();
  EXPECT_OK(list);
  if (!list.ok()) return ids;
  for (const CheckpointDescription& one : *list) ids.push_back(one.id);
  return ids;
}

std::string PieceJobTest::FileOf(const std::string& id, int shard) const {
  const std::string prefix = absl::StrFormat("shard-%05d.", shard);
  for (const auto& file :
       fs::directory_iterator(folder_ + "/checkpoints/job/" + id)) {
    if (absl::StartsWith(file.path().filename().string(), prefix)) {
      return file.path().string();
    }
  }
  ADD_FAILURE() << "no file of shard " << shard;
  return "";
}

void PieceJobTest::FlipBit(const std::string& file, int64_t byte) const {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(byte);
  const auto flipped = static_cast<char>(stream.get() ^ 4);
  stream.seekp(byte);
  stream.put(flipped);
  EXPECT_TRUE(stream.good()) << file;
}

}  // namespace coxswain
