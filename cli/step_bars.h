#ifndef COXSWAIN_CLI_STEP_BARS_H_
#define COXSWAIN_CLI_STEP_BARS_H_

#include <string>

#include "proto/rendezvous.pb.h"

namespace coxswain {

// How the ranks of a job spent its last steps, as text for `coxswain status
// --watch`: a bar for each rank, whose length is its mean step beside that of
// the slowest, and a line for each hook with what it saved. Stragglers are
// marked, and are there even where not all ranks have room. Empty: the
// coordinator knows of no step. Plain function.
std::string StepBars(const v1::JobDescription& job);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_STEP_BARS_H_
