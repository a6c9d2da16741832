#ifndef COXSWAIN_TESTS_CONFORMANCE_HOOK_CASE_STEPS_H_
#define COXSWAIN_TESTS_CONFORMANCE_HOOK_CASE_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/conformance/hook_conformance.h"
#include "tests/conformance/hook_world.h"

// Worlds of a HookCase and steps of theirs, for the suite's own tests.

namespace coxswain {

constexpr uint64_t kStream = 11;  // of the gradients

std::vector<ParameterSpec> Parameters(const HookCase& hook);

HookWorld MakeWorld(const HookCase& hook, int size,
                    HookWorld::Buckets buckets = {});

// Returns each rank's gradients of a step.
std::vector<Gradients> LocalGradients(const HookCase& hook, int size,
                                      int64_t step);

// Returns three buckets, or another number, in registration order.
HookWorld::Buckets OtherBuckets(const HookCase& hook, size_t number = 3);

// Exchanges, and returns the results: one that is the same on all ranks, bit by
// bit, or each rank's.
std::vector<Gradients> Exchange(const HookCase& hook, HookWorld& world,
                                const std::vector<Gradients>& local);
// Exchanges and commits; returns the results as Exchange does.
std::vector<Gradients> Step(const HookCase& hook, HookWorld& world,
                            const std::vector<Gradients>& local);
// Steps [from, to) with each step's own gradients: the results of each.
std::vector<std::vector<Gradients>> RunSteps(const HookCase& hook,
                                             HookWorld& world, int64_t from,
                                             int64_t to);

bool AllFinite(const std::vector<Gradients>& results);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_HOOK_CASE_STEPS_H_
