#include <cstdio>
#include <fstream>
#include <string>

#include "tests/golden/golden_states.h"

// Writes the files of hook_states/ that are not there yet. Those that are stay:
// what a released version has saved must load for ever.

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_golden_states FOLDER\n");
    return 2;
  }
  for (const coxswain::GoldenState& golden : coxswain::GoldenStates()) {
    for (const auto& [name, bytes] : coxswain::TrainedStates(golden)) {
      const std::string path = std::string(argv[1]) + "/" + name;
      if (std::ifstream(path).good()) continue;
      std::ofstream out(path, std::ios::binary);
      out << bytes;
      std::printf("%s: %zu bytes\n", path.c_str(), bytes.size());
      if (!out.flush()) return 1;
    }
  }
  return 0;
}
