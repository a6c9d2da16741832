#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

// The whole job was started again: workers of the start before are refused, and
// a later start ends what runs of an earlier one.
TEST(StaleAttemptTest, AnEarlierOneIsRefusedAndALaterOneTakesOver) {
  Crew crew;
  crew.Serve();
  const auto run = [](const char* attempt) {
    return std::vector<std::string>{"--attempt", attempt};
  };
  const auto current = crew.Start({"a", 2, run("2"), kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(2, 20));
  const auto stale = crew.Start({"b", 1, run("1"), kLongToy});
  ASSERT_TRUE(crew.Await("it is refused",
                         [&] { return crew.status(stale).has_value(); }));
  EXPECT_EQ(crew.status(stale), 1);
  EXPECT_THAT(crew.Transcript(), testing::HasSubstr("attempt"));
  ASSERT_TRUE(crew.AwaitSteps(2, 20)) << "the job was disturbed";

  const auto later = crew.Start({"c", 2, run("3"), kLongToy});
  ASSERT_TRUE(crew.Await("the earlier one ends",
                         [&] { return crew.status(current).has_value(); }));
  EXPECT_EQ(crew.status(current), 1);
  ASSERT_TRUE(crew.Await("the later one trains", [&] {
    const auto training = crew.Training();
    return training.size() == 2 && training[0]->worker == "c/0";
  }));
  ASSERT_TRUE(crew.AwaitSteps(2, 5));
  crew.EndTraining();
  crew.Finish({{current, 1}, {stale, 1}, {later, 0}});
  EXPECT_TRUE(crew.At("c/0")->result.has_value() &&
              crew.At("c/0")->result->exact);
}

}  // namespace
}  // namespace coxswain
