#ifndef COXSWAIN_TESTS_PROPERTY_RUN_CASE_H_
#define COXSWAIN_TESTS_PROPERTY_RUN_CASE_H_

#include "tests/property/case.h"
#include "tests/property/record.h"

namespace coxswain::property {

// Trains as the case describes, with a thread per rank and
// DistributedDataParallel over an InProcessWorld. An error, or a rank that
// hangs, is in the record.
Record RunCase(const Case& one);

}  // namespace coxswain::property

#endif  // COXSWAIN_TESTS_PROPERTY_RUN_CASE_H_
