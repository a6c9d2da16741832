// Checkpoints that ranks save together, and go on from.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/capi/attempts.h"
#include "tests/capi/loaded_library.h"

namespace coxswain::capi_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// A checkpoint to save, with the text of the model in two parts, and a piece of
// each rank.
struct Given {
  Given(int64_t step, int rank, std::string text)
      : model(std::move(text)), own("sampler " + std::to_string(rank)) {
    pieces = {{".model", model.data(), 2, 0},
              {".model", model.data() + 2, model.size() - 2, 0},
              {"empty", nullptr, 0, 0},
              {"sampler", own.data(), own.size(), CX_PIECE_OWN}};
    checkpoint = Init<cx_checkpoint>();
    checkpoint.step = step;
    checkpoint.reason = "because";
    checkpoint.metadata = &setting;
    checkpoint.metadata_count = 1;
    checkpoint.pieces = pieces.data();
    checkpoint.piece_count = pieces.size();
  }

  const std::string model;
  const std::string own;
  const cx_setting setting = {"position/eval", "7"};
  std::vector<cx_piece> pieces;
  cx_checkpoint checkpoint;
};

// Returns what was loaded, by name and rank.
std::map<std::string, std::string> Pieces(cx_session session) {
  std::map<std::string, std::string> pieces;
  auto piece = Init<cx_piece_info>();
  int64_t index = 0;
  for (; Library().cx_checkpoint_piece(session, index, &piece) == CX_OK;
       ++index) {
    pieces[std::string(piece.name) + " of " + std::to_string(piece.rank)] =
        std::string(static_cast<const char*>(piece.data), piece.data_size);
  }
  EXPECT_EQ(Library().cx_last_error_code(), CX_OUT_OF_RANGE) << Message();
  return pieces;
}

TEST(CapiCheckpointTest, IsSavedByAllRanksAndLoadedOnAnyNumber) {
  const std::string job = "checkpoint";
  RunAttempt(job, 0, 2, [&](int rank, cx_session session) {
    auto report = Init<cx_checkpoint_report>();
    EXPECT_EQ(Library().cx_checkpoint_saved(session, 0, &report, nullptr),
              CX_OK);
    EXPECT_EQ(report.step, -1);
    EXPECT_EQ(report.busy, 0);
    auto info = Init<cx_checkpoint_info>();
    EXPECT_EQ(Library().cx_checkpoint_load(session, "newest", &info, nullptr),
              CX_NOT_FOUND);
    EXPECT_THAT(Message(), HasSubstr("no complete checkpoint"));
    for (const int64_t step : {3, 5}) {
      // Those of the other ranks do not count, but for their own.
      const Given given(step, rank, rank == 0 ? "weights" : "other");
      ASSERT_EQ(Library().cx_checkpoint_save(session, &given.checkpoint), CX_OK)
          << Message();
      report = Saved(session);
      EXPECT_EQ(report.code, CX_OK) << report.error;
      EXPECT_EQ(report.step, step);
      EXPECT_STRNE(report.checkpoint, "");
    }
  });
  RunAttempt(job, 1, 3, [&](int, cx_session session) {
    auto info = Init<cx_checkpoint_info>();
    ASSERT_EQ(InSlices([&](cx_call* call) {
                return Library().cx_checkpoint_load(session, "newest", &info,
                                                    call);
              }),
              CX_OK)
        << Message();
    EXPECT_EQ(info.step, 5);
    EXPECT_EQ(info.world_size, 2);
    EXPECT_STREQ(info.hook, "allreduce");
    std::map<std::string, std::string> metadata;
    for (size_t i = 0; i < info.metadata_count; ++i) {
      metadata[info.metadata[i].name] = info.metadata[i].value;
    }
    EXPECT_EQ(metadata["position/train"], "5");
    EXPECT_EQ(metadata["position/eval"], "7");
    EXPECT_THAT(
        Pieces(session),
        ElementsAre(Pair(".model of -1", "weights"), Pair("empty of -1", ""),
                    Pair("sampler of 0", "sampler 0"),
                    Pair("sampler of 1", "sampler 1")));
    EXPECT_EQ(Library().cx_checkpoint_release(session), CX_OK);
    auto piece = Init<cx_piece_info>();
    EXPECT_EQ(Library().cx_checkpoint_piece(session, 0, &piece),
              CX_FAILED_PRECONDITION);
    const std::string newest = info.id;
    ASSERT_EQ(Library().cx_checkpoint_find(session, "3", &info, nullptr), CX_OK)
        << Message();
    EXPECT_EQ(info.step, 3);
    ASSERT_EQ(Library().cx_checkpoint_at(session, 0, &info, nullptr), CX_OK);
    EXPECT_EQ(info.id, newest);
    EXPECT_GT(info.bytes, 0);
    EXPECT_GT(info.created_ms, 0);
    EXPECT_EQ(Library().cx_checkpoint_at(session, 2, &info, nullptr),
              CX_OUT_OF_RANGE);
    ASSERT_EQ(
        Library().cx_checkpoint_load(session, newest.c_str(), nullptr, nullptr),
        CX_OK)
        << Message();
    EXPECT_EQ(Library().cx_checkpoint_find(session, "4", &info, nullptr),
              CX_NOT_FOUND);
    EXPECT_THAT(Message(), AllOf(HasSubstr("'4'"), HasSubstr(newest)));
    // The second time, too, all of them agree.
    ASSERT_EQ(Library().cx_checkpoint_load(session, "newest", &info, nullptr),
              CX_OK)
        << Message();
    EXPECT_EQ(info.id, newest);
  });
}

TEST(CapiCheckpointTest, RanksAgreeAlsoAfterOneHasGivenUpWaiting) {
  RunAttempt("agreement", 0, 2, [&](int rank, cx_session session) {
    auto info = Init<cx_checkpoint_info>();
    if (rank == 1) {
      // Rank 0 does not come.
      cx_call call = 0;
      ASSERT_EQ(Library().cx_checkpoint_load(session, "newest", &info, &call),
                CX_AGAIN);
      EXPECT_EQ(Library().cx_cancel(&call), CX_OK);
    }
    ASSERT_EQ(Library().cx_barrier(session, "given up", 60000, nullptr), CX_OK)
        << Message();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Library().cx_checkpoint_load(session, "newest", &info, nullptr),
                CX_NOT_FOUND)
          << Message();
    }
  });
}

TEST(CapiCheckpointTest, AHookThatExchangesNothingHasNoState) {
  const Job job(1, "hook=powersgd");
  const Given given(1, 0, "weights");
  EXPECT_EQ(Library().cx_checkpoint_save(job[0], &given.checkpoint),
            CX_FAILED_PRECONDITION);
  EXPECT_THAT(Message(),
              AllOf(HasSubstr("powersgd"), HasSubstr("cx_exchange_open")));
}

TEST(CapiCheckpointTest, WrongArgumentsAreNamed) {
  const Job job(1);
  Given given(1, 0, "weights");
  const auto refused = [&](const char* what) {
    EXPECT_EQ(Library().cx_checkpoint_save(job[0], &given.checkpoint),
              CX_INVALID_ARGUMENT);
    EXPECT_THAT(Message(), HasSubstr(what));
  };
  given.checkpoint.flags = 2;
  refused("flags");
  given.checkpoint.flags = 0;
  given.checkpoint.step = -1;
  refused("step");
  given.checkpoint.step = 1;
  given.checkpoint.keep_last = -1;
  refused("keep_last");
  given.checkpoint.keep_last = 0;
  given.pieces[0].name = "";
  refused("pieces[0].name");
  given.pieces[0].name = "rank/0/model";
  refused("pieces[0].name");
  given.pieces[0].name = ".hook/train.2";
  refused("pieces[0].name");
  given.pieces[0].name = ".model";
  given.pieces[1].data = nullptr;
  refused("pieces[1].data");
  given.pieces[1].data = given.model.data();
  given.pieces[1].flags = 4;
  refused("pieces[1].flags");
  given.pieces[1].flags = 0;
  given.pieces[3] = given.pieces[0];
  refused("'.model' twice");
  given.checkpoint.piece_count = (1 << 20) + 1;
  refused("piece_count");
  EXPECT_EQ(Library().cx_checkpoint_save(job[0], nullptr), CX_INVALID_ARGUMENT);
  EXPECT_EQ(Library().cx_checkpoint_load(job[0], nullptr, nullptr, nullptr),
            CX_INVALID_ARGUMENT);
  EXPECT_EQ(Library().cx_checkpoint_at(job[0], -1, nullptr, nullptr),
            CX_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace coxswain::capi_test
