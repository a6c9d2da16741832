#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/page/static_files.h"

namespace coxswain::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadFile(const std::string& name) {
  std::ifstream file(absl::StrCat("server/http/page/", name), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(PageTest, HoldsTheFilesByteForByte) {
  for (const char* name : {"index.html", "style.css", "app.js", "icon.svg",
                           "js/dom.js", "js/format.js"}) {
    const std::string path =
        name == std::string("index.html") ? "/" : absl::StrCat("/", name);
    const auto file = FindStaticFile(path);
    ASSERT_TRUE(file.has_value()) << path;
    EXPECT_FALSE(file->content.empty()) << path;
    EXPECT_EQ(std::string(file->content), ReadFile(name)) << path;
  }
}

TEST(PageTest, SaysWhatTheyAre) {
  EXPECT_EQ(FindStaticFile("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(FindStaticFile("/style.css")->content_type,
            "text/css; charset=utf-8");
  EXPECT_EQ(FindStaticFile("/app.js")->content_type,
            "text/javascript; charset=utf-8");
  EXPECT_EQ(FindStaticFile("/icon.svg")->content_type, "image/svg+xml");
}

TEST(PageTest, KnowsNoOthers) {
  for (const char* path :
       {"", "/index.html", "/js", "/js/", "//", "/../app.js", "/app.js/"}) {
    EXPECT_FALSE(FindStaticFile(path).has_value()) << path;
  }
}

// The page has to work where no other host can be reached, and under a policy
// that allows no script and no style within the document.
TEST(PageTest, AsksNoOtherHostAndHasNothingInline) {
  const std::string html(FindStaticFile("/")->content);
  EXPECT_THAT(html, Not(HasSubstr("<style")));
  EXPECT_THAT(html, Not(HasSubstr("style=")));
  EXPECT_THAT(html, Not(HasSubstr(" onclick")));
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
  for (const char* path : {"/", "/style.css", "/app.js"}) {
    EXPECT_THAT(std::string(FindStaticFile(path)->content),
                Not(HasSubstr("//cdn")));
    EXPECT_FALSE(absl::StrContains(FindStaticFile(path)->content, "https://"))
        << path;
  }
}

}  // namespace
}  // namespace coxswain::server
