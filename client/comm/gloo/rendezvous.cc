#include "client/comm/gloo/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/comm/gloo/gloo_status.h"
#include "client/comm/gloo/transport.h"
#include "client/comm/group_options.h"

namespace coxswain {
namespace {

// Gloo's store over ours, for one communicator. Gloo's keys are ranks.
class PrefixedStore : public ::gloo::rendezvous::Store {
 public:
  // `options` outlives the store.
  explicit PrefixedStore(const CommunicatorOptions& options)
      : options_(options),
        deadline_(std::chrono::steady_clock::now() +
                  absl::ToChronoNanoseconds(
                      std::min(options.timeout, absl::Hours(24)))) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const absl::Status status = options_.store->Set(
        Key(key), absl::string_view(data.data(), data.size()));
    if (!status.ok()) throw StoreFailure(status);
  }

  std::vector<char> get(const std::string& key) override {
    const auto value = options_.store->Get(Key(key), TimeLeft());
    if (value.ok()) return {value->begin(), value->end()};
    if (!absl::IsDeadlineExceeded(value.status())) {
      throw StoreFailure(value.status());
    }
    throw StoreFailure(absl::DeadlineExceededError(absl::StrCat(
        "not all ranks came within ", absl::FormatDuration(options_.timeout),
        "; missing: ", absl::StrJoin(Missing(), ", "))));
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  std::string Key(absl::string_view rank) const {
    return absl::StrCat("gloo/", options_.id, "/", rank);
  }
  absl::Duration TimeLeft() const {
    return std::max(
        absl::FromChrono(deadline_ - std::chrono::steady_clock::now()),
        absl::ZeroDuration());
  }
  std::vector<std::string> Missing() const {
    std::vector<std::string> missing;
    for (int rank = 0; rank < options_.size; ++rank) {
      const auto value =
          options_.store->Get(Key(absl::StrCat(rank)), absl::ZeroDuration());
      if (!value.ok()) missing.push_back(absl::StrCat("rank ", rank));
    }
    return missing;
  }

  const CommunicatorOptions& options_;
  const std::chrono::steady_clock::time_point deadline_;
};

using ContextPtr = std::shared_ptr<::gloo::Context>;

// Our message about a store that waited in vain names who is missing, and
// comes first.
constexpr absl::Duration kConnectMargin = absl::Seconds(1);

std::string Where(const CommunicatorOptions& options) {
  return absl::StrCat("connecting rank ", options.rank, " of ", options.size,
                      " of communicator '", options.id, "' at ",
                      options.address);
}

absl::StatusOr<ContextPtr> ConnectBlocking(
    const CommunicatorOptions& options,
    std::shared_ptr<TransportControl> control) {
  auto context =
      std::make_shared<::gloo::rendezvous::Context>(options.rank, options.size);
  COXSWAIN_RETURN_IF_ERROR(CallGloo(Where(options), [&] {
    // Gloo counts in milliseconds and takes zero for no bound.
    context->setTimeout(std::max(std::chrono::milliseconds(1),
                                 absl::ToChronoMilliseconds(std::min(
                                     options.timeout, absl::Hours(24)))));
    ::gloo::transport::tcp::attr attributes(options.address.c_str());
    std::shared_ptr<::gloo::transport::Device> device = WatchDevice(
        ::gloo::transport::tcp::CreateDevice(attributes), std::move(control));
    PrefixedStore store(options);
    context->connectFullMesh(store, device);
  }));
  return context;
}

// What the caller and the thread that connects share.
struct Attempt {
  Mutex mutex;
  CondVar changed;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  std::optional<absl::StatusOr<ContextPtr>> result ABSL_GUARDED_BY(mutex);
};

// Waits for a result until `timeout` has passed or `cancel` is raised.
void Await(Attempt* attempt, absl::Duration timeout)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(attempt->mutex) {
  attempt->changed.WaitFor(
      &attempt->mutex, timeout, [=]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return attempt->cancelled || attempt->result.has_value();
      });
}

}  // namespace

absl::StatusOr<ContextPtr> ConnectFullMesh(
    const CommunicatorOptions& options,
    std::shared_ptr<TransportControl> control) {
  COXSWAIN_RETURN_IF_ERROR(CheckGroupOptions(options, "gloo"));
  auto attempt = std::make_shared<Attempt>();
  std::thread([attempt, options, control = std::move(control)] {
    auto result = ConnectBlocking(options, control);
    MutexLock lock(&attempt->mutex);
    attempt->result = std::move(result);
    attempt->changed.NotifyAll();
  }).detach();

  uint64_t link = 0;
  if (options.cancel != nullptr) {
    link = options.cancel->OnRaise([attempt] {
      MutexLock lock(&attempt->mutex);
      attempt->cancelled = true;
      attempt->changed.NotifyAll();
    });
  }
  std::optional<absl::StatusOr<ContextPtr>> result;
  bool cancelled = false;
  {
    MutexLock lock(&attempt->mutex);
    Await(attempt.get(), options.timeout + kConnectMargin);
    result = std::move(attempt->result);
    cancelled = attempt->cancelled;
  }
  if (options.cancel != nullptr) options.cancel->Forget(link);
  if (cancelled) return options.cancel->status();
  if (result.has_value()) return *std::move(result);
  return absl::DeadlineExceededError(absl::StrCat(
      Where(options), ": not all ranks have connected within ",
      absl::FormatDuration(options.timeout),
      ", although each has published its address; look for one that died"));
}

}  // namespace coxswain
