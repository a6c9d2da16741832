#include "client/torch/static_graph.h"

#include "base/status_matchers.h"

namespace coxswain::torch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Lets the gradients of these parameters arrive.
absl::StatusOr<std::vector<bool>> Pass(StaticGraph* graph,
                                       const std::vector<int>& arrivals) {
  graph->BeginPass();
  std::vector<bool> last;
  for (const int parameter : arrivals) {
    absl::StatusOr<bool> arrived = graph->Arrived(parameter);
    if (!arrived.ok()) return arrived.status();
    last.push_back(*arrived);
  }
  const absl::Status status = graph->EndPass();
  if (!status.ok()) return status;
  return last;
}

TEST(StaticGraphTest, KnowsTheLastArrivalFromTheSecondPassOn) {
  StaticGraph graph({"a", "b", "c"});
  EXPECT_FALSE(graph.learned());
  ASSERT_OK_AND_ASSIGN(const auto first, Pass(&graph, {2, 0, 2}));
  EXPECT_THAT(first, ElementsAre(false, false, false));
  EXPECT_TRUE(graph.learned());
  EXPECT_THAT(graph.order(), ElementsAre(0, 2));
  EXPECT_THAT(graph.absent(), ElementsAre(1));
  ASSERT_OK_AND_ASSIGN(const auto second, Pass(&graph, {2, 2, 0}));
  EXPECT_THAT(second, ElementsAre(false, true, true));
  // What was learned stays.
  EXPECT_THAT(graph.order(), ElementsAre(0, 2));
}

TEST(StaticGraphTest, APassThatDiffersIsAnErrorWithBothCounts) {
  StaticGraph graph({"a", "b"});
  ASSERT_OK(Pass(&graph, {0, 0}));
  EXPECT_THAT(Pass(&graph, {0}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("\"a\" got 1 gradients in this pass and 2")));
  EXPECT_THAT(Pass(&graph, {0, 0, 0}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("\"a\" got 3 or more"),
                             HasSubstr("set static_graph to false"))));
  EXPECT_THAT(Pass(&graph, {0, 0, 1}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("\"b\" got 1 or more")));
  EXPECT_OK(Pass(&graph, {0, 0}));
}

TEST(StaticGraphTest, APassThatBrokeOffIsForgotten) {
  StaticGraph graph({"a"});
  graph.BeginPass();
  ASSERT_OK(graph.Arrived(0));
  ASSERT_OK(Pass(&graph, {}));
  EXPECT_THAT(graph.order(), IsEmpty());
  EXPECT_THAT(graph.absent(), ElementsAre(0));
}

}  // namespace
}  // namespace coxswain::torch
