#ifndef COXSWAIN_TESTS_SYSTEM_TOY_TOY_DUMP_H_
#define COXSWAIN_TESTS_SYSTEM_TOY_TOY_DUMP_H_

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/tensor.h"

namespace coxswain {

// Gradients as the toy worker writes them and the tests read them: for each, a
// line "STEP PARAMETER COUNT", then the elements as doubles.
class ToyDumpWriter {
 public:
  // Fails with UNAVAILABLE if the file cannot be written.
  absl::Status Open(const std::string& path);
  bool is_open() const { return file_.is_open(); }

  absl::Status Write(int64_t step, const std::string& parameter,
                     const Span& gradient);

 private:
  std::ofstream file_;
};

// By step and parameter.
using ToyDump = std::map<std::pair<int64_t, std::string>, std::vector<double>>;

// Fails with DATA_LOSS if the file is torn.
absl::StatusOr<ToyDump> ReadToyDump(const std::string& path);

std::vector<double> ToDoubles(const Span& span);

// Returns the 2-norm of the difference over that of `a`; infinite for other
// sizes.
double RelativeDifference(const std::vector<double>& a,
                          const std::vector<double>& b);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_TOY_TOY_DUMP_H_
