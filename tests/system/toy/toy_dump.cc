#include "tests/system/toy/toy_dump.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace coxswain {

absl::Status ToyDumpWriter::Open(const std::string& path) {
  file_.open(path, std::ios::binary | std::ios::trunc);
  if (file_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::Status ToyDumpWriter::Write(int64_t step, const std::string& parameter,
                                  const Span& gradient) {
  const std::vector<double> values = ToDoubles(gradient);
  file_ << step << " " << parameter << " " << values.size() << "\n";
  file_.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(double)));
  file_.flush();
  return file_ ? absl::OkStatus()
               : absl::DataLossError("could not write the dump");
}

absl::StatusOr<ToyDump> ReadToyDump(const std::string& path) {
  ToyDump dump;
  std::ifstream file(path, std::ios::binary);
  int64_t step = 0;
  std::string parameter;
  size_t count = 0;
  while (file >> step >> parameter >> count) {
    file.get();  // the end of the line
    std::vector<double> values(count);
    file.read(reinterpret_cast<char*>(values.data()),
              static_cast<std::streamsize>(count * sizeof(double)));
    if (!file) return absl::DataLossError(absl::StrCat(path, " is torn"));
    dump[{step, parameter}] = std::move(values);
  }
  return dump;
}

std::vector<double> ToDoubles(const Span& span) {
  if (span.dtype == DType::kFloat64) {
    const auto* values = static_cast<const double*>(span.data);
    return {values, values + span.count};
  }
  const auto* values = static_cast<const float*>(span.data);
  return {values, values + span.count};
}

double RelativeDifference(const std::vector<double>& a,
                          const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += a[i] * a[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace coxswain
