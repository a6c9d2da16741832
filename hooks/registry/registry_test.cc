#include "hooks/registry/registry.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/allreduce.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string ErrorOf(const char* spec) {
  const auto hook = MakeHook(spec);
  EXPECT_EQ(hook.status().code(), absl::StatusCode::kInvalidArgument) << spec;
  // Both functions return the same.
  EXPECT_EQ(CanonicalSpec(spec).status(), hook.status());
  return std::string(hook.status().message());
}

TEST(RegistryTest, EqualHooksHaveEqualCanonicalSpecs) {
  for (const auto& [spec, canonical] :
       {std::pair{"allreduce", "allreduce"},
        {" allreduce ( ) ", "allreduce"},
        {"fp16_compress", "fp16"},
        {"bf16_compress(order=divide_then_cast)", "bf16"},
        {"fp16(order=cast_then_divide)", "fp16(order=cast_then_divide)"},
        {"powersgd(rank=1,start_step=1000)", "powersgd"},
        {"powerSGD(seed=7, start_powerSGD_iter=10, "
         "matrix_approximation_rank=4)",
         "powersgd(rank=4,start_step=10,seed=7)"},
        {"power_sgd(use_error_feedback=False, warm_start=0, "
         "min_compression_rate=1.50, orthogonalization_epsilon=1e-08, "
         "start_step=0, random_seed=3)",
         "powersgd(start_step=0,min_compression_rate=1.5,error_feedback=false,"
         "warm_start=false,orthogonalization_epsilon=1e-08,seed=3)"},
        {"fp16( powersgd( rank = 4 ) )", "fp16(powersgd(rank=4))"},
        {"bf16_compress(fp16_compress(allreduce()))",
         "bf16(fp16(allreduce))"}}) {
    ASSERT_OK_AND_ASSIGN(const std::string text, CanonicalSpec(spec));
    EXPECT_EQ(text, canonical);
    ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook(spec));
    EXPECT_EQ(hook->spec(), canonical);
    // The canonical spec is its own.
    ASSERT_OK_AND_ASSIGN(const std::string again, CanonicalSpec(canonical));
    EXPECT_EQ(again, canonical);
  }
}

TEST(RegistryTest, UnknownHookListsTheHooks) {
  EXPECT_THAT(ErrorOf("fp16(powresgd)"),
              AllOf(HasSubstr("character 6"), HasSubstr("'powresgd'"),
                    HasSubstr("the hooks are "), HasSubstr("allreduce, "),
                    HasSubstr(", powersgd")));
}

TEST(RegistryTest, UnknownOptionListsTheValidOnes) {
  EXPECT_THAT(ErrorOf("powersgd(rnak=4)"),
              AllOf(HasSubstr("character 10"), HasSubstr("no option 'rnak'"),
                    HasSubstr("rank (1 to 1024)"),
                    HasSubstr("error_feedback (true or false)"),
                    HasSubstr("min_compression_rate (0 to 1000000)")));
  EXPECT_THAT(ErrorOf("fp16(rank=1)"),
              HasSubstr("order (divide_then_cast or cast_then_divide)"));
  EXPECT_THAT(ErrorOf("allreduce(rank=1)"), HasSubstr("it has none"));
}

TEST(RegistryTest, OutOfRangeNamesTheRangeAndTheValue) {
  EXPECT_THAT(ErrorOf("powersgd(rank=0)"),
              HasSubstr("rank must be between 1 and 1024, got 0"));
  EXPECT_THAT(ErrorOf("powersgd(matrix_approximation_rank=1025)"),
              HasSubstr("rank must be between 1 and 1024, got 1025"));
  EXPECT_THAT(ErrorOf("powersgd(rank=2.5)"),
              HasSubstr("rank must be a whole number between 1 and 1024, got "
                        "2.5"));
  EXPECT_THAT(ErrorOf("powersgd(min_compression_rate=nan)"),
              HasSubstr("got nan"));
  EXPECT_THAT(ErrorOf("powersgd(orthogonalization_epsilon=-1)"),
              HasSubstr("between 0 and 1, got -1"));
  EXPECT_THAT(ErrorOf("powersgd(warm_start=maybe)"),
              HasSubstr("warm_start must be true or false, got maybe"));
  EXPECT_THAT(ErrorOf("bf16(order=never)"),
              HasSubstr("divide_then_cast or cast_then_divide, got never"));
}

TEST(RegistryTest, OptionGivenTwiceIsAnErrorUnderAnyName) {
  EXPECT_THAT(ErrorOf("powersgd(rank=2,matrix_approximation_rank=2)"),
              HasSubstr("twice, as 'rank' and as 'matrix_approximation_rank'"));
  EXPECT_THAT(ErrorOf("powersgd(seed=1,seed=1)"), HasSubstr("seed is given"));
}

TEST(RegistryTest, MemoryNeedsTwoPlainSteps) {
  EXPECT_THAT(ErrorOf("powersgd(start_step=1)"),
              HasSubstr("start_step of at least 2, got 1"));
  EXPECT_THAT(ErrorOf("powersgd(start_step=1,warm_start=false)"),
              HasSubstr("at least 2"));
  EXPECT_OK(MakeHook("powersgd(start_step=2)"));
  EXPECT_OK(
      MakeHook("powersgd(start_step=0,warm_start=false,error_feedback=false)"));
}

TEST(RegistryTest, AnUnknownNameHasTheNearestOneAndHowOnesOwnAreKnown) {
  EXPECT_THAT(ErrorOf("fp16(powresgd)"),
              AllOf(HasSubstr("there is no hook 'powresgd'; the hooks are "
                              "acp_sgd, allreduce, "),
                    HasSubstr("; did you mean 'powersgd'?"),
                    HasSubstr("register it before they join")));
  EXPECT_THAT(ErrorOf("something_else"),
              AllOf(HasSubstr("the hooks are "), HasSubstr("RegisterHook"),
                    testing::Not(HasSubstr("did you mean"))));
  EXPECT_THAT(ErrorOf("powersgd(rnak=4)"), HasSubstr("did you mean 'rank'?"));
}

TEST(RegistryTest, InnerHooksOnlyWhereTheyBelong) {
  EXPECT_THAT(ErrorOf("powersgd(fp16)"), HasSubstr("takes no inner hook"));
  EXPECT_THAT(ErrorOf("powersgd(rank)"), HasSubstr("name=value"));
  EXPECT_THAT(ErrorOf("fp16(allreduce,bf16)"),
              HasSubstr("one inner hook, got 'allreduce' and 'bf16'"));
  EXPECT_THAT(ErrorOf("fp16(order=cast_then_divide,allreduce)"),
              HasSubstr("without an inner hook"));
  EXPECT_THAT(ErrorOf("fp16(powersgd(rank=0))"), HasSubstr("got 0"));
}

TEST(RegistryTest, AWrapperNeedsItsHook) {
  EXPECT_THAT(ErrorOf("stats"),
              AllOf(HasSubstr("character 1"),
                    HasSubstr("stats wraps another hook and needs one, as in "
                              "stats(allreduce)")));
  EXPECT_THAT(ErrorOf("fp16(stats(every=10))"),
              AllOf(HasSubstr("character 6"), HasSubstr("needs one")));
  // These are hooks by themselves.
  EXPECT_EQ(*CanonicalSpec("fp16()"), "fp16");
  EXPECT_EQ(*CanonicalSpec("stats(fp16(powersgd(rank=4)))"),
            "stats(fp16(powersgd(rank=4)))");
}

// Returns a spec of this hook with these arguments, and an inner hook if it
// needs one.
std::string SpecOf(const HookDescription& hook, const std::string& name,
                   std::string arguments = "") {
  if (hook.needs_inner) arguments += arguments.empty() ? "noop" : ",noop";
  return arguments.empty() ? name : name + "(" + arguments + ")";
}

TEST(RegistryTest, ListHasWhatTheParserTakes) {
  const std::vector<HookDescription> hooks = ListHooks();
  EXPECT_TRUE(std::is_sorted(
      hooks.begin(), hooks.end(),
      [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const HookDescription& hook : hooks) {
    SCOPED_TRACE(hook.name);
    const std::string plain = SpecOf(hook, hook.name);
    EXPECT_EQ(*CanonicalSpec(plain), plain);
    for (const std::string& alias : hook.aliases) {
      EXPECT_EQ(*CanonicalSpec(SpecOf(hook, alias)), plain);
    }
    for (const OptionDescription& option : hook.options) {
      const std::string given = option.name + "=" + option.DefaultText();
      EXPECT_EQ(*CanonicalSpec(SpecOf(hook, hook.name, given)), plain);
    }
  }
}

TEST(RegistryTest, EveryHookHasACompleteCardAndEveryOptionItsHelp) {
  for (const HookDescription& hook : ListHooks()) {
    SCOPED_TRACE(hook.name);
    EXPECT_NE(hook.help, "");
    EXPECT_NE(hook.card.bytes, "");
    EXPECT_NE(hook.card.collectives, "");
    EXPECT_NE(hook.card.memory, "");
    EXPECT_NE(hook.card.numerics, "");
    EXPECT_NE(hook.card.avoid, "");
    for (const OptionDescription& option : hook.options) {
      EXPECT_NE(option.help, "") << option.name;
      EXPECT_NE(option.RangeText(), "") << option.name;
    }
  }
}

// Returns a row for a program's own hook, which is allreduce by another name.
HookRow OwnRow(const std::string& name) {
  HookRow row = AllReduceRow();
  row.description.name = name;
  row.description.options = {IntOption("start_step", 5, 0, 10, "a start")};
  return row;
}

TEST(RegistryTest, AProgramsOwnHookIsAHookLikeAnyOther) {
  HookRow row = OwnRow("my_own");
  row.description.aliases = {"mine"};
  ASSERT_OK(RegisterHook(row));
  EXPECT_EQ(*CanonicalSpec("mine(start_step=5)"), "my_own");
  EXPECT_EQ(*CanonicalSpec("stats(fp16(mine(start_step=3)))"),
            "stats(fp16(my_own(start_step=3)))");
  EXPECT_EQ(*WithStartStep("fp16(mine)", 7), "fp16(my_own(start_step=7))");
  ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook("bf16(mine)"));
  EXPECT_EQ(hook->spec(), "bf16(my_own)");
  EXPECT_THAT(ErrorOf("nobodys"), HasSubstr("my_own"));
  EXPECT_THAT(ErrorOf("mine(start_step=11)"), HasSubstr("between 0 and 10"));
  std::vector<std::string> names;
  for (const auto& listed : ListHooks()) names.push_back(listed.name);
  EXPECT_THAT(names, testing::Contains("my_own"));
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
}

TEST(RegistryTest, ANameThatIsTakenStaysWithItsHook) {
  EXPECT_THAT(RegisterHook(OwnRow("allreduce")),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("the name 'allreduce' belongs to")));
  HookRow row = OwnRow("nearly_own");
  row.description.aliases = {"power_sgd"};
  EXPECT_THAT(RegisterHook(row),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("belongs to hook powersgd")));
  EXPECT_THAT(ErrorOf("nearly_own"), HasSubstr("there is no hook"));
}

TEST(RegistryTest, ARowThatMakesNoSenseIsRefused) {
  HookRow no_name = OwnRow("my hook");
  HookRow no_make = OwnRow("unmade");
  no_make.make = nullptr;
  HookRow no_place = OwnRow("no_place");
  no_place.description.needs_inner = true;
  HookRow no_default = OwnRow("no_default");
  no_default.description.options[0].int_maximum = 4;
  for (const HookRow& row : {no_name, no_make, no_place, no_default}) {
    EXPECT_THAT(RegisterHook(row),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("'" + row.description.name +
                                   "' cannot be registered")));
  }
}

TEST(RegistryTest, HooksAreRegisteredAndNamedByManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> registered{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&registered, i] {
      for (int k = 0; k < 20; ++k) {
        const std::string name = "hook_" + std::to_string(k);
        if (RegisterHook(OwnRow(name)).ok()) ++registered;
        EXPECT_OK(CanonicalSpec("fp16(" + name + ")")) << i;
        EXPECT_FALSE(ListHooks().empty());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registered, 20);
}

class OwnAverager : public Averager {
 public:
  explicit OwnAverager(std::string spec) : spec_(std::move(spec)) {}
  std::string spec() const override { return spec_; }
  absl::Status Configure(const std::vector<ParameterSpec>&,
                         const std::vector<Span>&, Communicator&) override {
    return absl::OkStatus();
  }
  absl::Status AfterOptimizerStep(const std::vector<Span>&) override {
    return absl::OkStatus();
  }
  absl::Status AverageNow(const std::vector<Span>&) override {
    return absl::OkStatus();
  }
  int64_t step() const override { return 0; }
  bool averages_next() const override { return false; }
  bool diverged() const override { return false; }
  absl::StatusOr<HookState> SaveState(Communicator&) override {
    return HookState();
  }
  absl::Status LoadState(const HookState&, int, int) override {
    return absl::OkStatus();
  }

 private:
  const std::string spec_;
};

TEST(RegistryTest, TheAveragerOfAWrappedHookIsFound) {
  HookRow row = OwnRow("averaging");
  row.make_averager = [](std::string spec, const OptionValues&) {
    return std::make_unique<OwnAverager>(std::move(spec));
  };
  ASSERT_OK(RegisterHook(row));
  for (const char* spec : {"averaging", "stats(fp16(averaging))"}) {
    ASSERT_OK_AND_ASSIGN(const auto averager, MakeAverager(spec));
    ASSERT_NE(averager, nullptr);
    EXPECT_EQ(averager->spec(), "averaging");
  }
  ASSERT_OK_AND_ASSIGN(const auto none, MakeAverager("stats(allreduce)"));
  EXPECT_EQ(none, nullptr);
  EXPECT_THAT(MakeAverager("stats"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs")));
}

}  // namespace
}  // namespace coxswain
