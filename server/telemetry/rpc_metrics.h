#ifndef COXSWAIN_SERVER_TELEMETRY_RPC_METRICS_H_
#define COXSWAIN_SERVER_TELEMETRY_RPC_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/histogram.h"
#include "base/mutex.h"

namespace coxswain::server {

// How many calls there were of each method, how they ended, and how long they
// took; and what came over the streams of the workers. Filled by server/rpc.
// Thread-safe.
class RpcMetrics {
 public:
  // More than there are; further ones count as "other".
  static constexpr size_t kMaxMethods = 128;

  struct Method {
    Histogram duration;                    // of calls that are no streams
    std::map<std::string, int64_t> codes;  // how calls ended
  };
  struct Snapshot {
    std::map<std::string, Method> methods;  // by "Service/Method"
    std::map<std::string, int64_t> messages;
  };

  // "/package.Service/Method", as gRPC has it. A stream has no duration.
  void NoteCall(absl::string_view method, absl::string_view code,
                absl::Duration duration, bool stream) {
    absl::ConsumePrefix(&method, "/");
    // Services of the wire contract go without their package.
    absl::ConsumePrefix(&method, "coxswain.v1.");
    MutexLock lock(&mutex_);
    std::string name(method);
    const bool known = counted_.methods.count(name) > 0;
    if (!known && counted_.methods.size() >= kMaxMethods) name = "other";
    Method& counted = counted_.methods[name];
    ++counted.codes[std::string(code)];
    if (!stream) counted.duration.Observe(absl::ToDoubleSeconds(duration));
  }
  // A message of an Attach stream: "heartbeat", "ticket", ... of a fixed list.
  void NoteMessage(const std::string& kind) {
    MutexLock lock(&mutex_);
    ++counted_.messages[kind];
  }

  Snapshot Read() const {
    MutexLock lock(&mutex_);
    return counted_;
  }

 private:
  mutable Mutex mutex_;
  Snapshot counted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TELEMETRY_RPC_METRICS_H_
