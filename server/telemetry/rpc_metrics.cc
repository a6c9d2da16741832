#include "server/telemetry/rpc_metrics.h"

#include "absl/strings/strip.h"

namespace coxswain::server {

void RpcMetrics::NoteCall(absl::string_view method, absl::string_view code,
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

void RpcMetrics::NoteMessage(const std::string& kind) {
  MutexLock lock(&mutex_);
  ++counted_.messages[kind];
}

RpcMetrics::Snapshot RpcMetrics::Read() const {
  MutexLock lock(&mutex_);
  return counted_;
}

}  // namespace coxswain::server
