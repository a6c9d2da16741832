// `coxswain checkpoint` with a checkpoint of pieces.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "cli/checkpoint.h"
#include "client/rpc/stub_factory.h"
#include "tests/checkpoint/pieces/piece_job.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Action = CheckpointOptions::Action;

class PieceCommandTest : public PieceJobTest {
 protected:
  PieceCommandTest()
      : stub_(ConnectCoordinator(absl::StrCat("127.0.0.1:", port_))),
        world_(RealCheckpointWorld(stub_.get())) {
    world_.transfer.progress.write = nullptr;
    options_.job = "job";
    options_.timeout = absl::Seconds(30);
    options_.folder = folder_ + "/exported";
  }

  std::string Run(Action action, const std::string& which) {
    options_.action = action;
    options_.which = which;
    const auto text = RunCheckpoint(options_, world_);
    return text.ok() ? *text : text.status().ToString();
  }

  std::shared_ptr<CoordinatorStub> stub_;
  CheckpointWorld world_;
  CheckpointOptions options_;
};

TEST_F(PieceCommandTest, ItIsShownVerifiedExportedAndImported) {
  const ShardedModel model(50);
  const std::string id = Save(model, {1, 2, 2}, 10);
  EXPECT_THAT(Run(Action::kList, ""),
              AllOf(HasSubstr("PIECES"), HasSubstr(id)));
  EXPECT_THAT(Run(Action::kShow, "newest"),
              AllOf(HasSubstr("pieces of a sharded model  "),
                    HasSubstr("in 4 shards")));
  EXPECT_THAT(Run(Action::kVerify, id), HasSubstr("no damage"));
  EXPECT_THAT(Run(Action::kExport, id), HasSubstr("exported"));
  ASSERT_OK(client().Delete(id));
  EXPECT_THAT(Run(Action::kImport, ""), HasSubstr("imported"));
  ExpectLoads("", model, {1, 3, 1});
  FlipBit(FileOf(Ids().front(), 1), 500);
  EXPECT_THAT(Run(Action::kVerify, "newest"),
              AllOf(HasSubstr("DATA_LOSS"), HasSubstr("shard 1 (file")));
}

}  // namespace
}  // namespace coxswain
