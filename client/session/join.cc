#include "client/session/join.h"

#include <strings.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/logging.h"
#include "base/mesh.h"
#include "base/mutex.h"
#include "base/start_thread.h"
#include "base/version.h"
#include "client/rpc/connection_hint.h"
#include "schedule/schedule_wire.h"
#include "schedule/terms.h"
#include "transport/error_detail.h"

namespace coxswain {
namespace {

// ---- messages ----

constexpr absl::Duration kSpreadPerMember = absl::Milliseconds(1);

std::vector<int64_t> RowMajor(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(1, shape[i]);
  }
  return strides;
}

void AddParameter(const ParameterSpec& parameter, v1::Manifest* manifest) {
  v1::ParameterInfo* info = manifest->add_parameters();
  info->set_name(parameter.name);
  info->mutable_shape()->Assign(parameter.shape.begin(), parameter.shape.end());
  info->set_dtype(std::string(NameOf(parameter.dtype)));
  if (parameter.strides != RowMajor(parameter.shape)) {
    info->mutable_strides()->Assign(parameter.strides.begin(),
                                    parameter.strides.end());
  }
}

// Those that differ from the defaults: a coordinator need not know the others.
void AddTerms(const schedule::Terms& terms, v1::Manifest* manifest) {
  const auto defaults = schedule::Terms().ToMap();
  for (const auto& [name, value] : terms.ToMap()) {
    if (defaults.at(name) != value) (*manifest->mutable_terms())[name] = value;
  }
}

JobMember FromWire(const v1::Member& wire) {
  JobMember member;
  member.identity = {wire.identity().node(), wire.identity().slot()};
  member.incarnation = Incarnation(wire.incarnation());
  member.rank = wire.rank();
  member.local_rank = wire.local_rank();
  member.host = wire.host();
  member.address = wire.address();
  member.topology = {wire.topology().begin(), wire.topology().end()};
  member.coordinates = wire.coordinates();
  return member;
}

// ---- the call ----

// The coordinator's own answer to a round that took too long comes first.
constexpr absl::Duration kAnswerMargin = absl::Seconds(5);

// A call that waits at the coordinator for as long as that finds right; a
// connection that is dead is noticed in another way.
constexpr absl::Duration kWholeJob = absl::Hours(24 * 365);
constexpr absl::Duration kAskTimeout = absl::Seconds(2);
// A coordinator that kept the call for so long let this worker wait for others;
// one that answers sooner, again and again, cannot serve it.
constexpr absl::Duration kWaited = absl::Seconds(5);

bool IsElastic(const v1::JoinRequest& request) {
  const int least = request.manifest().min_world_size();
  return least > 0 && least < request.manifest().world_size();
}

// Logs from time to time what Join waits for, on a thread of its own.
class WaitingNotice {
 public:
  WaitingNotice(const SessionOptions& options, CoordinatorStub& stub,
                const v1::JoinRequest& request)
      : options_(options),
        stub_(stub),
        world_size_(request.manifest().world_size()),
        elastic_(IsElastic(request)) {
    absl::StatusOr<std::thread> thread = StartThread([this]() { Run(); });
    // Without it, nothing is logged.
    if (thread.ok()) thread_ = *std::move(thread);
  }
  ~WaitingNotice() {
    stop_.Raise(absl::CancelledError("the wait is over"));
    if (thread_.joinable()) thread_.join();
  }

  void SetLastError(const absl::Status& error) {
    MutexLock lock(&mutex_);
    last_error_ = error;
  }
  void BeginCall() {
    MutexLock lock(&mutex_);
    reached_ = false;
    asked_ = options_.clock->Now();
  }
  // Whether the coordinator was seen to be there during this call, and let it
  // wait.
  bool LetItWait() {
    MutexLock lock(&mutex_);
    return reached_ && WaitsLocked();
  }

 private:
  bool WaitsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return options_.clock->Now() - asked_ >= kWaited;
  }
  void Run() {
    while (!stop_.WaitFor(options_.notice_interval)) {
      const std::string notice = Describe();
      LogInfo("waiting", {{"job", options_.job}, {"for", notice}});
      if (options_.on_waiting != nullptr) options_.on_waiting(notice);
    }
  }

  // Returns what is wrong with the connection, if that can be found out; looks
  // again once the error is another one.
  std::string HintFor(const absl::Status& error) {
    if (options_.stub_factory != nullptr) return "";
    const std::string text(error.message());
    if (text != hinted_) {
      hinted_ = text;
      hint_ = ConnectionHint(options_.coordinator, options_.security);
    }
    return hint_.empty() ? "" : absl::StrCat(". Probable cause: ", hint_);
  }

  std::string Describe() {
    const bool connected = stub_.Connected();
    absl::Status error;
    {
      MutexLock lock(&mutex_);
      // A call that waits has reached the coordinator, unlike the one before.
      if (!connected || !WaitsLocked()) error = last_error_;
      reached_ = reached_ || connected;
    }
    if (!connected) {
      return absl::StrCat(
          "the coordinator at ", stub_.address(), ": ",
          error.ok() ? "it has not answered yet" : std::string(error.message()),
          HintFor(error));
    }
    if (!error.ok()) {
      return absl::StrCat(
          "the coordinator at ", stub_.address(),
          ", which can be reached; its last answer: ", error.message());
    }
    const int running = elastic_ ? RunningWithoutMe() : 0;
    if (running > 0) {
      return absl::StrCat("a place in job '", options_.job,
                          "', as a spare: it runs with ", running,
                          " workers at ", stub_.address());
    }
    return absl::StrCat("the other members of job '", options_.job, "' (",
                        elastic_ ? "at most " : "", world_size_,
                        " in all) to join at ", stub_.address());
  }

  // With how many workers the job runs while this one waits as a spare; 0: it
  // is none, as far as is known. Asked more and more rarely, since the answer
  // lists all workers.
  int RunningWithoutMe() {
    if (++notices_ < ask_at_) return running_without_me_;
    ask_at_ *= 2;
    running_without_me_ = 0;
    v1::DescribeRequest request;
    request.set_job(options_.job);
    CallOptions call;
    call.timeout = kAskTimeout;
    call.cancel = &stop_;
    call.retry = false;
    const auto described = stub_.Describe(request, call);
    if (!described.ok() || described->jobs().empty()) return 0;
    const v1::JobDescription& job = described->jobs(0);
    for (const v1::MemberDescription& spare : job.spares()) {
      const v1::WorkerIdentity& identity = spare.member().identity();
      if (identity.node() == options_.identity.node &&
          identity.slot() == options_.identity.slot) {
        running_without_me_ = job.world_size();
      }
    }
    return running_without_me_;
  }

  const SessionOptions& options_;
  CoordinatorStub& stub_;
  const int world_size_;
  const bool elastic_;
  // Of the thread.
  int64_t notices_ = 0;
  int64_t ask_at_ = 1;
  int running_without_me_ = 0;
  std::string hinted_;  // the error that the hint was made for
  std::string hint_;

  CancelSignal stop_;
  Mutex mutex_;
  absl::Time asked_ ABSL_GUARDED_BY(mutex_);
  bool reached_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// What the attempts to join have shown before time ran out.
struct Attempts {
  bool waited = false;  // the coordinator was there, and let this worker wait
  absl::Status unanswered;  // the last error without an answer
  // The coordinator's own, of the last attempt; OK: that had no answer.
  absl::Status refusal;
};

absl::Status TimeIsUp(const SessionOptions& options, const Attempts& attempts) {
  const std::string could_not =
      absl::StrCat("could not join job '", options.job, "' within ",
                   absl::FormatDuration(options.join_timeout),
                   ": the coordinator at ", options.coordinator);
  if (!attempts.refusal.ok()) {
    return WithDetailOf(
        attempts.refusal,
        absl::DeadlineExceededError(absl::StrCat(
            could_not, " can be reached, but refuses: ",
            absl::StatusCodeToString(attempts.refusal.code()), ": ",
            attempts.refusal.message(),
            ". Mend that at the coordinator, whose log has more, and start "
            "this worker again")));
  }
  const absl::Status& last = attempts.unanswered;
  const std::string hint =
      options.stub_factory != nullptr
          ? ""
          : ConnectionHint(options.coordinator, options.security);
  return absl::DeadlineExceededError(absl::StrCat(
      could_not,
      attempts.waited ? " answered at first, and then stopped (last error: "
                      : " never answered (last error: ",
      last.ok() ? "none" : std::string(last.message()), "). ",
      hint.empty() ? "Start it with `coxswain serve` or check --coordinator"
                   : absl::StrCat("Probable cause: ", hint)));
}

// Returns the coordinator's refusal, in a user's words, with its typed detail.
absl::Status Refused(const SessionOptions& options,
                     const absl::Status& answer) {
  absl::string_view summary = answer.message();
  std::string differences;
  const v1::ErrorDetail detail = DetailOf(answer);
  for (const std::string& line : detail.manifest_mismatch().differences()) {
    absl::StrAppend(&differences, "\n  ", line);
  }
  // After its first line the message only lists the first of them.
  if (!differences.empty()) summary = summary.substr(0, summary.find('\n'));
  const std::string message =
      absl::StrCat("could not join job '", options.job, "' at ",
                   options.coordinator, ": ", summary, differences);
  return WithDetailOf(answer, absl::Status(answer.code(), message));
}

// Returns how long one call may take: each arrival may begin the coordinator's
// time anew, and a spare waits for as long as the job runs.
absl::Duration CallTimeout(const v1::JoinRequest& request,
                           absl::Duration left) {
  if (IsElastic(request)) return kWholeJob;
  const int arrivals = std::max(0, request.manifest().world_size());
  return std::min(kWholeJob, left * (arrivals + 1) + kAnswerMargin);
}

// Returns whether a coordinator that shuts down has cancelled the call: a
// CANCELLED of its own has a message.
bool IsCutOff(const absl::Status& status) {
  return absl::IsCancelled(status) &&
         (status.message().empty() || status.message() == "CANCELLED");
}

absl::StatusOr<v1::JoinResponse> AskOnce(const SessionOptions& options,
                                         CoordinatorStub& stub,
                                         absl::Duration left,
                                         v1::JoinRequest* request) {
  if (request->address().empty()) {
    auto address = LocalAddressTowards(options.coordinator);
    if (!address.ok()) return address.status();
    request->set_address(*address);
  }
  request->set_timeout_ms(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(left)));
  CallOptions call;
  call.timeout = CallTimeout(*request, left);
  call.cancel = options.cancel.get();
  call.retry = false;
  return stub.Join(*request, call);
}

}  // namespace

v1::JoinRequest MakeJoinRequest(const SessionOptions& options,
                                const JobManifest& manifest) {
  v1::JoinRequest request;
  request.set_job(options.job);
  request.mutable_identity()->set_node(options.identity.node);
  request.mutable_identity()->set_slot(options.identity.slot);
  request.set_incarnation(options.incarnation.value());
  request.set_launcher_id(options.launcher_id);
  request.set_host(options.host);
  request.set_address(options.address);
  request.mutable_topology()->Assign(options.topology.begin(),
                                     options.topology.end());
  request.set_after_generation(options.after_generation);
  request.set_attempt(options.attempt);
  request.set_encrypts(EncryptsData(options));
  if (options.after_generation == 0 && !options.catch_up_address.empty()) {
    request.mutable_catch_up()->set_address(options.catch_up_address);
    request.mutable_catch_up()->set_secret(options.catch_up_secret);
  }
  v1::Manifest* wire = request.mutable_manifest();
  wire->set_world_size(options.world_size);
  // One form only: manifests are compared.
  if (options.min_world_size < options.world_size) {
    wire->set_min_world_size(options.min_world_size);
  }
  wire->set_mesh(options.mesh);
  schedule::SettingsToWire(manifest, wire);
  for (const ParameterSpec& parameter : manifest.parameters) {
    AddParameter(parameter, wire);
  }
  AddTerms(manifest.terms, wire);
  wire->mutable_settings()->insert(manifest.settings.begin(),
                                   manifest.settings.end());
  auto& settings = *wire->mutable_settings();
  settings["library_version"] = kVersion;
  const bool on_gpu = options.device.kind == Device::Kind::kCuda;
  settings["device"] = on_gpu ? "cuda" : "cpu";
  if (on_gpu) settings["nccl_version"] = options.nccl_version;
  // Otherwise members would regroup with one that they cannot connect to.
  if (EncryptsData(options)) settings["data_encryption"] = "on";
  return request;
}

v1::Fence MakeFence(const SessionOptions& options,
                    const v1::JoinResponse& joined) {
  v1::Fence fence;
  fence.set_cluster_id(joined.cluster_id());
  fence.set_term(joined.term());
  fence.set_job(options.job);
  fence.set_generation(joined.generation());
  fence.set_incarnation(options.incarnation.value());
  return fence;
}

void AppendMembers(const google::protobuf::RepeatedPtrField<v1::Member>& wire,
                   std::vector<JobMember>* members) {
  for (const v1::Member& member : wire) members->push_back(FromWire(member));
}

bool EncryptsData(const SessionOptions& options) {
  return !options.security.tls.ca.empty() && !options.plain_data;
}

std::shared_ptr<const DataKey> TakeDataKey(const SessionOptions& options,
                                           v1::JoinResponse* joined) {
  if (joined->data_key().empty()) return nullptr;
  auto key = std::make_shared<DataKey>(options.job, joined->generation(),
                                       joined->data_key());
  explicit_bzero(joined->mutable_data_key()->data(), joined->data_key().size());
  joined->clear_data_key();
  return key;
}

PreviousGeneration PreviousOf(const v1::JoinResponse& joined) {
  PreviousGeneration previous;
  previous.generation = joined.previous_generation();
  previous.world_size = joined.previous_world_size();
  previous.reason = joined.reason();
  previous.lost_count = joined.lost_count();
  for (const v1::LostMember& wire : joined.lost()) {
    LostPeer lost;
    lost.member = FromWire(wire.member());
    lost.reason = wire.reason();
    lost.left = wire.left();
    lost.error_norm = wire.error_norm();
    lost.error_step = wire.error_step();
    previous.lost.push_back(std::move(lost));
  }
  return previous;
}

RetryPolicy RetriesOf(const SessionOptions& options) {
  return {options.clock, options.random, options.retry_base, options.retry_cap};
}

RetryPolicy RetriesOfMember(const SessionOptions& options, int world_size) {
  RetryPolicy policy = RetriesOf(options);
  policy.cap =
      std::min(policy.cap, 2 * policy.base + ReattachSpread(world_size));
  return policy;
}

absl::Duration ReattachSpread(int world_size) {
  return kSpreadPerMember * world_size;
}

absl::Duration FallbackAfter(const SessionOptions& options, int world_size) {
  // And a quarter more: in a large job the last of them come late.
  return options.fallback_after + ReattachSpread(world_size) * 5 / 4;
}

absl::StatusOr<v1::JoinResponse> JoinJob(const SessionOptions& options,
                                         CoordinatorStub& stub,
                                         v1::JoinRequest* request) {
  WaitingNotice notice(options, stub, *request);
  const RetryPolicy policy =
      options.after_generation > 0
          ? RetriesOfMember(options, options.after_world_size)
          : RetriesOf(options);
  Retry retry(policy, options.join_timeout, options.cancel.get());
  Attempts attempts;
  do {
    notice.BeginCall();
    auto response = AskOnce(options, stub, retry.left(), request);
    if (response.ok()) return response;
    const absl::Status& error = response.status();
    const bool answered = stub.Connected();
    // With a connection, DEADLINE_EXCEEDED is the coordinator's own and names
    // the workers that are missing. Without, it is the end of the time, and the
    // error before it has more to say.
    if (absl::IsDeadlineExceeded(error) && !answered) {
      if (attempts.unanswered.ok()) attempts.unanswered = error;
      break;
    }
    if (!absl::IsUnavailable(error) && !IsCutOff(error)) {
      return Refused(options, error);
    }
    const bool refused = answered && absl::IsUnavailable(error);
    attempts.refusal = refused ? error : absl::OkStatus();
    if (!refused) attempts.unanswered = error;
    notice.SetLastError(error);
    if (notice.LetItWait()) {
      // It was lost while this worker waited, perhaps for hours: the time that
      // it may take to come back begins now.
      attempts.waited = true;
      retry.Restart();
    }
  } while (retry.Pause());
  if (options.cancel != nullptr && !options.cancel->status().ok()) {
    return Refused(options, options.cancel->status());
  }
  return TimeIsUp(options, attempts);
}

absl::Status CheckAddresses(const v1::JoinResponse& joined) {
  if (!joined.has_unreachable()) return absl::OkStatus();
  const v1::Member& local = joined.unreachable();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", local.rank(), InParentheses(local.coordinates()), " on host ",
      local.host(), " listens at ", local.address(),
      ", where workers on the other hosts cannot reach it. ",
      "Set COXSWAIN_BIND_ADDRESS on that host, or give its `coxswain run` ",
      "--bind-address, to an address of its network"));
}

}  // namespace coxswain
