#include "tests/system/process_set.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"

namespace coxswain {
namespace {

// What a failed test prints at most.
constexpr size_t kTranscript = 64 << 10;

std::vector<std::string> Environment() {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!absl::StartsWith(*variable, "COXSWAIN_")) kept.emplace_back(*variable);
  }
  return kept;
}

}  // namespace

struct ProcessSet::Entry {
  Id id = 0;
  std::string name;
  std::unique_ptr<ChildProcess> child;
  std::optional<int> status;
  std::string partial[2];  // of a line: standard output, standard error

  UniqueFd& pipe(bool err) {
    return err ? child->stderr_pipe() : child->stdout_pipe();
  }
  bool Silent() { return !pipe(false).valid() && !pipe(true).valid(); }
};

ProcessSet::ProcessSet(OnLine on_line) : on_line_(std::move(on_line)) {
  // Orphans come to this program, where StrayProcesses sees them.
  COXSWAIN_CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
}

ProcessSet::~ProcessSet() = default;

ProcessSet::Id ProcessSet::Start(const std::string& name,
                                 const std::vector<std::string>& command) {
  auto child = ChildProcess::Start(command, Environment());
  COXSWAIN_CHECK(child.ok());
  auto entry = std::make_unique<Entry>();
  entry->id = entries_.size();
  entry->name = name;
  entry->child = std::move(*child);
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

pid_t ProcessSet::pid(Id process) const {
  return entries_[process]->child->pid();
}

void ProcessSet::Signal(Id process, int signal) {
  const Entry& entry = *entries_[process];
  if (!entry.status.has_value()) kill(entry.child->pid(), signal);
}

std::optional<int> ProcessSet::status(Id process) const {
  return entries_[process]->status;
}

bool ProcessSet::AllEnded() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& entry) {
    return entry->status.has_value() && entry->Silent();
  });
}

bool ProcessSet::WaitUntil(const std::function<bool()>& done,
                           absl::Duration limit) {
  const absl::Time deadline = Clock::Real()->Now() + limit;
  while (!done()) {
    if (!Step(deadline)) return done();
  }
  return true;
}

bool ProcessSet::Step(absl::Time deadline) {
  std::vector<pollfd> watched;
  for (const auto& entry : entries_) {  // -1 is passed over
    watched.push_back({entry->pipe(false).get(), POLLIN, 0});
    watched.push_back({entry->pipe(true).get(), POLLIN, 0});
    watched.push_back(
        {entry->status.has_value() ? -1 : entry->child->pidfd(), POLLIN, 0});
  }
  const timespec timeout = absl::ToTimespec(
      std::max(absl::ZeroDuration(), deadline - Clock::Real()->Now()));
  if (ppoll(watched.data(), watched.size(), &timeout, nullptr) <= 0) {
    return false;
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry* entry = entries_[i].get();
    if (watched[3 * i].revents != 0) Collect(entry, false);
    if (watched[3 * i + 1].revents != 0) Collect(entry, true);
    if (watched[3 * i + 2].revents == 0) continue;
    const ChildProcess::End end = entry->child->Reap();
    entry->status = end.signal != 0 ? 128 + end.signal : end.exit_code;
    Note(*entry, absl::StrCat("(ended with ", *entry->status, ")"));
  }
  return true;
}

void ProcessSet::Collect(Entry* entry, bool err) {
  char data[8192];
  const ssize_t got = read(entry->pipe(err).get(), data, sizeof(data));
  if (got > 0) {
    Take(entry, err, {data, static_cast<size_t>(got)});
  } else if (got == 0 || errno != EAGAIN) {
    entry->pipe(err).Close();
    if (!entry->partial[err].empty()) Take(entry, err, "\n");
  }
}

void ProcessSet::Take(Entry* entry, bool err, absl::string_view data) {
  std::string& partial = entry->partial[err];
  partial.append(data.data(), data.size());
  size_t begin = 0;
  for (size_t end; (end = partial.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const absl::string_view line(partial.data() + begin, end - begin);
    if (on_line_(entry->id, line)) Note(*entry, line);
  }
  partial.erase(0, begin);
}

void ProcessSet::Note(const Entry& entry, absl::string_view line) {
  absl::StrAppend(&transcript_, entry.name, ": ", line, "\n");
  if (transcript_.size() > 2 * kTranscript) {
    transcript_.erase(0, transcript_.size() - kTranscript);
  }
}

std::string ProcessSet::Transcript() const {
  if (transcript_.size() <= kTranscript) return transcript_;
  return absl::StrCat("...\n",
                      transcript_.substr(transcript_.size() - kTranscript));
}

}  // namespace coxswain
