// Tries all kernels on a GPU against the CPU, and times them: see
// run_on_device.sh, which builds and runs it.
//
// kernel_check check [few]: each case on GPU and CPU, all bits compared.
//
// kernel_check time FILE SECONDS: a table, and the same as JSON in FILE.
//
// kernel_check host [few]: each case on the CPU in two orders of its blocks and
// threads, which needs no GPU.
//
// Exit status 0: all equal; 1: differences; 2: wrong arguments; 3: no GPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/gpu/kernel_case.h"

#ifdef COXSWAIN_CUDA
#include <cuda_runtime.h>
#endif

namespace coxswain::gpu {
namespace {

constexpr int kDiffers = 1;
constexpr int kUsage = 2;
constexpr int kNoGpu = 3;

class AtOnce : public HostStream {
 public:
  void Enqueue(std::function<void()> work) override { work(); }
};

uint64_t FreshSeed() {
  return static_cast<uint64_t>(
      std::chrono::steady_clock::now().time_since_epoch().count());
}

// Runs the case on the CPU and returns the memory. `first` varies the order of
// blocks and threads.
std::vector<unsigned char> OnHost(const Case& one, uint64_t seed, int64_t first,
                                  int64_t* launches) {
  // Aligned as memory of a GPU is.
  const size_t bytes = static_cast<size_t>(one.bytes());
  unsigned char* const base = static_cast<unsigned char*>(
      std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  if (base == nullptr) std::abort();
  const std::vector<unsigned char> image = MakeImage(one, base, seed);
  std::copy(image.begin(), image.end(), base);
  AtOnce stream;
  LaunchTarget target;
  target.host = &stream;
  target.launches = first;
  one.Enqueue(&target, base);
  *launches = target.launches - first;
  std::vector<unsigned char> result(base, base + bytes);
  std::free(base);
  return result;
}

int Report(const char* what, int cases, int64_t launches, int wrong,
           uint64_t seed) {
  std::printf("%s: %d cases, %lld launches, %d differ (seed %llu)\n", what,
              cases, static_cast<long long>(launches), wrong,
              static_cast<unsigned long long>(seed));
  return wrong == 0 ? 0 : kDiffers;
}

// Returns whether a comparison finds the error that it is to find.
bool ComparisonWorks() {
  Case one("comparison");
  const auto array = one.Add<float>(3, Fill::kZero, Content::kFloat32);
  const auto expected = MakeImage(one, nullptr, 1);
  const auto differs = [&](int64_t at, unsigned char value) {
    auto got = expected;
    got[static_cast<size_t>(at)] = value;
    return !Difference(one, expected, got).empty();
  };
  return Difference(one, expected, expected).empty() &&
         differs(array.offset, 1) && differs(array.offset + 11, 0x3f) &&
         differs(array.offset - 1, 0) && differs(array.offset + 12, 0) &&
         differs(one.bytes() - 1, 0);
}

int CheckOnHost(bool few) {
  if (!ComparisonWorks()) {
    std::printf("FAILED: the comparison misses differences\n");
    return kDiffers;
  }
  const uint64_t seed = FreshSeed();
  int cases = 0, wrong = 0;
  int64_t all = 0;
  for (const Case& one : CasesToCheck(few)) {
    int64_t launches = 0;
    const auto expected = OnHost(one, seed, 0, &launches);
    const auto got = OnHost(one, seed, 3, &launches);
    const std::string difference = Difference(one, expected, got);
    ++cases;
    all += launches;
    if (difference.empty()) continue;
    ++wrong;
    std::printf("DIFFERS %s: %s\n", one.name().c_str(), difference.c_str());
  }
  return Report("host, two orders", cases, all, wrong, seed);
}

#ifdef COXSWAIN_CUDA

// Ends the process on any error: the next call would only fail as well.
void Must(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED %s: %s\n", what.c_str(), cudaGetErrorString(error));
  std::exit(kDiffers);
}

class DeviceMemory {
 public:
  // At least so much, with what was there lost if it grows.
  unsigned char* Room(int64_t bytes) {
    if (bytes <= bytes_) return data_;
    Must(cudaFree(data_), "cudaFree");
    Must(cudaMalloc(reinterpret_cast<void**>(&data_),
                    static_cast<size_t>(bytes)),
         "cudaMalloc of " + std::to_string(bytes) + " bytes");
    bytes_ = bytes;
    return data_;
  }
  ~DeviceMemory() { cudaFree(data_); }

 private:
  unsigned char* data_ = nullptr;
  int64_t bytes_ = 0;
};

DeviceStream OwnStream() {
  static cudaStream_t stream = nullptr;
  if (stream == nullptr) {
    Must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
         "cudaStreamCreate");
  }
  return reinterpret_cast<DeviceStream>(stream);
}
cudaStream_t Native(DeviceStream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}

bool FindGpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return true;
  std::printf("no GPU: %s\n", error == cudaSuccess ? "CUDA shows none"
                                                   : cudaGetErrorString(error));
  return false;
}

std::vector<unsigned char> OnDevice(const Case& one, uint64_t seed,
                                    DeviceMemory* memory, int64_t* launches) {
  unsigned char* const base = memory->Room(one.bytes());
  std::vector<unsigned char> image = MakeImage(one, base, seed);
  Must(cudaMemcpy(base, image.data(), image.size(), cudaMemcpyHostToDevice),
       one.name());
  LaunchTarget target;
  target.stream = OwnStream();
  one.Enqueue(&target, base);
  Must(static_cast<cudaError_t>(target.error), one.name());
  Must(cudaStreamSynchronize(Native(target.stream)), one.name());
  Must(cudaMemcpy(image.data(), base, image.size(), cudaMemcpyDeviceToHost),
       one.name());
  *launches = target.launches;
  return image;
}

int CheckOnDevice(bool few) {
  if (!FindGpu()) return kNoGpu;
  const uint64_t seed = FreshSeed();
  DeviceMemory memory;
  int cases = 0, wrong = 0;
  int64_t all = 0;
  for (const Case& one : CasesToCheck(few)) {
    int64_t expected_launches = 0, launches = 0;
    const auto expected = OnHost(one, seed, 0, &expected_launches);
    std::string difference =
        Difference(one, expected, OnDevice(one, seed, &memory, &launches));
    if (difference.empty() && launches != expected_launches) {
      difference = "other launches than on the CPU";
    }
    ++cases;
    all += launches;
    if (difference.empty()) continue;
    ++wrong;
    std::printf("DIFFERS %s: %s\n", one.name().c_str(), difference.c_str());
  }
  return Report("GPU against CPU", cases, all, wrong, seed);
}

// Returns the fastest of some runs of what `enqueue` puts on the stream, in
// seconds.
double Time(const std::string& name, const std::function<void()>& enqueue) {
  cudaEvent_t before, after;
  Must(cudaEventCreate(&before), name);
  Must(cudaEventCreate(&after), name);
  float best = 1e30f;
  constexpr int kRuns = 7;
  for (int run = 0; run < kRuns; ++run) {
    Must(cudaEventRecord(before, Native(OwnStream())), name);
    enqueue();
    Must(cudaEventRecord(after, Native(OwnStream())), name);
    Must(cudaEventSynchronize(after), name);
    float milliseconds = 0;
    Must(cudaEventElapsedTime(&milliseconds, before, after), name);
    if (run > 0) best = std::min(best, milliseconds);  // the first one warms up
  }
  cudaEventDestroy(before);
  cudaEventDestroy(after);
  return best / 1e3;
}

// Bytes read and written a second by a copy within the GPU's memory.
double CopyBandwidth(DeviceMemory* memory) {
  constexpr size_t kBytes = size_t{1} << 30;
  unsigned char* const base = memory->Room(2 * int64_t{kBytes});
  const double seconds = Time("copy", [&] {
    Must(cudaMemcpyAsync(base + kBytes, base, kBytes, cudaMemcpyDeviceToDevice,
                         Native(OwnStream())),
         "cudaMemcpyAsync");
  });
  return 2.0 * kBytes / seconds;
}

struct Timing {
  std::string name;
  double seconds = 0;
  int64_t launches = 0;
  double moved = 0;
  double elements = 0;
};

Timing TimeCase(const Case& one, DeviceMemory* memory) {
  // Finite numbers everywhere; only tables need their own contents.
  constexpr int kSmallFloats = 0x3c;
  unsigned char* const base = memory->Room(one.bytes());
  Must(cudaMemset(base, kSmallFloats, static_cast<size_t>(one.bytes())),
       one.name());
  for (const Part& part : one.parts()) {
    if (part.fill != Fill::kZero || part.bytes == 0) continue;
    Must(cudaMemset(base + part.offset, 0, static_cast<size_t>(part.bytes)),
         one.name());
  }
  for (const Table& table : one.tables()) {
    const std::vector<unsigned char> bytes = table.make(base);
    Must(cudaMemcpy(base + table.offset, bytes.data(), bytes.size(),
                    cudaMemcpyHostToDevice),
         one.name());
  }
  Must(cudaDeviceSynchronize(), one.name());
  Timing timing = {one.name(), 0, 0, one.moved(), one.elements()};
  timing.seconds = Time(one.name(), [&] {
    LaunchTarget target;
    target.stream = OwnStream();
    one.Enqueue(&target, base);
    Must(static_cast<cudaError_t>(target.error), one.name());
    timing.launches = target.launches;
  });
  return timing;
}

int TimeOnDevice(const char* file, double limit) {
  if (!FindGpu()) return kNoGpu;
  const auto begin = std::chrono::steady_clock::now();
  DeviceMemory memory;
  const double copy = CopyBandwidth(&memory);
  std::FILE* const json = std::fopen(file, "w");
  if (json == nullptr) return kUsage;
  std::fprintf(json, "{\"copy_bytes_per_second\": %.6g, \"kernels\": [", copy);
  std::printf("%-46s %8s %7s %9s %8s\n",
              "kernels (copy within the GPU: see "
              "last line)",
              "launches", "B/elem", "us", "of copy");
  const char* comma = "";
  for (const Case& one : CasesToTime()) {
    const std::chrono::duration<double> spent =
        std::chrono::steady_clock::now() - begin;
    if (spent.count() > limit) {
      std::printf("SKIPPED %s: out of time\n", one.name().c_str());
      continue;
    }
    const Timing timing = TimeCase(one, &memory);
    const double rate = timing.moved / timing.seconds;
    std::printf("%-46s %8lld %7.2f %9.1f %7.1f%%\n", timing.name.c_str(),
                static_cast<long long>(timing.launches),
                timing.moved / timing.elements, timing.seconds * 1e6,
                100 * rate / copy);
    std::fprintf(json,
                 "%s\n  {\"name\": \"%s\", \"launches\": %lld, \"elements\": "
                 "%.0f, \"bytes\": %.0f, \"seconds\": %.9g}",
                 comma, timing.name.c_str(),
                 static_cast<long long>(timing.launches), timing.elements,
                 timing.moved, timing.seconds);
    comma = ",";
  }
  std::printf("copy within the GPU: %.1f GB/s, read and written\n", copy / 1e9);
  std::fprintf(json, "\n]}\n");
  std::fclose(json);
  return 0;
}

#else

int CheckOnDevice(bool) {
  std::printf("no GPU: built without CUDA\n");
  return kNoGpu;
}
int TimeOnDevice(const char*, double) { return CheckOnDevice(false); }

#endif

int Main(const std::vector<std::string>& args) {
  const std::string mode = args.empty() ? "" : args[0];
  const bool few = args.size() == 2 && args[1] == "few";
  const bool known = args.size() == 1 || few;
  if (mode == "host" && known) return CheckOnHost(few);
  if (mode == "check" && known) return CheckOnDevice(few);
  if (mode == "time" && args.size() == 3) {
    return TimeOnDevice(args[1].c_str(), std::atof(args[2].c_str()));
  }
  std::printf(
      "usage: kernel_check host [few] | check [few] | time FILE SECONDS\n");
  return kUsage;
}

}  // namespace
}  // namespace coxswain::gpu

int main(int argc, char** argv) {
  return coxswain::gpu::Main(std::vector<std::string>(argv + 1, argv + argc));
}
