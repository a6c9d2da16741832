#include "server/http/shown_view.h"

#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace coxswain::server {
namespace {

using Reader = ShownView::Reader;

TEST(ShownViewTest, ReadersSeeWhatIsShownWhenTheyBegin) {
  const Components view{};
  ShownView shown;
  const Reader before(&shown);
  shown.Show(view);
  EXPECT_EQ(before.view(), nullptr);
  EXPECT_NE(Reader(&shown).view(), nullptr);
  shown.Hide();
  EXPECT_EQ(Reader(&shown).view(), nullptr);
}

TEST(ShownViewTest, HidingWaitsForThoseThatSeeItAndForNoOthers) {
  const Components view{};
  ShownView shown;
  const Reader before(&shown);
  shown.Show(view);
  auto during = std::make_unique<Reader>(&shown);
  ASSERT_NE(during->view(), nullptr);
  std::thread hider([&] { shown.Hide(); });
  while (Reader(&shown).view() != nullptr) std::this_thread::yield();
  const Reader after(&shown);
  // It is hidden, and stays valid for the reader that began before.
  EXPECT_NE(during->view(), nullptr);
  during.reset();
  // `before` and `after` go on, as requests without a break would.
  hider.join();
  EXPECT_EQ(after.view(), nullptr);
}

}  // namespace
}  // namespace coxswain::server
