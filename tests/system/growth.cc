#include "tests/system/growth.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

// What counts as growth: more than a heap that has been fragmented, and than
// what is on its way when one looks.
constexpr int64_t kKilobytes = 16 << 10;
constexpr double kPart = 0.25;
constexpr int64_t kFew = 20;

int64_t MedianOf(std::vector<int64_t> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

void Growth::Look(pid_t process) {
  Held held;
  std::ifstream file(absl::StrCat("/proc/", process, "/status"));
  std::string line;
  while (std::getline(file, line)) {
    long long value = 0;
    if (std::sscanf(line.c_str(), "VmRSS: %lld", &value) == 1) {
      held.kilobytes = value;
    } else if (std::sscanf(line.c_str(), "Threads: %lld", &value) == 1) {
      held.threads = value;
    }
  }
  if (held.kilobytes == 0) return;  // it has ended
  std::error_code error;
  for (std::filesystem::directory_iterator entry(
           absl::StrCat("/proc/", process, "/fd"), error);
       !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    ++held.descriptors;
  }
  looks_.push_back(held);
}

Growth::Held Growth::Median(size_t begin, size_t end) const {
  std::vector<int64_t> kilobytes, descriptors, threads;
  for (size_t i = begin; i < end; ++i) {
    kilobytes.push_back(looks_[i].kilobytes);
    descriptors.push_back(looks_[i].descriptors);
    threads.push_back(looks_[i].threads);
  }
  return {MedianOf(kilobytes), MedianOf(descriptors), MedianOf(threads)};
}

Growth::Held Growth::Early() const {
  return Median(looks_.size() / 4, looks_.size() / 2);
}
Growth::Held Growth::Late() const {
  return Median(looks_.size() - looks_.size() / 4, looks_.size());
}

std::string Growth::ToString() const {
  const Held early = Early();
  const Held late = Late();
  return absl::StrCat("RSS ", early.kilobytes >> 10, " -> ",
                      late.kilobytes >> 10, " MB, ", early.descriptors, " -> ",
                      late.descriptors, " descriptors, ", early.threads, " -> ",
                      late.threads, " threads, of ", looks_.size(), " looks");
}

void Growth::ExpectNone(const std::string& whose) const {
  if (looks_.size() < kFewest) return;
  const Held early = Early();
  const Held late = Late();
  const auto most = static_cast<int64_t>(
      static_cast<double>(early.kilobytes) * (1 + kPart) + kKilobytes);
  EXPECT_LE(late.kilobytes, most) << whose << ": " << ToString();
  EXPECT_LE(late.descriptors, early.descriptors + kFew)
      << whose << ": " << ToString();
  EXPECT_LE(late.threads, early.threads + kFew) << whose << ": " << ToString();
}

}  // namespace coxswain
