// Checks that the reducer makes of recorded gradients what exchange="coxswain"
// has made of them under torch, bit for bit, in the same buckets:
// reduce_in_cpp RECORDING..., the file of each rank, which recording.py writes.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/reduce/reducer.h"
#include "hooks/registry/registry.h"

namespace {

using coxswain::Bucket;
using coxswain::InProcessWorld;
using coxswain::ParameterSpec;

constexpr absl::Duration kTimeout = absl::Seconds(20);

struct RecordedBucket {
  std::vector<int> parameters;
  std::vector<float> gradients;
  std::vector<float> averages;
};
using RecordedStep = std::vector<RecordedBucket>;

struct Recording {
  std::string hook;
  std::vector<ParameterSpec> parameters;
  std::vector<RecordedStep> steps;
};

void ReadFloats(std::istream& file, std::vector<float>* floats) {
  file.read(reinterpret_cast<char*>(floats->data()),
            static_cast<std::streamsize>(floats->size() * sizeof(float)));
}

absl::Status Read(const std::string& path, Recording* recording) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "hook") {
      words >> recording->hook;
    } else if (kind == "parameter") {
      ParameterSpec& parameter = recording->parameters.emplace_back();
      words >> parameter.name;
      for (int64_t extent = 0; words >> extent;) {
        parameter.shape.push_back(extent);
      }
    } else if (kind == "step") {
      recording->steps.emplace_back();
    } else if (kind == "bucket" && !recording->steps.empty()) {
      RecordedBucket& bucket = recording->steps.back().emplace_back();
      size_t count = 0;
      words >> count;
      for (int parameter = 0; words >> parameter;) {
        bucket.parameters.push_back(parameter);
      }
      bucket.gradients.resize(count);
      bucket.averages.resize(count);
      ReadFloats(file, &bucket.gradients);
      ReadFloats(file, &bucket.averages);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has a line \"", kind, "\""));
    }
  }
  if (recording->steps.empty() || !file.eof()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no recording"));
  }
  return absl::OkStatus();
}

std::vector<std::vector<int>> LayoutOf(const RecordedStep& step) {
  std::vector<std::vector<int>> layout;
  for (const RecordedBucket& bucket : step) {
    layout.push_back(bucket.parameters);
  }
  return layout;
}

// Averages one rank's gradients again.
class Replay {
 public:
  Replay(const Recording& recording, int rank)
      : recording_(recording),
        rank_(rank),
        hook_(*coxswain::MakeHook(recording.hook)) {}

  // A reducer of its own, with the same hook, for each division into buckets:
  // they meet in `worlds`.
  absl::Status Run(const std::vector<std::shared_ptr<InProcessWorld>>& worlds) {
    std::vector<std::vector<int>> layout;
    auto world = worlds.begin();
    for (const RecordedStep& step : recording_.steps) {
      if (layout != LayoutOf(step)) {
        layout = LayoutOf(step);
        reducer_.reset();
        communicator_ = (*world++)->MakeRank(rank_);
        COXSWAIN_RETURN_IF_ERROR(MakeReducer(step));
      }
      COXSWAIN_RETURN_IF_ERROR(Exchange(step));
      ++step_;
    }
    return absl::OkStatus();
  }

 private:
  // Gives it the parameters in an order of which it makes the step's buckets.
  absl::Status MakeReducer(const RecordedStep& step) {
    coxswain::ReducerOptions options;
    options.rebuild = false;
    options.timeout = kTimeout;
    const auto bytes = [](const RecordedBucket& bucket) {
      return static_cast<int64_t>(bucket.gradients.size() * sizeof(float));
    };
    options.buckets.first_bucket_bytes = bytes(step.front());
    options.buckets.bucket_bytes = bytes(step.back());
    for (size_t i = 1; i + 1 < step.size(); ++i) {
      options.buckets.bucket_bytes =
          i == 1 ? bytes(step[i])
                 : std::min(options.buckets.bucket_bytes, bytes(step[i]));
    }
    std::vector<ParameterSpec> parameters;
    for (const RecordedBucket& bucket : step) {
      for (const int parameter : bucket.parameters) {
        parameters.push_back(
            recording_.parameters.at(static_cast<size_t>(parameter)));
      }
    }
    std::reverse(parameters.begin(), parameters.end());
    COXSWAIN_ASSIGN_OR_RETURN(
        reducer_, coxswain::Reducer::Create(options, std::move(parameters),
                                            hook_.get(), communicator_.get()));
    return CheckBuckets(step);
  }

  absl::Status CheckBuckets(const RecordedStep& step) const {
    bool same = reducer_->buckets().size() == step.size();
    for (size_t i = 0; same && i < step.size(); ++i) {
      const Bucket& bucket = reducer_->buckets()[i];
      same = bucket.gradients.size() == step[i].parameters.size();
      for (size_t j = 0; same && j < bucket.gradients.size(); ++j) {
        same = Name(bucket.gradients[j]) ==
               recording_.parameters[size_t(step[i].parameters[j])].name;
      }
    }
    if (same) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the reducer does not make the buckets of step ", step_));
  }

  const std::string& Name(const coxswain::GradientSlot& slot) const {
    return reducer_->parameters()[static_cast<size_t>(slot.parameter)].name;
  }

  absl::Status Exchange(const RecordedStep& step) {
    COXSWAIN_RETURN_IF_ERROR(reducer_->BeginStep());
    for (size_t i = 0; i < step.size(); ++i) {
      const Bucket& bucket = reducer_->buckets()[i];
      for (const coxswain::GradientSlot& slot : bucket.gradients) {
        const coxswain::Span view = bucket.Gradient(slot);
        std::copy_n(step[i].gradients.data() + slot.offset, slot.count,
                    static_cast<float*>(view.data));
        COXSWAIN_RETURN_IF_ERROR(reducer_->MarkReady(slot.parameter));
      }
    }
    COXSWAIN_RETURN_IF_ERROR(reducer_->Finish());
    for (size_t i = 0; i < step.size(); ++i) {
      const auto* mine =
          static_cast<const float*>(reducer_->buckets()[i].data.data);
      for (size_t j = 0; j < step[i].averages.size(); ++j) {
        // Also which zero it is.
        if (std::memcmp(&mine[j], &step[i].averages[j], sizeof(float)) == 0) {
          continue;
        }
        return absl::InternalError(absl::StrCat(
            "rank ", rank_, ", step ", step_, ", bucket ", i, ", element ", j,
            ": ", mine[j], " by the reducer, ", step[i].averages[j],
            " under torch, with ", recording_.hook));
      }
    }
    return reducer_->Commit();
  }

  const Recording& recording_;
  const int rank_;
  int step_ = 0;
  std::unique_ptr<coxswain::Hook> hook_;
  std::unique_ptr<coxswain::Communicator> communicator_;
  std::unique_ptr<coxswain::Reducer> reducer_;
};

absl::Status Run(const std::vector<std::string>& paths) {
  std::vector<Recording> recordings(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) {
    COXSWAIN_RETURN_IF_ERROR(Read(paths[i], &recordings[i]));
  }
  std::vector<std::shared_ptr<InProcessWorld>> worlds;
  for (size_t i = 0; i < recordings[0].steps.size(); ++i) {
    worlds.push_back(
        InProcessWorld::Create(static_cast<int>(paths.size()), kTimeout));
  }
  std::vector<absl::Status> ends(paths.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < paths.size(); ++i) {
    ranks.emplace_back([&recordings, &worlds, &ends, i] {
      ends[i] = Replay(recordings[i], static_cast<int>(i)).Run(worlds);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const absl::Status& end : ends) COXSWAIN_RETURN_IF_ERROR(end);
  std::printf("EQUAL in %zu steps with %s\n", recordings[0].steps.size(),
              recordings[0].hook.c_str());
  return absl::OkStatus();
}

}  // namespace

int main(int count, char** arguments) {
  const absl::Status status = Run({arguments + 1, arguments + count});
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
