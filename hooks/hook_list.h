#ifndef COXSWAIN_HOOKS_HOOK_LIST_H_
#define COXSWAIN_HOOKS_HOOK_LIST_H_

#include <string>
#include <vector>

#include "hooks/hook_row.h"

namespace coxswain {

// What the registry knows of hooks, written out: what `coxswain hooks` prints,
// and the cards in docs/hooks.md. Each ends with a newline.

// For a terminal: help, options and card of each hook.
std::string HooksAsText(const std::vector<HookDescription>& hooks);

// Returns the same as a section per hook, under headings of the third level.
std::string HooksAsMarkdown(const std::vector<HookDescription>& hooks);

// {"hooks": [{"name", "aliases", "help", "takes_inner", "needs_inner",
//   "options": [{"name", "aliases", "type", "range", "default", "help"}],
//   "card": {"bytes", "collectives", "memory", "numerics", "avoid"}}]}
// where a default has its own JSON type, and "range" is for display.
std::string HooksAsJson(const std::vector<HookDescription>& hooks);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_HOOK_LIST_H_
