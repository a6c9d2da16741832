#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/call.h"
#include "capi/open_session.h"

namespace coxswain::capi {
namespace {

absl::StatusOr<std::string> BytesOf(const void* bytes, size_t size,
                                    absl::string_view argument) {
  if (size > 0) COXSWAIN_RETURN_IF_ERROR(CheckPresent(bytes, argument));
  return std::string(static_cast<const char*>(bytes), size);
}

// Keeps a value for the caller's thread.
void HandOut(std::string bytes, const void** value, size_t* value_size) {
  thread_local std::string kept;
  kept = std::move(bytes);
  if (value != nullptr) *value = kept.data();
  if (value_size != nullptr) *value_size = kept.size();
}

absl::StatusOr<std::string> KeyOf(const char* key, absl::string_view argument) {
  COXSWAIN_RETURN_IF_ERROR(CheckPresent(key, argument));
  return TextOf(key, argument);
}

}  // namespace
}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_store_set(cx_session session, const char* key, const void* value,
                     size_t value_size, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto name, capi::KeyOf(key, "key"));
    COXSWAIN_ASSIGN_OR_RETURN(auto bytes,
                              capi::BytesOf(value, value_size, "value"));
    capi::Work work;
    work.run = [open, name, bytes = std::move(bytes)]() {
      return open->session->store().Set(name, bytes);
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_store_get(cx_session session, const char* key, int64_t timeout_ms,
                     const void** value, size_t* value_size, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto name, capi::KeyOf(key, "key"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(value, "value"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(value_size, "value_size"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckTimeout(timeout_ms));
    const auto got = std::make_shared<std::string>();
    capi::Work work;
    work.run = [open, name, timeout_ms, got]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(
          *got,
          open->session->store().Get(name, absl::Milliseconds(timeout_ms)));
      return absl::OkStatus();
    };
    work.deliver = [got, value, value_size]() {
      capi::HandOut(std::move(*got), value, value_size);
      return absl::OkStatus();
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_store_wait(cx_session session, const char* const* keys,
                      size_t key_count, int64_t timeout_ms, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    if (key_count > 0) {
      COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(keys, "keys"));
    }
    COXSWAIN_RETURN_IF_ERROR(capi::CheckTimeout(timeout_ms));
    std::vector<std::string> names;
    for (size_t i = 0; i < key_count; ++i) {
      COXSWAIN_ASSIGN_OR_RETURN(
          auto name, capi::KeyOf(keys[i], absl::StrCat("keys[", i, "]")));
      names.push_back(std::move(name));
    }
    capi::Work work;
    work.run = [open, names = std::move(names), timeout_ms]() {
      return open->session->store().Wait(names, absl::Milliseconds(timeout_ms));
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_store_add(cx_session session, const char* key, int64_t amount,
                     int64_t* sum, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto name, capi::KeyOf(key, "key"));
    const auto result = std::make_shared<int64_t>(0);
    capi::Work work;
    work.run = [open, name, amount, result]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(*result,
                                open->session->store().Add(name, amount));
      return absl::OkStatus();
    };
    work.deliver = [result, sum]() {
      if (sum != nullptr) *sum = *result;
      return absl::OkStatus();
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_store_compare_set(cx_session session, const char* key,
                             const void* expected, size_t expected_size,
                             const void* desired, size_t desired_size,
                             const void** value, size_t* value_size,
                             int32_t* swapped, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto name, capi::KeyOf(key, "key"));
    COXSWAIN_ASSIGN_OR_RETURN(
        auto before, capi::BytesOf(expected, expected_size, "expected"));
    COXSWAIN_ASSIGN_OR_RETURN(auto after,
                              capi::BytesOf(desired, desired_size, "desired"));
    const auto result = std::make_shared<coxswain::CompareSetResult>();
    capi::Work work;
    work.run = [open, name, before = std::move(before),
                after = std::move(after), result]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(
          *result, open->session->store().CompareSet(name, before, after));
      return absl::OkStatus();
    };
    work.deliver = [result, value, value_size, swapped]() {
      if (swapped != nullptr) *swapped = result->swapped ? 1 : 0;
      capi::HandOut(std::move(result->value), value, value_size);
      return absl::OkStatus();
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_store_delete(cx_session session, const char* key, int32_t* existed,
                        cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto name, capi::KeyOf(key, "key"));
    const auto result = std::make_shared<bool>(false);
    capi::Work work;
    work.run = [open, name, result]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(*result,
                                open->session->store().DeleteKey(name));
      return absl::OkStatus();
    };
    work.deliver = [result, existed]() {
      if (existed != nullptr) *existed = *result ? 1 : 0;
      return absl::OkStatus();
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_store_count_keys(cx_session session, const char* prefix,
                            int64_t* count, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    std::string begin;
    if (prefix != nullptr && *prefix != '\0') {
      COXSWAIN_ASSIGN_OR_RETURN(begin, capi::KeyOf(prefix, "prefix"));
    }
    const auto result = std::make_shared<int64_t>(0);
    capi::Work work;
    work.run = [open, begin, result]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(*result,
                                open->session->store().CountKeys(begin));
      return absl::OkStatus();
    };
    work.deliver = [result, count]() {
      if (count != nullptr) *count = *result;
      return absl::OkStatus();
    };
    return capi::Do(call, std::move(work));
  });
}
