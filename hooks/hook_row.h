#ifndef COXSWAIN_HOOKS_HOOK_ROW_H_
#define COXSWAIN_HOOKS_HOOK_ROW_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "hooks/options.h"

namespace coxswain {

// What a hook costs, in a line or two each; for those who choose one.
struct CostCard {
  std::string bytes;        // a rank's on the wire, per bucket and step
  std::string collectives;  // per bucket and step
  std::string memory;       // kept between steps, and in flight
  std::string numerics;     // what is lost or rounded, and where
  std::string avoid;        // when not to use it
};

// What there is to know about a hook before it is made.
struct HookDescription {
  std::string name;
  std::vector<std::string> aliases;
  std::string help;          // one line
  bool takes_inner = false;  // may wrap another hook
  bool needs_inner = false;  // makes no sense without one
  std::vector<OptionDescription> options;
  CostCard card;
};

// One hook of the registry: what users see of it, and how it is checked and
// made. The file that implements a hook offers its row.
struct HookRow {
  HookDescription description;
  // Whether the hook exchanges buckets in a GPU's memory itself. Those of the
  // others are staged (hooks/staged_hook.h).
  bool on_device = false;
  // Checks what no single option's range covers; null if there is no such
  // thing.
  std::function<absl::Status(const OptionValues& options, bool has_inner)>
      check;
  // `spec` is canonical; `inner` is null when there is none.
  std::function<std::unique_ptr<Hook>(std::string spec, OptionValues options,
                                      std::unique_ptr<Hook> inner)>
      make;
  // The part that averages parameters after the optimizer step; null if the
  // hook has none.
  std::function<std::unique_ptr<Averager>(std::string spec,
                                          const OptionValues& options)>
      make_averager;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_HOOK_ROW_H_
