#include "client/reduce/agreement.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/reduce/counted_buffers_for_test.h"
#include "gtest/gtest.h"

namespace coxswain::agreement_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

using Lines = std::vector<std::string>;

constexpr absl::Duration kSoon = absl::Seconds(20);

// Returns what each rank gets, given its lines.
std::vector<absl::Status> Check(const std::vector<Lines>& lines,
                                std::vector<int64_t>* collectives = nullptr,
                                const AgreementWords& words = {}) {
  const auto world = InProcessWorld::Create(static_cast<int>(lines.size()));
  std::vector<absl::Status> results(lines.size());
  std::vector<int64_t> counts(lines.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto communicator = world->MakeRank(static_cast<int>(rank));
      results[rank] = CheckAgreement(*communicator, lines[rank], kSoon, words);
      counts[rank] = communicator->sequence();
    });
  }
  for (auto& thread : threads) thread.join();
  if (collectives != nullptr) *collectives = counts;
  return results;
}

ParameterSpec Convolution() {
  ParameterSpec parameter;
  parameter.name = "conv.weight";
  parameter.shape = {64, 3, 7, 7};
  return parameter;
}

// Returns a model and its options.
Lines Description(const ParameterSpec& convolution = Convolution()) {
  ParameterSpec bias;
  bias.name = "conv.bias";
  bias.shape = {64};
  return {DescribeParameter(0, convolution), DescribeParameter(1, bias),
          "hook: allreduce", "bucket bytes: 26214400"};
}

TEST(AgreementTest, DescribesAParameterOnOneLine) {
  ParameterSpec parameter = Convolution();
  EXPECT_EQ(DescribeParameter(3, parameter),
            "parameter 3 \"conv.weight\": float32 [64, 3, 7, 7]");
  parameter.dtype = DType::kBFloat16;
  parameter.strides = {147, 1, 21, 3};
  EXPECT_EQ(DescribeParameter(3, parameter),
            "parameter 3 \"conv.weight\": bfloat16 [64, 3, 7, 7] strides "
            "[147, 1, 21, 3]");
  EXPECT_EQ(DescribeParameter(0, ParameterSpec()),
            "parameter 0 \"\": float32 []");
}

TEST(AgreementTest, RowMajorStridesAreLeftOut) {
  const auto describe = [](std::vector<int64_t> shape,
                           std::vector<int64_t> strides) {
    ParameterSpec parameter;
    parameter.shape = std::move(shape);
    parameter.strides = std::move(strides);
    return DescribeParameter(0, parameter);
  };
  EXPECT_THAT(describe({64, 3, 7, 7}, {147, 49, 7, 1}),
              Not(HasSubstr("strides")));
  // There is no second step along an extent of 1, nor any in no elements.
  EXPECT_THAT(describe({64, 3, 1, 1}, {3, 1, 3, 3}), Not(HasSubstr("strides")));
  EXPECT_THAT(describe({5, 0, 2}, {9, 9, 9}), Not(HasSubstr("strides")));
  EXPECT_THAT(describe({4, 3}, {1, 4}), HasSubstr("strides [1, 4]"));
  EXPECT_THAT(describe({4, 3}, {6, 2}), HasSubstr("strides [6, 2]"));
  // Nonsense is shown as it is.
  EXPECT_THAT(describe({4, 3}, {1}), HasSubstr("strides [1]"));
}

TEST(AgreementTest, OneRankAgreesWithItself) {
  LoopbackCommunicator communicator;
  EXPECT_OK(CheckAgreement(communicator, Description(), kSoon));
  EXPECT_EQ(communicator.sequence(), 0);
}

TEST(AgreementTest, EqualLinesCostOneSmallCollective) {
  for (int size = 2; size <= 4; ++size) {
    std::vector<int64_t> collectives;
    EXPECT_THAT(Check(std::vector<Lines>(size, Description()), &collectives),
                Each(IsOk()));
    EXPECT_THAT(collectives, Each(1));
  }
  EXPECT_THAT(Check({{}, {}}), Each(IsOk()));
}

TEST(AgreementTest, ADifferentParameterIsShownOnBothSides) {
  const auto change = [](const std::function<void(ParameterSpec*)>& edit) {
    ParameterSpec parameter = Convolution();
    edit(&parameter);
    return parameter;
  };
  const ParameterSpec others[] = {
      change([](auto* parameter) { parameter->name = "conv.wait"; }),
      change([](auto* parameter) { parameter->shape[3] = 5; }),
      change([](auto* parameter) {
        parameter->strides = {147, 1, 21, 3};
      }),
      change([](auto* parameter) { parameter->dtype = DType::kFloat64; }),
  };
  for (const ParameterSpec& other : others) {
    const auto results = Check({Description(), Description(other)});
    EXPECT_THAT(
        results,
        Each(StatusIs(
            absl::StatusCode::kFailedPrecondition,
            AllOf(HasSubstr("rank 1 differs from rank 0"),
                  HasSubstr("\n  only rank 0: " + Description()[0] + "\n"),
                  HasSubstr("\n  only rank 1: " + Description(other)[0]),
                  // What is equal is not of interest.
                  Not(HasSubstr("conv.bias")), Not(HasSubstr("allreduce"))))));
  }
}

TEST(AgreementTest, AMissingLineIsShownOnItsSideOnly) {
  Lines shorter = Description();
  shorter.erase(shorter.begin() + 2);
  for (const bool zero_lacks_it : {false, true}) {
    auto lines = std::vector<Lines>{Description(), shorter};
    if (zero_lacks_it) std::swap(lines[0], lines[1]);
    const std::string has = zero_lacks_it ? "only rank 1: " : "only rank 0: ";
    const std::string lacks = zero_lacks_it ? "only rank 0: " : "only rank 1: ";
    EXPECT_THAT(Check(lines),
                Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr(has + "hook: allreduce"),
                                    Not(HasSubstr(lacks))))));
  }
}

TEST(AgreementTest, OneRankOfFourDiffers) {
  for (int different = 0; different < 4; ++different) {
    std::vector<Lines> lines(4, Description());
    lines[different].push_back("clip: 1");
    const std::string names =
        different == 0 ? "ranks 1, 2, 3 differ from rank 0"
                       : absl::StrCat("rank ", different, " differs from rank");
    const auto results = Check(lines);
    EXPECT_THAT(results,
                Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr(names), HasSubstr("clip: 1")))));
  }
}

TEST(AgreementTest, EachRankSeesItsOwnDifferenceAndRankZeroTheFirstOne) {
  std::vector<Lines> lines(4, {"hook: allreduce"});
  lines[2] = {"hook: fp16"};
  lines[3] = {"hook: bf16"};
  const auto results = Check(lines);
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("ranks 2, 3 differ"))));
  EXPECT_THAT(std::string(results[0].message()),
              AllOf(HasSubstr("only rank 2: hook: fp16"),
                    Not(HasSubstr("hook: bf16"))));
  EXPECT_THAT(std::string(results[2].message()),
              HasSubstr("only rank 2: hook: fp16"));
  EXPECT_THAT(std::string(results[3].message()),
              AllOf(HasSubstr("only rank 3: hook: bf16"),
                    Not(HasSubstr("hook: fp16"))));
}

TEST(AgreementTest, TheFirstFewOfManyLinesAreShownAndTheOthersCounted) {
  Lines zero = {"same"};
  Lines one = {"same"};
  for (int i = 0; i < 1000; ++i) {
    zero.push_back(absl::StrCat("zero ", i));
    if (i < 6) one.push_back(absl::StrCat("one ", i, std::string(5000, '!')));
  }
  for (const absl::Status& status : Check({zero, one})) {
    const std::string message(status.message());
    EXPECT_THAT(
        message,
        AllOf(HasSubstr("only rank 0: zero 4\n"), Not(HasSubstr("zero 5")),
              HasSubstr("only rank 0: ... and 995 more"),
              HasSubstr("only rank 1: one 4!"), Not(HasSubstr("one 5")),
              HasSubstr("only rank 1: ... and 1 more")));
    EXPECT_LT(message.size(), 3000);
  }
}

TEST(AgreementTest, ManyRanksAreNotAllNamed) {
  std::vector<Lines> lines(20, Lines{"a"});
  for (size_t rank = 1; rank < 20; ++rank) lines[rank] = {"b"};
  EXPECT_THAT(Check(lines), Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("15, 16 and 3 more "
                                                    "differ"))));
}

TEST(AgreementTest, AnotherOrderOrAnotherNumberIsADifference) {
  EXPECT_THAT(Check({{"x", "a", "b"}, {"x", "b", "a"}}),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            AllOf(HasSubstr("another order, from line 1 on"),
                                  HasSubstr("rank 0: a; rank 1: b")))));
  EXPECT_THAT(Check({{"a", "a"}, {"a"}}),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("only rank 0: a"))));
  // Where lines begin and end counts.
  EXPECT_THAT(Check({{"ab", "c"}, {"a", "bc"}}),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("only rank 1: bc"))));
  EXPECT_THAT(Check({{}, {""}}),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("only rank 1: "))));
}

TEST(AgreementTest, APeersBytesAreEscaped) {
  EXPECT_THAT(Check({{"a \"quoted\" \\ line"}, {"two\nlines \xff\x01"}}),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            AllOf(HasSubstr("a \"quoted\" \\ line"),
                                  HasSubstr("two\\nlines \\xff\\x01")))));
}

TEST(AgreementTest, LinesBeyondTheLimitAreNotSentButCompared) {
  Lines zero(2, std::string(9 << 20, 'z'));
  Lines one = zero;
  one[1].back() = '!';
  EXPECT_THAT(Check({zero, one}),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("rank 1 differs"))));
}

// Rank 1 of two, with a rank 0 that sends what the test wants.
class LyingRoot : public Communicator {
 public:
  LyingRoot(int64_t announced, std::string bytes)
      : Communicator(1, 2), announced_(announced), bytes_(std::move(bytes)) {}

  // Sends that it has the same as this rank, after all.
  bool recants = false;

  absl::string_view backend() const override { return "lying"; }
  void Abort(absl::string_view) override {}
  int64_t wire_bytes() const override { return 0; }

 protected:
  WorkPtr DoAllReduce(Span span, ReduceOp op) override {
    // The hashes. The flags are summed up.
    if (op == ReduceOp::kMax) {
      hash_ = *static_cast<int64_t*>(span.data);
      *static_cast<int64_t*>(span.data) ^= 1;
    }
    return Work::Ended(absl::OkStatus());
  }
  WorkPtr DoBroadcast(Span span, int root) override {
    if (root == rank()) return Work::Ended(absl::OkStatus());
    if (span.dtype == DType::kInt64) {
      static_cast<int64_t*>(span.data)[0] = recants ? hash_ : 0;
      static_cast<int64_t*>(span.data)[1] = announced_;
    } else {
      EXPECT_EQ(span.bytes(), static_cast<int64_t>(bytes_.size()));
      std::memcpy(span.data, bytes_.data(), bytes_.size());
    }
    return Work::Ended(absl::OkStatus());
  }
  WorkPtr DoAgree(const CollectiveHeader&) override {
    return Work::Ended(absl::OkStatus());
  }

 private:
  const int64_t announced_;
  const std::string bytes_;
  int64_t hash_ = 0;
};

TEST(AgreementTest, MessagesHaveTheCallersWords) {
  EXPECT_THAT(Check({{"red"}, {"blue"}}, nullptr, {"colours", {3, 7}}),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            "the ranks must have the same colours, but rank 7 "
                            "differs from rank 3:\n  only rank 3: red\n  only "
                            "rank 7: blue")));
  EXPECT_THAT(Check({{"a", "b"}, {"b", "a"}}, nullptr, {"letters", {3, 7}}),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("rank 3: a; rank 7: b"))));
}

TEST(AgreementTest, APeersLengthHasALimit) {
  for (const int64_t length :
       {int64_t{-1}, int64_t{16777217}, std::numeric_limits<int64_t>::max()}) {
    LyingRoot communicator(length, "");
    EXPECT_THAT(CheckAgreement(communicator, Description(), kSoon),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(absl::StrCat(length, " bytes")),
                               HasSubstr("at most 16777216"))));
  }
}

TEST(AgreementTest, APeersNonsenseIsADifference) {
  const std::string line("\x04\0\0\0good", 8);
  for (const std::string& end :
       {std::string(""), std::string("\1\0", 2), std::string("\1\0\0\0", 4),
        std::string("\xff\xff\xff\xff...", 7)}) {
    LyingRoot communicator(static_cast<int64_t>(8 + end.size()), line + end);
    EXPECT_THAT(CheckAgreement(communicator, {"better"}, kSoon),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("only rank 0: good\n"),
                               HasSubstr("only rank 1: better"))));
  }
}

TEST(AgreementTest, ADifferenceThatNoRankFindsIsAnErrorAllTheSame) {
  LyingRoot communicator(0, "");
  communicator.recants = true;
  EXPECT_THAT(CheckAgreement(communicator, Description(), kSoon),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("no rank differs from rank 0")));
}

TEST(AgreementTest, AnErrorOfTheCommunicatorIsReturnedAsItIs) {
  HeldCommunicator failing(InProcessWorld::Create(2)->MakeRank(0));
  failing.Fail(0, absl::UnavailableError("the line went dead"));
  failing.Open();
  EXPECT_THAT(CheckAgreement(failing, Description(), kSoon),
              StatusIs(absl::StatusCode::kUnavailable, "the line went dead"));
}

// One of two ranks, whose collectives end when the test ends them.
class DeafCommunicator : public CountedBuffers<Communicator> {
 public:
  DeafCommunicator() : CountedBuffers(0, 2) {}

  absl::string_view backend() const override { return "deaf"; }
  void Abort(absl::string_view) override {}
  int64_t wire_bytes() const override { return 0; }

  const WorkPtr work = std::make_shared<Work>();

 protected:
  WorkPtr DoAllReduce(Span, ReduceOp) override { return work; }
  WorkPtr DoBroadcast(Span, int) override { return work; }
  WorkPtr DoAgree(const CollectiveHeader&) override { return work; }
};

TEST(AgreementTest, PastItsTimeoutACollectiveKeepsItsMemoryUntilItEnds) {
  DeafCommunicator communicator;
  EXPECT_THAT(
      CheckAgreement(communicator, Description(), absl::Milliseconds(10)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("10ms")));
  EXPECT_EQ(communicator.buffers, 1);
  communicator.work->Complete(absl::AbortedError("at last"));
  EXPECT_EQ(communicator.buffers, 0);
}

// ---- digests ----

Bucket BucketOf(const std::vector<GradientSlot>& gradients,
                DType dtype = DType::kFloat32) {
  Bucket bucket;
  bucket.data.dtype = dtype;
  bucket.gradients = gradients;
  return bucket;
}

TEST(HashLayoutTest, DependsOnOrderPlaceSizeTypeAndDivision) {
  const GradientSlot a = {0, 0, 4};
  const GradientSlot b = {1, 4, 6};
  const std::set<uint64_t> hashes = {
      HashLayout({}),
      HashLayout({BucketOf({a, b})}),
      HashLayout({BucketOf({a}), BucketOf({b})}),
      HashLayout({BucketOf({b}), BucketOf({a})}),
      HashLayout({BucketOf({a, b}), BucketOf({})}),
      HashLayout({BucketOf({a, b}, DType::kFloat64)}),
      HashLayout({BucketOf({{1, 0, 4}, {0, 4, 6}})}),
      HashLayout({BucketOf({{0, 0, 4}, {1, 5, 6}})}),
      HashLayout({BucketOf({{0, 0, 4}, {1, 4, 7}})}),
  };
  EXPECT_EQ(hashes.size(), 9u);
  EXPECT_EQ(HashLayout({BucketOf({a, b})}), HashLayout({BucketOf({a, b})}));
}

StepReport ReportOf(int64_t step, int64_t bytes, double norm) {
  StepReport report;
  report.step = step;
  report.buckets.resize(1);
  report.buckets[0].gradient_bytes = bytes;
  report.gradient_norm = norm;
  return report;
}

uint64_t DigestOf(const std::vector<StepReport>& reports,
                  int64_t collectives = 1, bool same_averages = true) {
  StepDigest digest;
  for (const StepReport& report : reports) {
    digest.Add(report, collectives, same_averages);
  }
  return digest.value();
}

TEST(StepDigestTest, DependsOnWhatWasExchangedAndInWhichOrder) {
  StepReport empty = ReportOf(1, 8, 1.5);
  empty.empty = true;
  StepReport non_finite = ReportOf(1, 8, 1.5);
  non_finite.non_finite = 3;
  const StepReport one = ReportOf(1, 8, 1.5);
  const StepReport other = ReportOf(1, 16, 1.5);
  const std::set<uint64_t> digests = {
      DigestOf({}),
      DigestOf({one}),
      DigestOf({one, one}),
      DigestOf({one}, 2),
      DigestOf({other}),
      DigestOf({one, other}),
      DigestOf({other, one}),
      DigestOf({ReportOf(2, 8, 1.5)}),
      DigestOf({ReportOf(1, 8, std::nextafter(1.5, 2))}),
      DigestOf({empty}),
      DigestOf({non_finite}),
  };
  EXPECT_EQ(digests.size(), 11u);
}

TEST(StepDigestTest, ExcludesWhatMayDifferBetweenRanks) {
  EXPECT_EQ(DigestOf({ReportOf(1, 8, 1)}, 1, /*same_averages=*/false),
            DigestOf({ReportOf(1, 8, 2)}, 1, /*same_averages=*/false));
  StepReport timed = ReportOf(1, 8, 1);
  timed.waited = absl::Seconds(1);
  timed.buckets[0].payload_bytes = 5;
  EXPECT_EQ(DigestOf({timed}), DigestOf({ReportOf(1, 8, 1)}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(DigestOf({ReportOf(1, 8, nan)}), DigestOf({ReportOf(1, 8, -nan)}));
}

}  // namespace
}  // namespace coxswain::agreement_test
