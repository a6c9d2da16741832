#include "tests/bench/copy.h"

#include <string>

#include "gtest/gtest.h"

namespace coxswain::bench {
namespace {

TEST(StreamCopyTest, CopiesExactlyTheGivenBytes) {
  std::string from(1000, ' ');
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i);
  for (const size_t offset : {0, 1, 63}) {
    for (const size_t bytes : {0, 1, 63, 64, 65, 200, 640}) {
      std::string to(1000, 'x');
      StreamCopy(&to[offset], &from[7], bytes);
      std::string expected(1000, 'x');
      expected.replace(offset, bytes, from, 7, bytes);
      EXPECT_EQ(to, expected) << offset << ", " << bytes;
    }
  }
}

}  // namespace
}  // namespace coxswain::bench
