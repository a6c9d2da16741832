#include "client/reduce/trace_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using Json = nlohmann::json;

// Track 0 is the training thread's, bucket b has track b + 1.
constexpr int kTrainingTrack = 0;
constexpr int TrackOf(size_t bucket) { return static_cast<int>(bucket) + 1; }
// Of the pipeline; there are never as many buckets.
constexpr int kPipelineTrack = 1 << 30;

struct Closer {
  void operator()(std::FILE* file) const { (void)std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

class ChromeTraceFile : public TraceFile {
 public:
  ChromeTraceFile(File file, std::string path, int rank)
      : file_(std::move(file)), path_(std::move(path)), rank_(rank) {}

  ~ChromeTraceFile() override {
    if (status_.ok() && Flush().ok()) (void)std::fputs("\n]\n", file_.get());
  }

  // Names the process and the training thread; written with the first step.
  void Name(const std::string& host);

  absl::Status Add(const StepReport& report) override {
    if (!status_.ok()) return status_;
    AddTraining(report);
    // Of an empty step nothing was exchanged.
    for (size_t i = 0; i < report.buckets.size() && !report.empty; ++i) {
      AddBucket(i, report.buckets[i], report.step);
    }
    return status_ = Flush();
  }

  absl::Status AddPipeline(int64_t step,
                           const std::vector<TraceSpan>& spans) override {
    if (!status_.ok()) return status_;
    if (!std::exchange(named_pipeline_, true)) {
      AddName("thread_name", kPipelineTrack, "pipeline");
    }
    for (const TraceSpan& span : spans) {
      AddSpan(kPipelineTrack, span.name.c_str(), span.begin, span.end,
              {{"step", step}});
    }
    return status_ = Flush();
  }

 private:
  void AddTraining(const StepReport& report);
  void AddBucket(size_t index, const BucketTiming& bucket, int64_t step);
  // Names a process or a track.
  void AddName(const char* what, int track, const std::string& name);
  // A stretch of time on a track.
  void AddSpan(int track, const char* name, absl::Time from, absl::Time until,
               Json args);
  void AddEvent(const Json& event);
  absl::Status Flush();

  const File file_;
  const std::string path_;
  const int rank_;
  std::string pending_;  // not yet written
  bool first_ = true;    // no event yet
  size_t named_buckets_ = 0;
  bool named_pipeline_ = false;
  absl::Status status_;
};

absl::Status FileError(int error, absl::string_view what,
                       const std::string& path) {
  return absl::ErrnoToStatus(
      error, absl::StrCat("cannot ", what, " the trace \"", path, "\""));
}

void ChromeTraceFile::Name(const std::string& host) {
  const std::string name = absl::StrCat("rank ", rank_);
  AddName("process_name", kTrainingTrack,
          host.empty() ? name : absl::StrCat(name, " (", host, ")"));
  AddName("thread_name", kTrainingTrack, "training");
}

void ChromeTraceFile::AddTraining(const StepReport& report) {
  const absl::Time waiting = report.finished - report.waited;
  absl::Time last_ready = report.begun;
  for (const BucketTiming& bucket : report.buckets) {
    last_ready = std::max(last_ready, bucket.ready);
  }
  const bool has_gradients = !report.empty && !report.buckets.empty();
  // The two must not overlap: they share a track.
  AddSpan(kTrainingTrack, "gradients", report.begun,
          has_gradients ? std::min(last_ready, waiting) : waiting,
          {{"step", report.step}});
  AddSpan(kTrainingTrack, "wait", waiting, report.finished,
          {{"step", report.step},
           {"total_weight", report.total_weight},
           {"live_ranks", report.live_ranks},
           {"gradient_norm", report.gradient_norm},
           {"non_finite", report.non_finite},
           {"clip_scale", report.clip_scale}});
}

void ChromeTraceFile::AddBucket(size_t index, const BucketTiming& bucket,
                                int64_t step) {
  const int track = TrackOf(index);
  if (index >= named_buckets_) {
    AddName("thread_name", track, absl::StrCat("bucket ", index));
    named_buckets_ = index + 1;
  }
  AddSpan(track, "queue", bucket.ready, bucket.launched, {{"step", step}});
  AddSpan(track, "compress", bucket.launched, bucket.compressed,
          {{"step", step},
           {"in_hook_us", absl::ToDoubleMicroseconds(bucket.in_hook)}});
  AddSpan(track, "exchange", bucket.compressed, bucket.exchanged,
          {{"step", step},
           {"gradient_bytes", bucket.gradient_bytes},
           {"payload_bytes", bucket.payload_bytes},
           {"waited_us", absl::ToDoubleMicroseconds(bucket.waited)}});
  AddSpan(track, "decompress", bucket.exchanged, bucket.done, {{"step", step}});
}

void ChromeTraceFile::AddName(const char* what, int track,
                              const std::string& name) {
  AddEvent({{"ph", "M"},
            {"name", what},
            {"pid", rank_},
            {"tid", track},
            {"args", {{"name", name}}}});
}

void ChromeTraceFile::AddSpan(int track, const char* name, absl::Time from,
                              absl::Time until, Json args) {
  // Both ends are rounded alike, so that spans which touch still do.
  const int64_t begin = absl::ToUnixMicros(from);
  const int64_t end = std::max(begin, absl::ToUnixMicros(until));
  AddEvent({{"ph", "X"},
            {"name", name},
            {"pid", rank_},
            {"tid", track},
            {"ts", begin},
            {"dur", end - begin},
            {"args", std::move(args)}});
}

void ChromeTraceFile::AddEvent(const Json& event) {
  pending_ += std::exchange(first_, false) ? "[\n" : ",\n";
  // A host's name need not be UTF-8.
  pending_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status ChromeTraceFile::Flush() {
  const std::string text = std::exchange(pending_, {});
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() &&
      std::fflush(file_.get()) == 0) {
    return absl::OkStatus();
  }
  return FileError(errno, "write", path_);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Open(
    const std::string& path, int rank, const std::string& host) {
  const std::string name = TracePath(path, rank);
  File file(std::fopen(name.c_str(), "we"));
  if (file == nullptr) return FileError(errno, "create", name);
  auto trace = std::make_unique<ChromeTraceFile>(std::move(file), name, rank);
  trace->Name(host);
  return trace;
}

std::string TracePath(const std::string& path, int rank) {
  const size_t slash = path.rfind('/');
  const size_t base = slash == std::string::npos ? 0 : slash + 1;
  const size_t dot = path.rfind('.');
  // A dot in a folder's name, or at the front, begins no extension.
  const bool has_extension = dot != std::string::npos && dot > base;
  const size_t end = has_extension ? dot : path.size();
  return absl::StrCat(path.substr(0, end), ".rank", rank, path.substr(end));
}

absl::Status AddTrace(const std::string& path, int rank,
                      ReducerOptions* options) {
  if (path.empty()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<TraceFile> opened,
                            TraceFile::Open(path, rank));
  AddTrace(std::move(opened), path, options);
  return absl::OkStatus();
}

void AddTrace(std::shared_ptr<TraceFile> trace, const std::string& path,
              ReducerOptions* options) {
  options->on_step = [trace = std::move(trace), path,
                      next = options->on_step](const StepReport& report) {
    // A full disk is no reason to end a job.
    const absl::Status status = trace->Add(report);
    if (!status.ok()) {
      LogWarningOnce(path, "trace_ended", {{"reason", status.message()}});
    }
    if (next) next(report);
  };
}

}  // namespace coxswain
