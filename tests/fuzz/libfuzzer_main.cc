// Runs one of the linked targets under libFuzzer: the one that
// COXSWAIN_FUZZ_TARGET names. Built by --config=fuzz only; docs/fuzzing.md.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "absl/strings/string_view.h"
#include "base/logging.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

const coxswain::FuzzTarget* chosen = nullptr;

const coxswain::FuzzTarget* Find(absl::string_view name) {
  for (const coxswain::FuzzTarget& target : coxswain::FuzzTargets()) {
    if (name == target.name) return &target;
  }
  return nullptr;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  coxswain::SetLogLevel("off");
  const char* const name = std::getenv("COXSWAIN_FUZZ_TARGET");
  chosen = Find(name == nullptr ? "" : name);
  if (chosen != nullptr) return 0;
  std::cerr << "COXSWAIN_FUZZ_TARGET must be one of:";
  for (const coxswain::FuzzTarget& target : coxswain::FuzzTargets()) {
    std::cerr << " " << target.name;
  }
  std::cerr << std::endl;
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  chosen->run(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
