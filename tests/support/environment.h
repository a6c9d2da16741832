#ifndef COXSWAIN_TESTS_SUPPORT_ENVIRONMENT_H_
#define COXSWAIN_TESTS_SUPPORT_ENVIRONMENT_H_

#include <cstdint>

namespace coxswain {

// What the rule of a test, or --test_env, asks of the test.

// Returns the whole number in the variable `name`, or `otherwise` if that is
// not set. Ends the process, with a message, if it is no number.
int64_t FromEnvironment(const char* name, int64_t otherwise);

// Returns whether COXSWAIN_EVERY_SETTING is set, as it is for the long tests:
// a test then runs all combinations of its parameters, instead of each value
// in some of them.
bool EverySetting();

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_ENVIRONMENT_H_
