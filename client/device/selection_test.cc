#include "client/device/selection.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

HostGpus Host(int count) { return {count, count == 0 ? "no driver" : ""}; }

// Returns what the workers are shown, for as many as the request names.
absl::StatusOr<std::vector<std::string>> Visible(
    const std::string& text, const HostGpus& host,
    const std::optional<std::string>& visible = std::nullopt) {
  const auto request = ParseGpuRequest(text);
  if (!request.ok()) return request.status();
  const auto assigned = AssignGpus(*request, host, visible, request->count);
  if (!assigned.ok()) return assigned.status();
  EXPECT_EQ(assigned->devices.size(), assigned->visible.size());
  for (size_t i = 0; i < assigned->devices.size(); ++i) {
    EXPECT_EQ(assigned->devices[i], static_cast<int>(i));
  }
  return assigned->visible;
}

template <typename... Names>
void ExpectVisible(const absl::StatusOr<std::vector<std::string>>& visible,
                   Names... names) {
  ASSERT_THAT(visible, IsOk());
  EXPECT_THAT(*visible, ElementsAre(names...));
}

TEST(GpuRequestTest, ANumberIsHowMany) {
  ExpectVisible(Visible("1", Host(4)), "0");
  ExpectVisible(Visible("3", Host(4)), "0", "1", "2");
}

TEST(GpuRequestTest, AListIsWhichInTheOrderOfRanks) {
  ExpectVisible(Visible("2,0", Host(4)), "2", "0");
  ExpectVisible(Visible("3, 1", Host(4)), "3", "1");
}

TEST(GpuRequestTest, ACommaMakesOneNumberAList) {
  ExpectVisible(Visible("2,", Host(4)), "2");
  ExpectVisible(Visible("0,", Host(4)), "0");
}

TEST(GpuRequestTest, NoneIsTheCpuAlsoWhereThereAreGpus) {
  const auto request = ParseGpuRequest("none");
  ASSERT_THAT(request, IsOk());
  for (const int gpus : {0, 4}) {
    const auto assigned = AssignGpus(*request, Host(gpus), "0,1", 3);
    ASSERT_THAT(assigned, IsOk());
    EXPECT_THAT(assigned->visible, IsEmpty());
    EXPECT_THAT(assigned->devices, IsEmpty());
  }
}

TEST(GpuRequestTest, UuidsPassAsTheyAre) {
  ExpectVisible(Visible("GPU-8a5c,GPU-77aa", Host(2)), "GPU-8a5c", "GPU-77aa");
  ExpectVisible(Visible("MIG-GPU-8a5c/1/0", Host(2)), "MIG-GPU-8a5c/1/0");
}

TEST(GpuRequestTest, MalformedTextIsNamed) {
  for (const char* text : {"", ",", "a", "-1", "1;2", "1,,2", ",1", "1,2,x",
                           "all", "GPU-", "GPU-a b", "1.5", "99999999999"}) {
    EXPECT_THAT(
        ParseGpuRequest(text),
        StatusIs(kInvalid, AllOf(HasSubstr("as in 4"), HasSubstr("as in 2,0"),
                                 HasSubstr(absl::StrCat("not '", text, "'")))))
        << text;
  }
  EXPECT_THAT(ParseGpuRequest("0"),
              StatusIs(kInvalid, HasSubstr("0, with a comma")));
}

TEST(GpuRequestTest, TwoRanksDoNotShareAGpu) {
  EXPECT_THAT(ParseGpuRequest("2,0,2"),
              StatusIs(kInvalid, AllOf(HasSubstr("two ranks would share GPU 2"),
                                       HasSubstr("places 0 and 2"))));
  // CUDA would take the beginning of a UUID for all of it.
  EXPECT_THAT(ParseGpuRequest("GPU-8a5c,gpu-8A5C-11"),
              StatusIs(kInvalid, HasSubstr("share GPU gpu-8A5C-11")));
  EXPECT_THAT(ParseGpuRequest("1,GPU-8a5c"),
              StatusIs(kInvalid, HasSubstr("could be the same GPU")));
  EXPECT_THAT(ParseGpuRequest("1,11"), IsOk());
}

TEST(AssignGpusTest, NumbersCountWhatTheLauncherIsShown) {
  ExpectVisible(Visible("2", Host(8), "4,5,6"), "4", "5");
  ExpectVisible(Visible("2,0", Host(8), "4,5,6"), "6", "4");
  ExpectVisible(Visible("1,0", Host(2), "GPU-aa,GPU-bb"), "GPU-bb", "GPU-aa");
  ExpectVisible(Visible("GPU-bb", Host(2), "GPU-aa,GPU-bb0"), "GPU-bb");
  // It is unknown whether that is one of these.
  ExpectVisible(Visible("GPU-bb", Host(2), "0,1"), "GPU-bb");
}

TEST(AssignGpusTest, WhatIsHiddenFromTheLauncherIsNotThere) {
  EXPECT_THAT(
      Visible("3,", Host(8), "4,5,6"),
      StatusIs(kInvalid, AllOf(HasSubstr("there is no GPU 3"),
                               HasSubstr("CUDA_VISIBLE_DEVICES='4,5,6' shows 3 "
                                         "GPUs of this host's 8"))));
  EXPECT_THAT(Visible("GPU-cc", Host(2), "GPU-aa,GPU-bb"),
              StatusIs(kInvalid, HasSubstr("there is no GPU GPU-cc")));
  EXPECT_THAT(Visible("1", Host(2), ""),
              StatusIs(kInvalid, HasSubstr("shows 0 GPUs")));
  EXPECT_THAT(Visible("1", Host(2), "-1"),
              StatusIs(kInvalid, HasSubstr("shows 0 GPUs")));
  // As CUDA reads it: up to the first that names none.
  EXPECT_THAT(Visible("2", Host(4), "1,9,0"),
              StatusIs(kInvalid, HasSubstr("shows 1 GPU of this host's 4")));
  EXPECT_THAT(Visible("2", Host(4), "1,1"),
              StatusIs(kInvalid, HasSubstr("two ranks would share GPU 1")));
}

TEST(AssignGpusTest, ThereMustBeEnough) {
  EXPECT_THAT(Visible("4", Host(2)),
              StatusIs(kInvalid, AllOf(HasSubstr("asks for 4 GPUs"),
                                       HasSubstr("this host has 2 GPUs"))));
  EXPECT_THAT(Visible("0,4", Host(4)),
              StatusIs(kInvalid, AllOf(HasSubstr("there is no GPU 4"),
                                       HasSubstr("counted from 0"))));
  EXPECT_THAT(
      Visible("1", Host(0)),
      StatusIs(kInvalid, AllOf(HasSubstr("no GPU on this host: no driver"),
                               HasSubstr("--gpus none"))));
}

TEST(AssignGpusTest, EachLocalRankHasOne) {
  GpuRequest request;
  request.count = 2;
  EXPECT_THAT(AssignGpus(request, Host(8), std::nullopt, 3),
              StatusIs(kInvalid, HasSubstr("2 GPUs for 3 workers of --nproc")));
  EXPECT_THAT(AssignGpus(request, Host(8), std::nullopt, 1),
              StatusIs(kInvalid, AllOf(HasSubstr("2 GPUs for 1 worker"),
                                       HasSubstr("--gpus 2, with a comma"))));
  request.listed = {"3", "5"};
  EXPECT_THAT(AssignGpus(request, Host(8), std::nullopt, 1),
              StatusIs(kInvalid, AllOf(HasSubstr("leave --nproc out"),
                                       Not(HasSubstr("with a comma")))));
}

TEST(AssignGpusTest, AHostThatCannotBeCountedIsTrusted) {
  ExpectVisible(Visible("2", HostGpus()), "0", "1");
  ExpectVisible(Visible("7,", HostGpus()), "7");
  ExpectVisible(Visible("2", HostGpus(), "4,5"), "4", "5");
}

class CountHostGpusTest : public testing::Test {
 protected:
  CountHostGpusTest()
      : root_(absl::StrCat(
            testing::TempDir(), "/",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(root_ + "/dev");
  }

  void AddNode(const std::string& name) {
    std::ofstream(root_ + "/dev/" + name).put('x');
  }
  void AddKnown(const std::string& bus_id) {
    std::filesystem::create_directories(root_ + "/proc/driver/nvidia/gpus/" +
                                        bus_id);
  }

  const std::string root_;
};

TEST_F(CountHostGpusTest, WithoutADriverThereIsNone) {
  AddNode("null");
  AddNode("nvidiactl");
  AddNode("nvidia-uvm");
  EXPECT_EQ(CountHostGpus(root_).count, 0);
  EXPECT_THAT(CountHostGpus(root_).why_none, HasSubstr("no NVIDIA driver"));
  EXPECT_EQ(CountHostGpus(root_ + "/nowhere").count, 0);
}

TEST_F(CountHostGpusTest, ADriverCountsBeforeItsNodesAreMade) {
  AddKnown("0000:1b:00.0");
  AddKnown("0000:43:00.0");
  EXPECT_EQ(CountHostGpus(root_).count, 2);
}

TEST_F(CountHostGpusTest, AContainerHasTheNodesThatItWasGiven) {
  AddKnown("0000:1b:00.0");
  AddKnown("0000:43:00.0");
  AddNode("nvidia5");
  EXPECT_EQ(CountHostGpus(root_).count, 1);
}

TEST_F(CountHostGpusTest, NodesAloneCount) {
  AddNode("nvidia0");
  AddNode("nvidia1");
  AddNode("nvidia10");
  EXPECT_EQ(CountHostGpus(root_).count, 3);
}

TEST_F(CountHostGpusTest, UnderWslTheNumberIsUnknown) {
  AddNode("dxg");
  EXPECT_EQ(CountHostGpus(root_).count, std::nullopt);
}

}  // namespace
}  // namespace coxswain
