#ifndef COXSWAIN_CAPI_HOOK_CALLS_H_
#define COXSWAIN_CAPI_HOOK_CALLS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "capi/coxswain.h"
#include "client/reduce/hook.h"
#include "hooks/options.h"

// How functions of a hook of the program's own are called.
namespace coxswain::capi {

// Whether functions of hooks may be called: until the program ends them, for
// which it waits. Thread-safe.
class HookGate {
 public:
  static HookGate& Get();

  // Returns whether a function may be called; Leave follows if so.
  bool Enter();
  void Leave();

  // Lets none be called from now on, and waits until none runs, `limit` at
  // most; returns whether that is so. Not from within one.
  bool End(absl::Duration limit);

 private:
  Mutex mutex_;
  CondVar left_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Sets the text of the error that a function of a hook returns on this thread.
void SetHookError(std::string message);

// Returns the status of a code that a function of a hook has returned.
absl::Status HookStatus(cx_code code, absl::string_view function);
// Returns the status of the exception in flight that has left one.
absl::Status HookException(absl::string_view function);
absl::Status HookEnded();

// Calls a function of a hook by `body`, which returns its code.
template <typename Body>
absl::Status CallHook(absl::string_view function, const Body& body) {
  if (!HookGate::Get().Enter()) return HookEnded();
  SetHookError({});
  absl::Status status;
  try {
    status = HookStatus(body(), function);
  } catch (...) {
    status = HookException(function);
  }
  HookGate::Get().Leave();
  return status;
}

// What a program has registered: a copy of its cx_hook, with texts that stay.
struct OwnHook {
  std::string name, version;
  cx_hook calls{};
};

// Returns a hook of the program's own. It exists also where the program could
// not make its part: then Configure fails with the reason.
std::unique_ptr<Hook> MakeOwnHook(std::shared_ptr<const OwnHook> own,
                                  std::string spec,
                                  const OptionValues& options);

// Fails if the program does not make a hook with these options.
absl::Status CheckOwnHook(const OwnHook& own, const OptionValues& options);

// Options as the program is given them.
class OptionSettings {
 public:
  explicit OptionSettings(const OptionValues& options)
      : texts_(options.Texts()) {
    for (const auto& [name, value] : texts_) {
      settings_.push_back({name.c_str(), value.c_str()});
    }
  }
  OptionSettings(const OptionSettings&) = delete;
  OptionSettings& operator=(const OptionSettings&) = delete;

  const std::vector<cx_setting>& settings() const { return settings_; }

 private:
  const std::map<std::string, std::string> texts_;
  std::vector<cx_setting> settings_;
};

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_HOOK_CALLS_H_
