#include "server/http/shown_view.h"

#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace coxswain::server {
namespace {

using Visit = ShownView::Visit;

TEST(ShownViewTest, VisitsSeeWhatIsShownWhenTheyBegin) {
  const Components view{};
  ShownView shown;
  const Visit before(&shown);
  shown.Show(view);
  EXPECT_EQ(before.view(), nullptr);
  EXPECT_NE(Visit(&shown).view(), nullptr);
  shown.Hide();
  EXPECT_EQ(Visit(&shown).view(), nullptr);
}

TEST(ShownViewTest, HidingWaitsForThoseThatSeeItAndForNoOthers) {
  const Components view{};
  ShownView shown;
  const Visit before(&shown);
  shown.Show(view);
  auto during = std::make_unique<Visit>(&shown);
  ASSERT_NE(during->view(), nullptr);
  std::thread hider([&] { shown.Hide(); });
  while (Visit(&shown).view() != nullptr) std::this_thread::yield();
  const Visit after(&shown);
  // It is hidden, and still there for who has begun to look.
  EXPECT_NE(during->view(), nullptr);
  during.reset();
  // `before` and `after` go on, as visits without a break would.
  hider.join();
  EXPECT_EQ(after.view(), nullptr);
}

}  // namespace
}  // namespace coxswain::server
