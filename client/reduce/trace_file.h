#ifndef COXSWAIN_CLIENT_REDUCE_TRACE_FILE_H_
#define COXSWAIN_CLIENT_REDUCE_TRACE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/reduce/reducer_options.h"
#include "client/reduce/step_report.h"

namespace coxswain {

// A stretch of time on a rank's track for its pipeline.
struct TraceSpan {
  std::string name;
  absl::Time begin;
  absl::Time end;
};

// Writes steps of one rank as a trace in Chrome's JSON format (an array of
// events, for chrome://tracing or ui.perfetto.dev): a process per rank, one
// track for the training thread (from BeginStep until the last gradient, and
// its wait in Finish) and one per bucket (waits for its turn, compress,
// exchange, decompress). Times are microseconds of the reducer's clock.
//
// The file can be read while it grows, as the format allows the array's end to
// be missing. Written by the reducer's owner, from its on_step.
//
// Threading: one thread at a time.
class TraceFile {
 public:
  // Replaces the file at TracePath(path, rank). Fails with the file system's
  // errors, with the path.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(
      const std::string& path, int rank, const std::string& host = "");
  virtual ~TraceFile() = default;

  // Appends a finished step. After an error (a full disk) it returns that error
  // and writes nothing more.
  virtual absl::Status Add(const StepReport& report) = 0;
  // Appends what this rank of a pipeline did in a step, to a track of its own.
  virtual absl::Status AddPipeline(int64_t step,
                                   const std::vector<TraceSpan>& spans) = 0;
};

// Adds such a file to options->on_step, which keeps its earlier callback. Does
// nothing if `path` is empty. A file that cannot be written later ends with a
// warning. Fails as TraceFile::Open.
absl::Status AddTrace(const std::string& path, int rank,
                      ReducerOptions* options);
// Adds one that is open, at `path` as logs name it. For those who add to it
// themselves, on the thread of on_step.
void AddTrace(std::shared_ptr<TraceFile> trace, const std::string& path,
              ReducerOptions* options);

// Returns "runs/trace.rank2.json" for "runs/trace.json" on rank 2,
// "trace.rank2" for "trace".
std::string TracePath(const std::string& path, int rank);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_TRACE_FILE_H_
