#include "server/options/options.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "schedule/plan.h"

namespace coxswain::server {
namespace {

absl::Status Positive(absl::string_view name, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " must be more than 0, not ", absl::FormatDuration(value)));
}

absl::Status Positive(absl::string_view name, int value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be at least 1, not ", value));
}

// A longer spec could not be stored.
absl::Status CheckHookBytes(int max_hook_bytes) {
  COXSWAIN_RETURN_IF_ERROR(Positive("max_hook_bytes", max_hook_bytes));
  if (static_cast<size_t>(max_hook_bytes) <= schedule::kMaxHookBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("max_hook_bytes must be at most ", schedule::kMaxHookBytes,
                   ", not ", max_hook_bytes));
}

}  // namespace

absl::Status MembershipOptions::Validate() const {
  for (const auto& [name, value] :
       {std::pair("heartbeat_interval", heartbeat_interval),
        std::pair("lease", lease), std::pair("reattach_grace", reattach_grace),
        std::pair("broken_peer_grace", broken_peer_grace),
        std::pair("rejoin_grace", rejoin_grace),
        std::pair("survivor_timeout", survivor_timeout),
        std::pair("growth_settle", growth_settle),
        std::pair("growth_min_age", growth_min_age),
        std::pair("catch_up_timeout", catch_up_timeout),
        std::pair("max_join_timeout", max_join_timeout),
        std::pair("last_call", last_call),
        std::pair("mismatch_settle", mismatch_settle)}) {
    COXSWAIN_RETURN_IF_ERROR(Positive(name, value));
  }
  for (const auto& [name, value] :
       {std::pair("max_jobs", max_jobs),
        std::pair("max_members_per_job", max_members_per_job),
        std::pair("max_spares_per_job", max_spares_per_job),
        std::pair("max_withdrawn_per_job", max_withdrawn_per_job),
        std::pair("max_parameters", max_parameters),
        std::pair("max_parameter_name_bytes", max_parameter_name_bytes),
        std::pair("max_dimensions", max_dimensions),
        std::pair("max_settings", max_settings),
        std::pair("max_setting_bytes", max_setting_bytes),
        std::pair("max_accumulation_steps", max_accumulation_steps),
        std::pair("max_name_bytes", max_name_bytes),
        std::pair("max_topology_keys", max_topology_keys),
        std::pair("max_topology_key_bytes", max_topology_key_bytes),
        std::pair("max_reason_bytes", max_reason_bytes)}) {
    COXSWAIN_RETURN_IF_ERROR(Positive(name, value));
  }
  COXSWAIN_RETURN_IF_ERROR(CheckHookBytes(max_hook_bytes));
  if (max_members_per_job > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_members_per_job must be at most ", kMaxWorldSize,
                     ", not ", max_members_per_job));
  }
  if (lease < 2 * heartbeat_interval) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease (", absl::FormatDuration(lease),
                     ") must be at least twice heartbeat_interval (",
                     absl::FormatDuration(heartbeat_interval), ")"));
  }
  return absl::OkStatus();
}

absl::Status PlanOptions::Validate() const {
  COXSWAIN_RETURN_IF_ERROR(
      Positive("max_accumulation_steps", max_accumulation_steps));
  return CheckHookBytes(max_hook_bytes);
}

absl::Status RpcOptions::Validate() const {
  COXSWAIN_RETURN_IF_ERROR(Positive("max_message_bytes", max_message_bytes));
  if (max_held_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_held_bytes must be at least 0, not ", max_held_bytes));
  }
  COXSWAIN_RETURN_IF_ERROR(
      Positive("max_streams_per_connection", max_streams_per_connection));
  COXSWAIN_RETURN_IF_ERROR(Positive("max_queued_events", max_queued_events));
  COXSWAIN_RETURN_IF_ERROR(
      Positive("max_waiting_connections", max_waiting_connections));
  COXSWAIN_RETURN_IF_ERROR(Positive("max_connections", max_connections));
  COXSWAIN_RETURN_IF_ERROR(Positive("preface_timeout", preface_timeout));
  COXSWAIN_RETURN_IF_ERROR(
      Positive("first_message_timeout", first_message_timeout));
  COXSWAIN_RETURN_IF_ERROR(Positive("transfer_timeout", transfer_timeout));
  COXSWAIN_RETURN_IF_ERROR(Positive("keepalive_time", keepalive_time));
  return Positive("keepalive_timeout", keepalive_timeout);
}

}  // namespace coxswain::server
