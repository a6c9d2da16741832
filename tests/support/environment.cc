#include "tests/support/environment.h"

#include <cstdlib>
#include <iostream>

#include "absl/strings/numbers.h"

namespace coxswain {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    std::cerr << name << " must be a whole number, not '" << text << "'"
              << std::endl;
    std::exit(2);
  }
  return value;
}

bool EverySetting() { return std::getenv("COXSWAIN_EVERY_SETTING") != nullptr; }

}  // namespace coxswain
