#include "base/nearest_word.h"

#include "gtest/gtest.h"

namespace coxswain {
namespace {

const std::vector<std::string> kKnown = {"run",  "serve", "status",
                                         "plan", "logs",  "powersgd"};

TEST(NearestWordTest, FindsWhatASlipAwayIs) {
  EXPECT_EQ(NearestWord("rnu", kKnown), "run");
  EXPECT_EQ(NearestWord("log", kKnown), "logs");
  EXPECT_EQ(NearestWord("statsu", kKnown), "status");
  EXPECT_EQ(NearestWord("sttaus", kKnown), "status");
  EXPECT_EQ(NearestWord("powresgd", kKnown), "powersgd");
  EXPECT_EQ(NearestWord("power_sgd", kKnown), "powersgd");
  EXPECT_EQ(NearestWord("plan", kKnown), "plan");
}

TEST(NearestWordTest, FindsNothingWhereNothingIsNear) {
  EXPECT_EQ(NearestWord("row", kKnown), "");
  EXPECT_EQ(NearestWord("", kKnown), "");
  EXPECT_EQ(NearestWord("x", {"a", "b"}), "");
  EXPECT_EQ(NearestWord("checkpoint", kKnown), "");
  EXPECT_EQ(NearestWord("run", {}), "");
  EXPECT_EQ(NearestWord(std::string(10000, 's'), kKnown), "");
}

TEST(NearestWordTest, TakesTheNearestAndOfSeveralTheFirst) {
  EXPECT_EQ(NearestWord("tls-cet", {"tls-key", "tls-cert"}), "tls-cert");
  EXPECT_EQ(NearestWord("aac", {"aaa", "aab"}), "aaa");
}

TEST(NearestWordTest, IsPutIntoErrors) {
  EXPECT_EQ(DidYouMean("rnu", kKnown), "; did you mean 'run'?");
  EXPECT_EQ(DidYouMean("row", kKnown), "");
}

}  // namespace
}  // namespace coxswain
