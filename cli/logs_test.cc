#include "cli/logs.h"

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

v1::JournalEvent Event(int64_t sequence, const std::string& name) {
  v1::JournalEvent event;
  event.set_sequence(sequence);
  event.set_unix_us(1'700'000'000'000'000);
  event.set_level("warning");
  event.set_event(name);
  event.set_job("mnist");
  event.set_generation(4);
  event.set_rank(1);
  event.set_step(-1);
  v1::JournalField* const field = event.add_fields();
  field->set_key("reason");
  field->set_value("exit code 7");
  return event;
}

v1::JournalPage Page(int64_t term, const std::vector<v1::JournalEvent>& events,
                     bool gap = false) {
  v1::JournalPage page;
  page.set_term(term);
  page.set_gap(gap);
  for (const v1::JournalEvent& event : events) *page.add_events() = event;
  return page;
}

// Plays a coordinator from two lists: the answers to Read, and the streams.
class ScriptedJournal : public JournalStub {
 public:
  struct Stream {
    std::vector<v1::JournalPage> pages;
    absl::Status end;
  };

  absl::StatusOr<v1::JournalPage> Read(const v1::JournalRequest& request,
                                       const CallOptions&) override {
    asked.push_back(request);
    if (reads.empty()) return Page(1, {});
    auto next = reads.front();
    reads.pop_front();
    return next;
  }
  std::unique_ptr<JournalStream> Follow(const v1::JournalRequest& request,
                                        const CallOptions& options) override {
    asked.push_back(request);
    if (streams.empty()) {
      options.cancel->Raise(absl::CancelledError("seen enough"));
      return std::make_unique<Played>(Stream{{}, absl::CancelledError("")});
    }
    Stream next = streams.front();
    streams.pop_front();
    return std::make_unique<Played>(std::move(next));
  }
  std::string address() const override { return "head:7077"; }

  std::deque<absl::StatusOr<v1::JournalPage>> reads;
  std::deque<Stream> streams;
  std::vector<v1::JournalRequest> asked;

 private:
  class Played : public JournalStream {
   public:
    explicit Played(Stream stream) : stream_(std::move(stream)) {}
    bool Read(v1::JournalPage* page) override {
      if (at_ == stream_.pages.size()) return false;
      *page = stream_.pages[at_++];
      return true;
    }
    absl::Status Finish() override { return stream_.end; }

   private:
    const Stream stream_;
    size_t at_ = 0;
  };
};

class LogsTest : public testing::Test {
 protected:
  absl::Status Show() {
    LogsWorld world;
    world.stub = &journal_;
    world.stop = &stop_;
    world.write = [this](const std::string& lines) {
      shown_ += lines;
      return !closed_;
    };
    world.remark = [this](const std::string& text) {
      remarks_.push_back(text);
    };
    world.retry.base = absl::ZeroDuration();
    world.retry.cap = absl::ZeroDuration();
    return ShowLogs(options_, world);
  }

  ScriptedJournal journal_;
  CancelSignal stop_;
  LogsOptions options_;
  std::string shown_;
  bool closed_ = false;
  std::vector<std::string> remarks_;
};

TEST_F(LogsTest, AnEventLooksAsInTheLog) {
  journal_.reads = {Page(1, {Event(3, "member_lost")}), Page(1, {})};
  EXPECT_OK(Show());
  EXPECT_THAT(shown_, HasSubstr(" W member_lost job=mnist generation=4 rank=1 "
                                "reason=\"exit code 7\"\n"));
}

TEST_F(LogsTest, InJsonItIsAnObjectInALine) {
  options_.json = true;
  journal_.reads = {Page(1, {Event(3, "member_lost")}), Page(1, {})};
  EXPECT_OK(Show());
  const auto json = nlohmann::json::parse(shown_);
  EXPECT_EQ(json["sequence"], 3);
  EXPECT_EQ(json["reason"], "exit code 7");
}

TEST_F(LogsTest, AllPagesAreReadOn) {
  options_.job = "mnist";
  options_.since = absl::Minutes(5);
  journal_.reads = {Page(2, {Event(1, "joined")}), Page(2, {Event(7, "left")}),
                    Page(2, {})};
  EXPECT_OK(Show());
  EXPECT_THAT(shown_, HasSubstr(" joined "));
  EXPECT_THAT(shown_, HasSubstr(" left "));
  ASSERT_EQ(journal_.asked.size(), 3);
  EXPECT_EQ(journal_.asked[0].job(), "mnist");
  EXPECT_EQ(journal_.asked[0].since_ms(), 300'000);
  EXPECT_EQ(journal_.asked[2].after(), 7);
  EXPECT_EQ(journal_.asked[2].term(), 2);
  EXPECT_THAT(remarks_, IsEmpty());
}

TEST_F(LogsTest, NothingIsSaidToBeNothing) {
  options_.job = "mnist";
  EXPECT_OK(Show());
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("no such events of job mnist")));
}

TEST_F(LogsTest, ACoordinatorThatIsNotThereAtFirstIsAnError) {
  options_.follow = true;
  journal_.reads = {absl::UnavailableError("connection refused")};
  EXPECT_THAT(Show(), StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("head:7077 did not show")));
}

TEST_F(LogsTest, FollowsOverARestartAndSaysSo) {
  options_.follow = true;
  journal_.reads = {Page(1, {Event(5, "joined")}), Page(1, {}),
                    absl::UnavailableError("refused"),
                    Page(2, {Event(1, "resumed")}), Page(2, {})};
  journal_.streams = {
      {{Page(1, {Event(6, "attached")})}, absl::DeadlineExceededError("")},
      {{}, absl::UnavailableError("reset")}};
  EXPECT_OK(Show());
  EXPECT_THAT(shown_, HasSubstr(" attached "));
  EXPECT_THAT(shown_, HasSubstr(" resumed "));
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("cannot be reached: reset"),
                                    HasSubstr("started again (term 2)")));
  EXPECT_EQ(journal_.asked.back().after(), 1);
  EXPECT_EQ(journal_.asked.back().term(), 2);
}

TEST_F(LogsTest, AStreamThatAProxyCutsIsFollowedOn) {
  options_.follow = true;
  journal_.reads = {Page(1, {Event(5, "joined")}), Page(1, {}),
                    Page(1, {Event(6, "attached")}), Page(1, {})};
  journal_.streams = {{{}, absl::UnknownError("stream removed")}};
  EXPECT_OK(Show());
  EXPECT_THAT(shown_, HasSubstr(" attached "));
  EXPECT_THAT(remarks_,
              ElementsAre(HasSubstr("cannot be reached: stream removed"),
                          HasSubstr("is back")));
}

TEST_F(LogsTest, AGapIsSaid) {
  options_.follow = true;
  journal_.streams = {
      {{Page(1, {Event(9, "left")}, true)}, absl::DeadlineExceededError("")}};
  EXPECT_OK(Show());
  EXPECT_THAT(remarks_, testing::Contains(HasSubstr("dropped events")));
}

TEST_F(LogsTest, AStreamThatIsRefusedEndsIt) {
  options_.follow = true;
  journal_.streams = {{{}, absl::ResourceExhaustedError("256 follow")}};
  EXPECT_THAT(Show(), StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("256 follow")));
}

TEST_F(LogsTest, AReaderThatWentAwayEndsIt) {
  options_.follow = true;
  closed_ = true;
  journal_.reads = {Page(1, {Event(5, "joined")})};
  EXPECT_THAT(Show(), StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("cannot write to stdout")));
}

}  // namespace
}  // namespace coxswain
