#ifndef COXSWAIN_HOOKS_AVERAGERS_LOCAL_GRADIENTS_H_
#define COXSWAIN_HOOKS_AVERAGERS_LOCAL_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/reduce/hook.h"

namespace coxswain {

// The gradient side of the averagers: the plain average over all ranks in the
// first `start_step` steps; afterwards the plain average within the block of
// `group` consecutive ranks that a rank belongs to, or no exchange at all
// where `group` is 1. The last block has what remains of the ranks.
//
// The blocks are split off the communicator in the first step that needs them
// after Configure: all ranks prepare that step. The state is the step alone.
std::unique_ptr<Hook> MakeLocalGradientsHook(std::string spec,
                                             int64_t start_step, int64_t group);

// The ranks of the block of `group` consecutive ones that has `rank`.
std::vector<int> BlockOf(int rank, int size, int64_t group);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_AVERAGERS_LOCAL_GRADIENTS_H_
