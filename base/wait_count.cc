#include "base/wait_count.h"

#include <utility>

namespace coxswain {
namespace {

// Not in the header: libraries would export it.
thread_local bool in_background = false;

}  // namespace

bool WaitCount::InBackground() { return in_background; }

bool WaitCount::SetInBackground(bool is) {
  return std::exchange(in_background, is);
}

}  // namespace coxswain
