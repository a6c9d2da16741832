#include "tests/fuzz/corpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace coxswain {

std::vector<FuzzSeed> ReadCorpus(absl::string_view target) {
  std::filesystem::path folder("tests/fuzz/corpus");
  folder /= std::string(target);
  std::vector<FuzzSeed> seeds;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::ifstream in(entry.path(), std::ios::binary);
    seeds.push_back({entry.path().filename().string(),
                     std::string(std::istreambuf_iterator<char>(in), {})});
  }
  std::sort(
      seeds.begin(), seeds.end(),
      [](const FuzzSeed& a, const FuzzSeed& b) { return a.file < b.file; });
  return seeds;
}

}  // namespace coxswain
