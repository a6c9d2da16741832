#ifndef COXSWAIN_TESTS_CONFORMANCE_HOOK_CONFORMANCE_H_
#define COXSWAIN_TESTS_CONFORMANCE_HOOK_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "client/device/tensor.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "gtest/gtest.h"

// What every hook must do, as tests, on 1 to 8 ranks. A test file links
// //tests/conformance:hook_conformance and has
//
//   INSTANTIATE_TEST_SUITE_P(Hooks, HookConformance,
//                            testing::ValuesIn(cases), HookCaseName);

namespace coxswain {

// Which step of a hook a formula is asked about.
struct HookStep {
  int64_t step = 0;      // committed steps before it
  bool started = false;  // the hook had started
  int size = 1;          // ranks
};

// A hook under test, and what is promised of it.
struct HookCase {
  std::string name;
  std::string spec;
  // Makes the hook where no spec names it, as with a user's own.
  std::function<std::unique_ptr<Hook>()> make;
  DType dtype = DType::kFloat32;
  // Where the parameters and buckets are; a GPU is an emulated one.
  Device device;
  // Relative distance of a step's result from the average, once the hook has
  // started; negative if one step promises nothing.
  double average_tolerance = 0;
  // Relative distance from an uninterrupted run, after a restart on any
  // number of ranks: in the first step, and in the ten after it.
  double first_step_tolerance = 0;
  double later_tolerance = 0;
  // Committed steps after which the hook has started.
  int64_t start_step = 0;
  // Returns the bytes that a rank hands to collectives for one bucket of these
  // parameters, by the hook's formula.
  std::function<int64_t(const std::vector<ParameterSpec>& parameters,
                        const HookStep& step)>
      bucket_bytes;
  // The same where each rank keeps its slice of the bucket's averages; null:
  // the same bytes.
  std::function<int64_t(const std::vector<ParameterSpec>& parameters,
                        const HookStep& step)>
      slice_bytes;
  // Averages of slices have the bits of those of whole buckets, and leave the
  // same behind. Otherwise, once the hook has started, they are within
  // average_tolerance.
  bool slices_are_exact = true;
  // What Hook::needs_frozen_layout() returns once the hook has started; before,
  // it returns false.
  bool freezes_layout = false;
  // The result depends on which gradients share a bucket.
  bool buckets_matter = false;
  // What a step leaves out is kept as an error and sent later: every step,
  // result plus mean error is mean gradient plus the mean error before it.
  bool error_feedback = false;
  // LoadOwn drops errors that it would have to scale.
  bool drops_errors = false;
  // Names the gradients that are not finite, once the hook has started.
  bool reports_non_finite = false;
  // The state is each rank's own. The same number of ranks takes it over
  // within the tolerances, any other number approximately.
  bool state_per_rank = false;
  // Once started, ranks go different ways: nothing is averaged.
  bool ranks_differ = false;
};

// Returns a hook that averages all elements as they are, `width` bytes each on
// the wire, within a relative tolerance.
HookCase PlainHookCase(std::string name, std::string spec, DType dtype,
                       int64_t width, double tolerance);

inline void PrintTo(const HookCase& value, std::ostream* out) {
  *out << value.name << ": " << value.spec;
}

inline std::string HookCaseName(const testing::TestParamInfo<HookCase>& info) {
  return info.param.name;
}

class HookConformance : public testing::TestWithParam<HookCase> {};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_HOOK_CONFORMANCE_H_
