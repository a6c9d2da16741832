#include "cli/launch/launcher.h"

#include <limits.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "cli/launch/child_process.h"
#include "cli/launch/line_prefixer.h"

namespace coxswain {
namespace {

// How long output may still come after the last worker has ended (a process
// that left its group may hold a pipe), and a reader may take to accept it.
constexpr absl::Duration kDrain = absl::Seconds(2);

// More than a pipe holds, in reads.
constexpr int kLastReads = 32;
// A shell's exit status for a program that could not be started.
constexpr int kNotStarted = 127;

// Writes to a descriptor that it does not own, and never blocks on it: a
// stalled reader must not keep the launcher from its workers. Keeps what cannot
// be written yet; while it is full, the launcher does not read, and the workers
// wait in turn. Once the reader has closed its end, output is dropped. One
// thread only.
class OutputSink {
 public:
  static constexpr size_t kFull = 64 << 10;

  explicit OutputSink(int fd) : fd_(fd) {}

  void Append(absl::string_view data);
  // Where to append directly.
  std::string* buffer() { return &buffer_; }

  int fd() const { return fd_; }
  bool empty() const { return buffer_.empty(); }
  bool full() const { return buffer_.size() >= kFull; }

  // Called when poll() reports that the descriptor is writable or has failed.
  void Write();

 private:
  const int fd_;
  bool closed_ = false;
  std::string buffer_;
};

void OutputSink::Append(absl::string_view data) {
  absl::StrAppend(&buffer_, data);
}

void OutputSink::Write() {
  // After poll() a pipe takes PIPE_BUF bytes without blocking, but perhaps not
  // more. The descriptor is shared with other processes, so it is not made
  // non-blocking.
  while (!buffer_.empty() && !closed_) {
    const ssize_t written =
        write(fd_, buffer_.data(), std::min<size_t>(buffer_.size(), PIPE_BUF));
    if (written >= 0) {
      buffer_.erase(0, written);
      return;
    }
    if (errno == EAGAIN) return;
    closed_ = errno != EINTR;
  }
  if (closed_) buffer_.clear();
}

struct Stream {
  UniqueFd* pipe;
  OutputSink* sink;
  LinePrefixer prefixer;
};

struct Worker {
  std::unique_ptr<ChildProcess> process;
  uint64_t incarnation = 0;
  std::vector<Stream> streams;
};

class Launcher {
 public:
  Launcher(const LaunchOptions& options, const ExitCallback& on_exit)
      : options_(options),
        on_exit_(on_exit),
        table_(options.environment.nproc, options.graces, options.restarts) {}

  absl::Status Start(const HeldSignals& signals);
  int Run();

 private:
  std::string Name(int slot) const {
    return absl::StrCat("worker ", options_.environment.node, "/", slot);
  }
  void Print(absl::string_view text) {
    stderr_.Append(LauncherLine(options_, text));
  }
  LinePrefixer PrefixerOf(int slot) const;

  absl::Status StartWorker(int slot);
  void Restart(int slot);
  bool Finished() const;
  void Decide();
  absl::Duration PollTimeout();
  void Poll(absl::Duration limit);
  void Watch(int fd, short events, std::function<void()> ready);
  void TakeSignal();
  void SignalAll(int signal);
  void TakeExit(int slot);
  bool IsRunningWorker(pid_t pid) const;
  void CollectOrphans();
  void NoteAllEnded();
  void Read(Stream* stream);
  void EndStream(Stream* stream);
  void EndStreams(Worker* worker);
  void ReportExit(const WorkerExit& exit);
  void ReportOutcome();

  const LaunchOptions& options_;
  const ExitCallback& on_exit_;
  ProcessTable table_;
  absl::Time wake_at_ = absl::InfiniteFuture();
  absl::Time drained_by_ = absl::InfiniteFuture();
  OutputSink stdout_{STDOUT_FILENO};
  OutputSink stderr_{STDERR_FILENO};
  UniqueFd signals_;
  std::vector<Worker> workers_;
  std::vector<pollfd> watched_;
  std::vector<std::function<void()>> ready_;
};

absl::Status Launcher::Start(const HeldSignals& signals) {
  // Inherited over exec, and with it ignored the kernel drops the exit statuses
  // of all children.
  std::signal(SIGCHLD, SIG_DFL);
  COXSWAIN_ASSIGN_OR_RETURN(const int fd, signals.OpenDescriptor());
  signals_ = UniqueFd(fd);
  workers_.resize(options_.environment.nproc);
  for (int slot = 0; slot < options_.environment.nproc; ++slot) {
    COXSWAIN_RETURN_IF_ERROR(StartWorker(slot));
  }
  return absl::OkStatus();
}

LinePrefixer Launcher::PrefixerOf(int slot) const {
  const std::string& node = options_.environment.node;
  if (!options_.prefix) return LinePrefixer("");
  const std::string prefix = absl::StrCat("[", node, "/", slot, "] ");
  if (GetLogFormat() == LogFormat::kText) return LinePrefixer(prefix);
  return LinePrefixer::OfJson(prefix, node, slot);
}

absl::Status Launcher::StartWorker(int slot) {
  Worker& worker = workers_[slot];
  worker.incarnation = options_.random->NextId();
  COXSWAIN_ASSIGN_OR_RETURN(
      worker.process,
      ChildProcess::Start(options_.program,
                          options_.environment.For(slot, worker.incarnation,
                                                   options_.inherited)));
  const LinePrefixer prefixer = PrefixerOf(slot);
  ChildProcess& process = *worker.process;
  worker.streams.push_back({&process.stdout_pipe(), &stdout_, prefixer});
  worker.streams.push_back({&process.stderr_pipe(), &stderr_, prefixer});
  return absl::OkStatus();
}

void Launcher::Restart(int slot) {
  EndStreams(&workers_[slot]);
  const absl::Status started = StartWorker(slot);
  if (started.ok()) return;
  Print(absl::StrCat("cannot restart ", Name(slot), ": ", started.message()));
  WorkerExit exit;
  exit.slot = slot;
  exit.exit_code = kNotStarted;
  table_.Exited(options_.clock->Now(), exit);
  ReportExit(exit);
}

int Launcher::Run() {
  while (!Finished()) {
    Decide();
    Poll(PollTimeout());
    CollectOrphans();
  }
  ReportOutcome();
  // What is left after kDrain.
  for (Worker& worker : workers_) EndStreams(&worker);
  for (OutputSink* sink : {&stdout_, &stderr_}) {
    pollfd ready = {sink->fd(), POLLOUT, 0};
    while (!sink->empty() && poll(&ready, 1, 0) > 0) sink->Write();
  }
  const int status = table_.ExitStatus();
  return status == 0 && table_.stop_requested() ? options_.stop_status : status;
}

bool Launcher::Finished() const {
  if (!table_.AllEnded()) return false;
  if (options_.clock->Now() >= drained_by_) return true;
  for (const Worker& worker : workers_) {
    for (const Stream& stream : worker.streams) {
      if (stream.pipe->valid()) return false;
    }
  }
  return stdout_.empty() && stderr_.empty();
}

void Launcher::Decide() {
  const LaunchDecision decision = table_.Decide(options_.clock->Now());
  wake_at_ = std::min(decision.next, drained_by_);
  for (const int slot : decision.start) Restart(slot);
  if (table_.AllEnded()) NoteAllEnded();
  if (decision.signal == 0) return;
  for (size_t slot = 0; slot < workers_.size(); ++slot) {
    if (!table_.running(slot)) continue;
    Print(absl::StrCat("sending SIG", sigabbrev_np(decision.signal), " to ",
                       Name(slot), " (pid ", workers_[slot].process->pid(),
                       "): ", decision.reason));
  }
  SignalAll(decision.signal);
}

absl::Duration Launcher::PollTimeout() {
  return std::max(absl::ZeroDuration(), wake_at_ - options_.clock->Now());
}

void Launcher::Watch(int fd, short events, std::function<void()> ready) {
  watched_.push_back({fd, events, 0});
  ready_.push_back(std::move(ready));
}

void Launcher::Poll(absl::Duration limit) {
  watched_.clear();
  ready_.clear();
  // Output before ends: a worker's last output is read before its end is.
  for (OutputSink* sink : {&stdout_, &stderr_}) {
    if (!sink->empty()) Watch(sink->fd(), POLLOUT, [sink] { sink->Write(); });
  }
  for (Worker& worker : workers_) {
    for (Stream& stream : worker.streams) {
      if (!stream.pipe->valid() || stream.sink->full()) continue;
      Watch(stream.pipe->get(), POLLIN, [this, &stream] { Read(&stream); });
    }
  }
  for (size_t slot = 0; slot < workers_.size(); ++slot) {
    if (!table_.running(slot)) continue;
    Watch(workers_[slot].process->pidfd(), POLLIN,
          [this, slot] { TakeExit(slot); });
  }
  Watch(signals_.get(), POLLIN, [this] { TakeSignal(); });

  timespec timeout = absl::ToTimespec(std::min(limit, absl::Hours(1)));
  if (ppoll(watched_.data(), watched_.size(), &timeout, nullptr) <= 0) return;
  for (size_t i = 0; i < watched_.size(); ++i) {
    if (watched_[i].revents != 0) ready_[i]();
  }
}

void Launcher::TakeSignal() {
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  const int signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGCHLD) return;  // Run collects orphans after every wake-up
  if (signal != SIGUSR1 && signal != SIGUSR2) {
    table_.StopRequested(options_.clock->Now(), signal);
  }
  SignalAll(signal);
}

void Launcher::SignalAll(int signal) {
  for (size_t slot = 0; slot < workers_.size(); ++slot) {
    if (table_.running(slot)) workers_[slot].process->Signal(signal);
  }
}

void Launcher::TakeExit(int slot) {
  Worker& worker = workers_[slot];
  const ChildProcess::End end = worker.process->Reap();
  const WorkerExit exit = {slot, worker.process->pid(), end.exit_code,
                           end.signal, table_.stopping()};
  table_.Exited(options_.clock->Now(), exit);
  on_exit_(exit, worker.incarnation);
  ReportExit(exit);
  if (table_.AllEnded()) NoteAllEnded();
}

bool Launcher::IsRunningWorker(pid_t pid) const {
  for (size_t slot = 0; slot < workers_.size(); ++slot) {
    if (table_.running(slot) && workers_[slot].process->pid() == pid) {
      return true;
    }
  }
  return false;
}

// Collects ended children, but no workers, which only TakeExit collects:
// where a worker is next, its pidfd is readable, so this runs again soon.
void Launcher::CollectOrphans() {
  for (;;) {
    siginfo_t ended = {};
    const int looked = waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT);
    if (looked != 0 || ended.si_pid == 0) return;
    if (IsRunningWorker(ended.si_pid)) return;
    const id_t orphan = static_cast<id_t>(ended.si_pid);
    if (waitid(P_PID, orphan, &ended, WEXITED | WNOHANG) != 0) return;
  }
}

void Launcher::NoteAllEnded() {
  drained_by_ = std::min(drained_by_, options_.clock->Now() + kDrain);
  wake_at_ = std::min(wake_at_, drained_by_);
}

void Launcher::ReportExit(const WorkerExit& exit) {
  if (exit.ok()) return;
  const std::string what =
      absl::StrCat(Name(exit.slot), " (pid ", exit.pid, ") ", exit.ToString());
  const absl::Time restart_at = table_.restart_at(exit.slot);
  if (restart_at < absl::InfiniteFuture()) {
    Print(absl::StrCat(what, "; it is started again (",
                       table_.restarts(exit.slot) + 1, " of ",
                       options_.restarts.most, ")"));
  } else if (table_.elastic()) {
    Print(absl::StrCat(what, "; it is not started again"));
  } else if (table_.first_failure()->slot == exit.slot) {
    Print(absl::StrCat("first failure: ", what));
  }
}

void Launcher::ReportOutcome() {
  if (!table_.elastic() || !table_.first_failure().has_value()) return;
  if (table_.ExitStatus() != 0) {
    const WorkerExit& exit = *table_.first_failure();
    Print(absl::StrCat("first failure: ", Name(exit.slot), " (pid ", exit.pid,
                       ") ", exit.ToString()));
    return;
  }
  std::vector<std::string> names;
  for (const int slot : table_.Failed()) names.push_back(Name(slot));
  Print(absl::StrCat("the job went on without ", absl::StrJoin(names, ", ")));
}

void Launcher::Read(Stream* stream) {
  char data[8192];
  const ssize_t got = read(stream->pipe->get(), data, sizeof(data));
  if (got > 0) {
    stream->prefixer.Append({data, static_cast<size_t>(got)},
                            stream->sink->buffer());
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    EndStream(stream);
  }
}

void Launcher::EndStream(Stream* stream) {
  stream->prefixer.Finish(stream->sink->buffer());
  stream->pipe->Close();
}

// Closes the streams of an ended process, after reading what is left in them.
void Launcher::EndStreams(Worker* worker) {
  for (Stream& stream : worker->streams) {
    for (int i = 0; i < kLastReads && stream.pipe->valid(); ++i) Read(&stream);
    if (stream.pipe->valid()) EndStream(&stream);
  }
  worker->streams.clear();
}

}  // namespace

std::string LauncherLine(const LaunchOptions& options, absl::string_view text) {
  if (GetLogFormat() == LogFormat::kText) {
    return absl::StrCat("coxswain: ", text, "\n");
  }
  return absl::StrCat(
      FormatLogLine(LogFormat::kJson, {options.clock->WallTime(),
                                       "info",
                                       "launcher",
                                       {{"job", options.environment.job},
                                        {"node", options.environment.node},
                                        {"text", text}}}),
      "\n");
}

absl::StatusOr<int> Launch(const LaunchOptions& options,
                           const HeldSignals& signals,
                           const ExitCallback& on_exit) {
  Launcher launcher(options, on_exit);
  COXSWAIN_RETURN_IF_ERROR(launcher.Start(signals));
  return launcher.Run();
}

}  // namespace coxswain
