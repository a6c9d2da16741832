#include "server/journal/journal.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

JournalEvent Event(const std::string& job, const std::string& name) {
  JournalEvent event;
  event.job = job;
  event.event = name;
  event.level = "info";
  return event;
}

std::vector<std::string> Names(const std::vector<JournalEvent>& events) {
  std::vector<std::string> names;
  for (const JournalEvent& event : events) names.push_back(event.event);
  return names;
}

std::vector<std::string> All(const Journal& journal,
                             const std::string& job = "") {
  return Names(journal.Read(job, 0, 1 << 20));
}

TEST(JournalTest, ReadsOneJobOrAllInTheOrderOfTheirComing) {
  Journal journal;
  journal.Note(Event("a", "joined"));
  journal.Note(Event("b", "joined too"));
  journal.Note(Event("a", "left"));
  EXPECT_THAT(All(journal), ElementsAre("joined", "joined too", "left"));
  EXPECT_THAT(All(journal, "a"), ElementsAre("joined", "left"));
  EXPECT_THAT(All(journal, "c"), IsEmpty());
  EXPECT_EQ(journal.Read("a", 0, 9).back().sequence, 3);
  EXPECT_EQ(journal.newest(), 3);
  EXPECT_EQ(journal.forgotten(), 0);
}

TEST(JournalTest, ReadsOnFromASequenceAsFarAsIsAsked) {
  Journal journal;
  for (const char* name : {"1", "2", "3", "4"}) journal.Note(Event("a", name));
  EXPECT_THAT(Names(journal.Read("a", 1, 2)), ElementsAre("2", "3"));
  EXPECT_THAT(Names(journal.Read("", 2, 9)), ElementsAre("3", "4"));
  EXPECT_THAT(journal.Read("a", 4, 9), IsEmpty());
  EXPECT_THAT(journal.Read("a", 99, 9), IsEmpty());
  EXPECT_THAT(journal.Read("a", 0, 0), IsEmpty());
  EXPECT_THAT(journal.Read("a", 0, -1), IsEmpty());
}

TEST(JournalTest, KeepsNothingWithoutAJob) {
  Journal journal;
  journal.Note(Event("", "coordinator_stood_still"));
  EXPECT_EQ(journal.newest(), 0);
}

TEST(JournalTest, ABusyJobForgetsItsOwnOldestOnly) {
  JournalLimits limits;
  limits.max_events_per_job = 2;
  Journal journal(limits);
  journal.Note(Event("quiet", "kept"));
  for (const char* name : {"1", "2", "3"}) journal.Note(Event("busy", name));
  EXPECT_THAT(All(journal), ElementsAre("kept", "2", "3"));
  EXPECT_EQ(journal.forgotten(), 2);
}

TEST(JournalTest, AJobTooManyTakesThePlaceOfTheQuietest) {
  JournalLimits limits;
  limits.max_jobs = 2;
  Journal journal(limits);
  journal.Note(Event("a", "a1"));
  journal.Note(Event("b", "b1"));
  journal.Note(Event("a", "a2"));
  journal.Note(Event("c", "c1"));
  EXPECT_THAT(All(journal), ElementsAre("a1", "a2", "c1"));
  EXPECT_THAT(All(journal, "b"), IsEmpty());
  EXPECT_EQ(journal.forgotten(), 2);
}

TEST(JournalTest, AllTogetherStayWithinTheirBytes) {
  JournalLimits limits;
  limits.max_bytes = 10000;
  Journal journal(limits);
  for (int i = 0; i < 100; ++i) {
    JournalEvent event = Event(absl::StrCat("job", i % 7), absl::StrCat(i));
    event.fields = {{"reason", std::string(1000, 'x')}};
    journal.Note(event);
  }
  const std::vector<JournalEvent> kept = journal.Read("", 0, 1000);
  ASSERT_GT(kept.size(), 1);
  EXPECT_LT(kept.size(), 10);
  EXPECT_EQ(kept.back().event, "99");
  EXPECT_EQ(kept.front().sequence, journal.forgotten() + 1);
}

TEST(JournalTest, ALongEventIsCutAtALetter) {
  JournalLimits limits;
  limits.max_event_bytes = 19;
  limits.max_fields = 2;
  Journal journal(limits);
  JournalEvent event = Event("a", "odd");
  event.fields = {{"why", "J\xc3\xbcrgen J\xc3\xbcrgen"},
                  {"more", "more"},
                  {"most", "most"}};
  journal.Note(event);
  const JournalEvent kept = journal.Read("a", 0, 1).at(0);
  ASSERT_EQ(kept.fields.size(), 2);
  EXPECT_EQ(kept.fields[0].second, "J\xc3\xbcrgen J...");
  EXPECT_EQ(kept.fields[1].first + kept.fields[1].second, "");
}

TEST(JournalTest, WhatIsKeptCanBeSent) {
  Journal journal;
  JournalEvent event = Event("a\xff", "odd\xc3");
  event.fields = {{"k\xfe", "\x80 J\xc3\xbcrgen"}};
  journal.Note(event);
  const JournalEvent kept = journal.Read("", 0, 1).at(0);
  EXPECT_EQ(kept.job, "a\xef\xbf\xbd");
  EXPECT_EQ(kept.event, "odd\xef\xbf\xbd");
  EXPECT_EQ(kept.fields[0].first, "k\xef\xbf\xbd");
  EXPECT_EQ(kept.fields[0].second, "\xef\xbf\xbd J\xc3\xbcrgen");
}

TEST(JournalTest, OneEventLargerThanAllBytesIsKept) {
  JournalLimits limits;
  limits.max_bytes = 1;
  Journal journal(limits);
  journal.Note(Event("a", "first"));
  journal.Note(Event("b", "second"));
  EXPECT_THAT(All(journal), ElementsAre("second"));
}

TEST(JournalTest, ListenersAreNotifiedOnceOfWhatIsNew) {
  Journal journal;
  int calls = 0;
  const uint64_t listener = journal.Listen([&] {
    ++calls;
    EXPECT_FALSE(journal.Read("", 0, 1).empty());
  });
  journal.Tick();
  EXPECT_EQ(calls, 0);
  journal.Note(Event("a", "1"));
  journal.Note(Event("a", "2"));
  EXPECT_EQ(calls, 0) << "Note() runs no callback";
  journal.Tick();
  journal.Tick();
  EXPECT_EQ(calls, 1);
  journal.Forget(listener);
  journal.Note(Event("a", "3"));
  journal.Tick();
  EXPECT_EQ(calls, 1);
}

TEST(JournalTest, ListenersAreNotifiedOfTheEnd) {
  Journal journal;
  bool notified = false;
  journal.Listen([&] { notified = journal.closed(); });
  EXPECT_FALSE(journal.closed());
  journal.Close();
  EXPECT_TRUE(notified);
}

TEST(JournalTest, ThreadsMayNoteAndReadTogether) {
  JournalLimits limits;
  limits.max_events_per_job = 16;
  Journal journal(limits);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&journal, t] {
      for (int i = 0; i < 200; ++i) {
        journal.Note(Event(absl::StrCat("job", t), "step"));
        journal.Read("", 0, 8);
        journal.Tick();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(journal.newest(), 800);
  EXPECT_EQ(journal.Read("", 0, 1000).size(), 64);
}

}  // namespace
}  // namespace coxswain::server
