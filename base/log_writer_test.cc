#include "base/log_writer.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/no_threads_for_test.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

std::string LeftOut(int64_t lines) {
  return absl::StrCat("left out ", lines, "\n");
}

class LogWriterTest : public testing::Test {
 protected:
  LogWriterTest() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe(ends), 0);
    read_ = UniqueFd(ends[0]);
    write_ = UniqueFd(ends[1]);
  }

  // As little as there is: a page.
  void HaveLittleSpace() const {
    EXPECT_GT(fcntl(write_.get(), F_SETPIPE_SZ, 4096), 0);
  }

  // Ends the writers while another thread reads, and returns what came.
  std::vector<std::string> ReadAll(std::optional<LogWriter>* writer,
                                   std::optional<LogWriter>* other = nullptr) {
    std::string text;
    std::thread reader([&] {
      char bytes[4096];
      ssize_t count = 0;
      while ((count = read(read_.get(), bytes, sizeof(bytes))) > 0) {
        text.append(bytes, static_cast<size_t>(count));
      }
    });
    writer->reset();
    if (other != nullptr) other->reset();
    write_.Close();
    reader.join();
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

  UniqueFd read_;
  UniqueFd write_;
};

TEST_F(LogWriterTest, LinesThatFitAreThereAtOnce) {
  LogWriter writer(write_.get(), LeftOut);
  writer.Write("one\n");
  writer.Write("two\n");
  char bytes[64];
  const ssize_t count = read(read_.get(), bytes, sizeof(bytes));
  EXPECT_EQ(std::string(bytes, static_cast<size_t>(count)), "one\ntwo\n");
}

// As many as the pipe has no space for, while nobody reads.
TEST_F(LogWriterTest, LinesThatDoNotFitComeInTheirOrder) {
  HaveLittleSpace();
  std::optional<LogWriter> writer(std::in_place, write_.get(), LeftOut);
  constexpr int kLines = 5000;
  for (int i = 0; i < kLines; ++i) writer->Write(absl::StrCat(i, "\n"));
  const std::vector<std::string> lines = ReadAll(&writer);
  ASSERT_EQ(lines.size(), kLines);
  for (int i = 0; i < kLines; ++i) EXPECT_EQ(lines[i], absl::StrCat(i));
}

TEST_F(LogWriterTest, LinesThatHaveNoThreadComeWithALaterOne) {
  HaveLittleSpace();
  std::optional<LogWriter> writer(std::in_place, write_.get(), LeftOut);
  constexpr int kLines = 5000;
  {
    const NoThreads none;
    for (int i = 1; i < kLines; ++i) writer->Write(absl::StrCat(i, "\n"));
  }
  writer->Write(absl::StrCat(kLines, "\n"));
  const std::vector<std::string> lines = ReadAll(&writer);
  ASSERT_EQ(lines.size(), kLines);
  EXPECT_EQ(lines.back(), absl::StrCat(kLines));
}

TEST_F(LogWriterTest, FlushWaitsForWhatIsKept) {
  HaveLittleSpace();
  LogWriter writer(write_.get(), LeftOut);
  writer.Flush(absl::InfiniteDuration());  // There is nothing.
  constexpr size_t kSize = 5000;
  writer.Write(std::string(kSize, 'x'));
  writer.Flush(absl::Milliseconds(1));  // Nobody reads.
  std::vector<char> bytes(kSize);
  size_t count = 0;
  std::thread reader([&] {
    constexpr size_t kFirst = 4096;
    while (count < kFirst) {
      const ssize_t more =
          read(read_.get(), bytes.data() + count, kFirst - count);
      if (more <= 0) return;
      count += static_cast<size_t>(more);
    }
  });
  writer.Flush(absl::InfiniteDuration());
  reader.join();
  ASSERT_EQ(fcntl(read_.get(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(read(read_.get(), bytes.data(), bytes.size()),
            static_cast<ssize_t>(kSize - count))
      << "the rest is there";
}

TEST_F(LogWriterTest, LongLinesComeWhole) {
  HaveLittleSpace();
  std::optional<LogWriter> writer(std::in_place, write_.get(), LeftOut);
  const std::string line(100000, 'x');
  writer->Write(line + "\n");
  writer->Write("end\n");
  EXPECT_EQ(ReadAll(&writer), (std::vector<std::string>{line, "end"}));
}

// How often lines are left out depends on when its thread gets to run.
TEST_F(LogWriterTest, PastTheLimitLinesAreCounted) {
  HaveLittleSpace();
  constexpr int kLines = 20000;
  std::optional<LogWriter> writer(std::in_place, write_.get(), LeftOut,
                                  /*most_kept=*/1000);
  for (int i = 0; i < kLines; ++i) {
    writer->Write(absl::StrCat("line ", i, "\n"));
  }
  int next = 0;
  int written = 0;
  for (absl::string_view line : ReadAll(&writer)) {
    int lines = 0;
    if (absl::ConsumePrefix(&line, "left out ")) {
      ASSERT_TRUE(absl::SimpleAtoi(line, &lines)) << line;
      ASSERT_GT(lines, 0);
      next += lines;
    } else {
      ASSERT_EQ(line, absl::StrCat("line ", next));
      ++next;
      ++written;
    }
  }
  EXPECT_EQ(next, kLines) << "each is there, or counted in its place";
  EXPECT_LT(written, kLines / 2);
}

TEST_F(LogWriterTest, LinesOfSeveralThreadsDoNotMix) {
  HaveLittleSpace();
  std::optional<LogWriter> writer(std::in_place, write_.get(), LeftOut);
  std::vector<std::thread> threads;
  constexpr int kEach = 500;
  for (char name = 'a'; name < 'e'; ++name) {
    threads.emplace_back([&writer, name] {
      for (int i = 0; i < kEach; ++i) {
        writer->Write(absl::StrCat(std::string(30, name), "\n"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = ReadAll(&writer);
  EXPECT_EQ(lines.size(), 4u * kEach);
  for (const std::string& line : lines) {
    EXPECT_EQ(line, std::string(30, line[0]));
  }
}

// Workers share the pipe of who has started them.
TEST_F(LogWriterTest, LinesOfSeveralProcessesDoNotMix) {
  HaveLittleSpace();
  std::optional<LogWriter> one(std::in_place, write_.get(), LeftOut);
  std::optional<LogWriter> other(std::in_place, write_.get(), LeftOut);
  constexpr int kEach = 2000;
  for (int i = 0; i < kEach; ++i) {
    one->Write(absl::StrCat(std::string(30, 'a'), "\n"));
    other->Write(absl::StrCat(std::string(30, 'b'), "\n"));
  }
  const std::vector<std::string> lines = ReadAll(&one, &other);
  EXPECT_EQ(lines.size(), 2u * kEach);
  for (const std::string& line : lines) {
    ASSERT_EQ(line, std::string(30, line[0]));
  }
}

// As a program's data loaders are, while the log is not read.
TEST_F(LogWriterTest, AForkOfOneThatIsBehindWritesItsOwnLines) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "which lets no fork of several threads start another";
#endif
  HaveLittleSpace();
  std::optional<LogWriter> writer(std::in_place, write_.get(), LeftOut);
  constexpr int kLines = 2000;
  for (int i = 0; i < kLines; ++i) writer->Write("ours\n");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int i = 0; i < kLines; ++i) writer->Write("the fork's\n");
    writer->Flush(absl::Minutes(1));
    _exit(0);
  }
  std::map<std::string, int> found;
  for (const std::string& line : ReadAll(&writer)) ++found[line];
  EXPECT_THAT(found, testing::UnorderedElementsAre(
                         testing::Pair("ours", kLines),
                         testing::Pair("the fork's", kLines)));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(LogWriterTest, AForkBesideThreadsThatWriteDoesNotWaitForTheirs) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "which lets no fork of several threads start another";
#endif
  std::optional<LogWriter> writer(std::in_place, write_.get(), LeftOut);
  std::atomic<bool> done{false};
  std::thread others([&] {
    while (!done.load()) writer->Write("o\n");
  });
  int64_t of_forks = 0;
  std::thread reader([&] {
    char bytes[4096];
    ssize_t count = 0;
    while ((count = read(read_.get(), bytes, sizeof(bytes))) > 0) {
      of_forks += std::count(bytes, bytes + count, 'f');
    }
  });
  constexpr int kForks = 50;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      writer->Write("f\n");
      writer->Flush(absl::Minutes(1));
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  done.store(true);
  others.join();
  writer.reset();
  write_.Close();
  reader.join();
  EXPECT_EQ(of_forks, kForks);
}

TEST_F(LogWriterTest, FilesAreWrittenAtOnce) {
  const std::string path = absl::StrCat(testing::TempDir(), "/log_writer");
  const UniqueFd file(
      open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  LogWriter writer(file.get(), LeftOut);
  const std::string line(3 << 20, 'y');
  writer.Write(line);
  std::string read(line.size(), '\0');
  EXPECT_EQ(pread(file.get(), read.data(), read.size(), 0),
            static_cast<ssize_t>(line.size()));
  EXPECT_EQ(read, line);
}

}  // namespace
}  // namespace coxswain
