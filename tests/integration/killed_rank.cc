// One rank of a group, for tests that kill it:
//   killed_rank BACKEND FOLDER RANK SIZE STAGE TIMEOUT_MS DIE_AFTER_US
//
// BACKEND is shm or tcp. Repeats what STAGE names until it fails:
//   connect   only a barrier; its time to die begins with the process
//   small direct pieces means gather messages channels    exchanges of that
//             kind; it begins once all have met
//   split     groups split off, and a barrier of each
//   allocate  new shared buffers
//   mixed     all of the exchanges in turns, and splits; over tcp
//
// DIE_AFTER_US: when it is killed, whatever it is doing then; -1: never. A rank
// that is to be killed does not end before. SIGTERM aborts what it does.
//
// Prints "begun" once it listens to SIGTERM, "all there" once all have met, and
// at the end "CODE: message"; ends with 3 if that is an error that a rank may
// get when others are lost, with 4 if a result was wrong, and with 5 after any
// other error.

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/comm/channel.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "tests/support/file_store.h"

namespace coxswain {
namespace {

constexpr absl::Duration kForEver = absl::Minutes(10);
constexpr int64_t kSmall = 1000;    // elements; they fit a slot
constexpr int64_t kLarge = 700001;  // they do not, and fill several pieces
constexpr int64_t kMessage = 10000;

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// The kernel does it, whatever the program is doing.
void DieAfter(int64_t microseconds) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer;
  COXSWAIN_CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
  itimerspec when = {};
  when.it_value = absl::ToTimespec(absl::Microseconds(microseconds + 1));
  COXSWAIN_CHECK(timer_settime(timer, 0, &when, nullptr) == 0);
}

// Calls `end` on SIGTERM, on a thread of its own. Made before other threads.
class Terminator {
 public:
  explicit Terminator(std::function<void()> end) : end_(std::move(end)) {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] {
      int signal = 0;
      sigwait(&signals_, &signal);
      if (!done_) end_();
    });
  }
  ~Terminator() {
    done_ = true;
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }

 private:
  const std::function<void()> end_;
  sigset_t signals_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

class Worker {
 public:
  Worker(char** argv)
      : over_tcp_(std::string(argv[1]) == "tcp"),
        stage_(argv[5]),
        die_after_us_(std::atoll(argv[7])) {
    options_.id = "killed";
    options_.rank = std::atoi(argv[3]);
    options_.size = std::atoi(argv[4]);
    options_.store = std::make_shared<FileStore>(argv[2]);
    options_.timeout = absl::Milliseconds(std::atoll(argv[6]));
    options_.cancel = &cancel_;
  }

  absl::Status Run();
  bool to_be_killed() const { return die_after_us_ >= 0; }

 private:
  using Step = absl::Status (Worker::*)();

  absl::Status Connect();
  absl::Status Meet() { return communicator_->Barrier()->Wait(kForEver); }
  absl::Status Small() { return AllReduce(small_.data(), kSmall); }
  absl::Status Direct();
  absl::Status Pieces() { return AllReduce(large_.data(), kLarge); }
  absl::Status Means();
  absl::Status Gather();
  absl::Status Messages();
  absl::Status Channels();
  absl::Status Splits();
  absl::Status Allocate();
  absl::Status Mixed();
  absl::Status AllReduce(float* data, int64_t count);
  // Of the ring of all ranks.
  int next() const { return (options_.rank + 1) % options_.size; }
  int last() const {
    return (options_.rank + options_.size - 1) % options_.size;
  }
  // What a rank sends to the next one in this turn, and what it must be.
  float* Outgoing();
  absl::Status CheckIncoming(const float* data) const;

  Span SpanOf(float* data, int64_t count) const {
    Span span;
    span.data = data;
    span.count = count;
    return span;
  }

  const bool over_tcp_;
  const std::string stage_;
  const int64_t die_after_us_;
  int64_t turn_ = 0;
  CancelSignal cancel_;
  CommunicatorOptions options_;
  Mutex mutex_;
  bool end_requested_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<BufferOwner> buffer_;
  std::unique_ptr<ChannelSender> sender_;
  std::unique_ptr<ChannelReceiver> receiver_;
  std::vector<float> small_ = std::vector<float>(kSmall);
  std::vector<float> large_ = std::vector<float>(kLarge);
};

absl::Status Worker::Connect() {
  auto communicator = over_tcp_ ? ConnectTcp(options_) : ConnectShm(options_);
  COXSWAIN_RETURN_IF_ERROR(communicator.status());
  MutexLock lock(&mutex_);
  communicator_ = *std::move(communicator);
  if (end_requested_) communicator_->Abort("asked to end");
  return absl::OkStatus();
}

absl::Status Worker::Run() {
  if (stage_ == "connect" && to_be_killed()) DieAfter(die_after_us_);
  Terminator terminator([this] {
    cancel_.Raise(absl::AbortedError("asked to end"));
    MutexLock lock(&mutex_);
    end_requested_ = true;
    if (communicator_ != nullptr) communicator_->Abort("asked to end");
  });
  PrintLine("begun");
  const std::map<std::string, Step> steps = {
      {"connect", &Worker::Meet},      {"small", &Worker::Small},
      {"direct", &Worker::Direct},     {"pieces", &Worker::Pieces},
      {"means", &Worker::Means},       {"gather", &Worker::Gather},
      {"messages", &Worker::Messages}, {"channels", &Worker::Channels},
      {"split", &Worker::Splits},      {"allocate", &Worker::Allocate},
      {"mixed", &Worker::Mixed}};
  const auto step = steps.find(stage_);
  if (step == steps.end()) return absl::NotFoundError("no such stage");
  COXSWAIN_RETURN_IF_ERROR(Connect());
  COXSWAIN_ASSIGN_OR_RETURN(
      buffer_, communicator_->AllocateBuffer(kLarge, DType::kFloat32));
  COXSWAIN_RETURN_IF_ERROR(Meet());
  PrintLine("all there");
  if (stage_ != "connect" && to_be_killed()) DieAfter(die_after_us_);
  for (;; ++turn_) COXSWAIN_RETURN_IF_ERROR((this->*step->second)());
}

absl::Status Worker::AllReduce(float* data, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>(options_.rank + i % 7);
  }
  COXSWAIN_RETURN_IF_ERROR(
      communicator_->AllReduce(SpanOf(data, count))->Wait(kForEver));
  const int64_t size = options_.size;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sum = size * (size - 1) / 2 + size * (i % 7);
    if (data[i] != static_cast<float>(sum)) {
      return absl::DataLossError(
          absl::StrCat("element ", i, " is ", data[i], ", not ", sum));
    }
  }
  return absl::OkStatus();
}

absl::Status Worker::Direct() {
  return AllReduce(static_cast<float*>(buffer_->span().data), kLarge);
}

// In two parts, which are in another place on each rank.
absl::Status Worker::Means() {
  const Span all = SpanOf(large_.data(), kLarge);
  const int64_t first = 100000 * (options_.rank + 1);
  for (float& value : large_) value = static_cast<float>(options_.rank);
  COXSWAIN_RETURN_IF_ERROR(
      communicator_
          ->AllReduceMean(
              {all.Slice(first, kLarge - first), all.Slice(0, first)})
          ->Wait(kForEver));
  const float mean = static_cast<float>(options_.size - 1) / 2;
  for (const float value : large_) {
    if (value == mean) continue;
    return absl::DataLossError(absl::StrCat(value, " is not ", mean));
  }
  return absl::OkStatus();
}

absl::Status Worker::Gather() {
  const int64_t size = options_.size;
  float* const slice = small_.data();
  for (int64_t i = 0; i < size * kSmall; ++i) {
    large_[static_cast<size_t>(i)] = static_cast<float>(options_.rank + i % 7);
  }
  const Span whole = SpanOf(large_.data(), size * kSmall);
  COXSWAIN_RETURN_IF_ERROR(
      communicator_->ReduceScatter(whole, SpanOf(slice, kSmall))
          ->Wait(kForEver));
  COXSWAIN_RETURN_IF_ERROR(
      communicator_->AllGather(SpanOf(slice, kSmall), whole)->Wait(kForEver));
  for (int64_t i = 0; i < size * kSmall; ++i) {
    const int64_t sum = size * (size - 1) / 2 + size * (i % 7);
    if (large_[static_cast<size_t>(i)] != static_cast<float>(sum)) {
      return absl::DataLossError(absl::StrCat("element ", i, " is not ", sum));
    }
  }
  return absl::OkStatus();
}

float* Worker::Outgoing() {
  std::iota(large_.begin(), large_.begin() + kMessage,
            static_cast<float>(options_.rank * 1000 + turn_ % 1000));
  return large_.data();
}

absl::Status Worker::CheckIncoming(const float* data) const {
  const auto first = static_cast<float>(last() * 1000 + turn_ % 1000);
  for (int64_t i = 0; i < kMessage; ++i) {
    if (data[i] == first + static_cast<float>(i)) continue;
    return absl::DataLossError(
        absl::StrCat("element ", i, " of rank ", last(), " is ", data[i]));
  }
  return absl::OkStatus();
}

absl::Status Worker::Messages() {
  float* const incoming = large_.data() + kMessage;
  const WorkPtr sent =
      communicator_->Send(SpanOf(Outgoing(), kMessage), next(), 1);
  const WorkPtr received =
      communicator_->Receive(SpanOf(incoming, kMessage), last(), 1);
  const absl::Status status = received->Wait(kForEver);
  COXSWAIN_RETURN_IF_ERROR(sent->Wait(kForEver));
  COXSWAIN_RETURN_IF_ERROR(status);
  return CheckIncoming(incoming);
}

absl::Status Worker::Channels() {
  if (sender_ == nullptr) {
    ChannelOptions options;
    options.peer = next();
    options.slot_bytes = kMessage * static_cast<int64_t>(sizeof(float));
    options.slots = 2;
    COXSWAIN_ASSIGN_OR_RETURN(sender_, communicator_->OpenSender(options));
    options.peer = last();
    COXSWAIN_ASSIGN_OR_RETURN(receiver_, communicator_->OpenReceiver(options));
  }
  float* const incoming = large_.data() + kMessage;
  COXSWAIN_RETURN_IF_ERROR(
      sender_->Send(SpanOf(Outgoing(), kMessage), kForEver));
  COXSWAIN_RETURN_IF_ERROR(
      receiver_->Receive(SpanOf(incoming, kMessage), kForEver));
  return CheckIncoming(incoming);
}

absl::Status Worker::Splits() {
  std::vector<int> all(static_cast<size_t>(options_.size));
  std::iota(all.begin(), all.end(), 0);
  COXSWAIN_ASSIGN_OR_RETURN(const auto child, communicator_->Split(all));
  return child->Barrier()->Wait(kForEver);
}

absl::Status Worker::Mixed() {
  constexpr Step kSteps[] = {&Worker::Small,    &Worker::Pieces,
                             &Worker::Gather,   &Worker::Messages,
                             &Worker::Channels, &Worker::Splits};
  for (const Step step : kSteps) {
    COXSWAIN_RETURN_IF_ERROR((this->*step)());
  }
  return absl::OkStatus();
}

absl::Status Worker::Allocate() {
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto buffer,
      communicator_->AllocateBuffer(kSmall * 10, DType::kFloat32));
  return AllReduce(static_cast<float*>(buffer->span().data), kSmall * 10);
}

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
      return 3;
    case absl::StatusCode::kDataLoss:
      return 4;
    default:
      return 5;
  }
}

}  // namespace
}  // namespace coxswain

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  coxswain::Worker worker(argv);
  const absl::Status status = worker.Run();
  coxswain::PrintLine(status.ToString());
  while (worker.to_be_killed()) pause();
  return coxswain::ExitCode(status);
}
