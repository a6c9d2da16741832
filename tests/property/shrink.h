#ifndef COXSWAIN_TESTS_PROPERTY_SHRINK_H_
#define COXSWAIN_TESTS_PROPERTY_SHRINK_H_

#include <functional>
#include <vector>

#include "tests/property/case.h"

namespace coxswain::property {

// Returns valid cases that are a little smaller or plainer than `one`, the
// boldest first. Following them for ever is not possible.
std::vector<Case> Smaller(const Case& one);

// Returns the smallest case that greedy steps lead to from one that fails: each
// that still fails is taken. `runs` bounds how often `fails` is called.
Case Shrink(Case one, const std::function<bool(const Case&)>& fails, int runs);

}  // namespace coxswain::property

#endif  // COXSWAIN_TESTS_PROPERTY_SHRINK_H_
