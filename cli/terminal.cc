#include "cli/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/peer_text.h"

namespace coxswain {
namespace {

constexpr int kBarWidth = 24;
constexpr absl::Duration kRedraw = absl::Milliseconds(100);
constexpr absl::Duration kBetweenLines = absl::Seconds(10);

std::string Bar(double part) {
  const int filled = static_cast<int>(part * kBarWidth);
  return absl::StrCat("[", std::string(filled, '#'),
                      std::string(kBarWidth - filled, '.'), "]");
}

}  // namespace

std::string SizeText(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 999.5 && unit < 6) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", value < 99.95 ? 1 : 0, value, kUnits[unit]);
}

std::string AlignTable(std::vector<TableRow> rows) {
  for (TableRow& row : rows) {
    for (std::string& cell : row) cell = OneLine(std::move(cell));
  }
  std::vector<int> widths(rows.front().size(), 0);
  for (const TableRow& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], static_cast<int>(row[i].size()));
    }
  }
  std::string out;
  for (const TableRow& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppendFormat(&line, " %-*s", widths[i] + 1, row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

ProgressOutput ProgressOn(int fd) {
  ProgressOutput output;
  // A write that fails does not end the transfer.
  output.write = [fd](const std::string& text) {
    absl::string_view rest = text;
    while (!rest.empty()) {
      const ssize_t written = write(fd, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;
      rest.remove_prefix(written);
    }
  };
  const char* const kind = std::getenv("TERM");
  const bool dumb = kind != nullptr && absl::string_view(kind) == "dumb";
  output.terminal = isatty(fd) == 1 && !dumb;
  return output;
}

Progress::Progress(const ProgressOutput& output, std::string what,
                   int64_t total_bytes)
    : output_(output),
      what_(std::move(what)),
      total_(total_bytes),
      started_(output_.clock->Now()),
      next_(started_ + (output_.terminal ? kRedraw : kBetweenLines)) {}

Progress::~Progress() {
  if (drawn_ && output_.terminal) output_.write("\n");
}

void Progress::Set(int64_t done) {
  done_ = done;
  if (output_.write == nullptr) return;
  const absl::Time now = output_.clock->Now();
  // The last line appears only if there was one before it.
  const bool last = drawn_ && done_ >= total_;
  if (now < next_ && !last) return;
  next_ = now + (output_.terminal ? kRedraw : kBetweenLines);
  drawn_ = true;
  const std::string line = Line(now - started_);
  output_.write(output_.terminal ? absl::StrCat("\r", line, "\x1b[K")
                                 : absl::StrCat("coxswain: ", line, "\n"));
}

std::string Progress::Line(absl::Duration taken) const {
  const double part =
      total_ > 0 ? std::min(1.0, static_cast<double>(done_) / total_) : 1.0;
  const double rate = done_ / std::max(1e-3, absl::ToDoubleSeconds(taken));
  std::string line = absl::StrFormat(
      "%s %s%3.0f%%  %s of %s  %s/s", what_,
      output_.terminal ? absl::StrCat(Bar(part), " ") : "", 100 * part,
      SizeText(done_), SizeText(total_), SizeText(static_cast<int64_t>(rate)));
  if (done_ < total_ && rate > 0) {
    const absl::Duration left = absl::Seconds((total_ - done_) / rate);
    absl::StrAppend(&line, "  ",
                    absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
                    " left");
  }
  return line;
}

}  // namespace coxswain
