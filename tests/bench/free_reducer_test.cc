#include "tests/bench/free_reducer.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::bench {
namespace {

std::vector<ParameterSpec> ThreeParameters() {
  std::vector<ParameterSpec> parameters(3);
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].name = std::string(1, static_cast<char>('a' + i));
    parameters[i].shape = {static_cast<int64_t>(i) + 1, 5};
  }
  return parameters;
}

TEST(FreeReducerTest, TakesStepsInEveryMode) {
  for (const bool copies : {false, true}) {
    for (const bool statistics : {false, true}) {
      FreeReducer::Options options;
      options.copies = copies;
      options.statistics = statistics;
      ASSERT_OK_AND_ASSIGN(auto reducer,
                           FreeReducer::Create(options, ThreeParameters()));
      for (int step = 0; step < 3; ++step) {
        reducer->Copy();
        EXPECT_OK(reducer->Step());
      }
    }
  }
}

}  // namespace
}  // namespace coxswain::bench
