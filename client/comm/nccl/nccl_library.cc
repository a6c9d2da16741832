#include "client/comm/nccl/nccl_library.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/comm/nccl/nccl_status.h"

#ifdef COXSWAIN_NCCL
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#endif

namespace coxswain {
namespace {

#ifdef COXSWAIN_NCCL

constexpr int kOldest = 21800;  // as nccl_communicator.h promises

// All calls, with the types that the header gives them.
#define COXSWAIN_NCCL_NEEDED(call)                                           \
  call(ncclGetVersion) call(ncclGetUniqueId) call(ncclGetLastError)          \
      call(ncclCommInitRankConfig) call(ncclCommFinalize)                    \
          call(ncclCommDestroy) call(ncclCommAbort)                          \
              call(ncclCommGetAsyncError) call(ncclGroupStart)               \
                  call(ncclGroupEnd) call(ncclAllReduce) call(ncclBroadcast) \
                      call(ncclReduceScatter) call(ncclAllGather)            \
                          call(ncclSend) call(ncclRecv)

struct Calls {
#define COXSWAIN_NCCL_DECLARE(name) decltype(&::name) name = nullptr;
  COXSWAIN_NCCL_NEEDED(COXSWAIN_NCCL_DECLARE)
#undef COXSWAIN_NCCL_DECLARE
  // The header may be older than these, and so may the library.
  ncclResult_t (*ncclCommInitRankScalable)(ncclComm_t*, int size, int rank,
                                           int ids, ncclUniqueId*,
                                           ncclConfig_t*) = nullptr;
  ncclResult_t (*ncclCommRegister)(const ncclComm_t, void*, size_t,
                                   void** registration) = nullptr;
  ncclResult_t (*ncclCommDeregister)(const ncclComm_t,
                                     void* registration) = nullptr;
  ncclResult_t (*ncclMemAlloc)(void**, size_t) = nullptr;
  ncclResult_t (*ncclMemFree)(void*) = nullptr;
};

// Makes a device the calling thread's, as NCCL's calls that take no
// communicator go by that. It stays so, as with the device's runtime: to set
// back what a thread never chose would make a context on GPU 0.
bool SetDevice(int device) { return cudaSetDevice(device) == cudaSuccess; }

ncclDataType_t TypeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return ncclFloat32;
    case ElementType::kFloat64:
      return ncclFloat64;
    case ElementType::kFloat16:
      return ncclFloat16;
    case ElementType::kBFloat16:
      return ncclBfloat16;
    case ElementType::kInt8:
      return ncclInt8;
    case ElementType::kInt32:
      return ncclInt32;
    case ElementType::kInt64:
      return ncclInt64;
    case ElementType::kUInt8:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t OpOf(ElementOp op) {
  if (op == ElementOp::kMin) return ncclMin;
  return op == ElementOp::kMax ? ncclMax : ncclSum;
}

NcclResult ResultOf(ncclResult_t result) {
  return static_cast<NcclResult>(result);
}
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));

ncclComm_t CommOf(NcclComm comm) { return reinterpret_cast<ncclComm_t>(comm); }
ncclComm_t* CommOf(NcclComm* comm) {
  return reinterpret_cast<ncclComm_t*>(comm);
}
cudaStream_t StreamOf(DeviceStream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}
ncclUniqueId IdOf(const NcclUniqueId& id) {
  ncclUniqueId result;
  std::copy(id.begin(), id.end(), result.internal);
  return result;
}

#if COXSWAIN_NCCL >= 22700
// Returns the name, as long as the process lives: NCCL keeps the pointer. Few,
// as communicators have names of their own and are made seldom.
const char* Interned(const std::string& name) {
  static Mutex* const mutex = new Mutex;
  static auto* const names = new std::set<std::string>;
  MutexLock lock(mutex);
  return names->insert(name).first->c_str();
}
#endif

// NCCL reads as much of it as its own version knows.
ncclConfig_t ConfigOf(const std::string& name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
#if COXSWAIN_NCCL >= 22700
  config.commName = Interned(name);
#else
  (void)name;
#endif
  return config;
}

class NcclLibrary : public NcclApi {
 public:
  explicit NcclLibrary(const Calls& calls) : calls_(calls) {
    calls_.ncclGetVersion(&version_);
  }

  int version() const override { return version_; }
  bool has(NcclFeature feature) const override {
    switch (feature) {
      case NcclFeature::kInitRankScalable:
        return calls_.ncclCommInitRankScalable != nullptr;
      case NcclFeature::kRegister:
        return calls_.ncclCommRegister != nullptr &&
               calls_.ncclCommDeregister != nullptr;
      case NcclFeature::kMemAlloc:
        return calls_.ncclMemAlloc != nullptr && calls_.ncclMemFree != nullptr;
    }
    return false;
  }
  std::string LastError(NcclComm comm) override {
    const char* const text = calls_.ncclGetLastError(CommOf(comm));
    return text == nullptr ? "" : text;
  }

  NcclResult GetUniqueId(NcclUniqueId* id) override {
    ncclUniqueId made;
    const ncclResult_t result = calls_.ncclGetUniqueId(&made);
    std::copy(std::begin(made.internal), std::end(made.internal), id->begin());
    return ResultOf(result);
  }
  NcclResult InitRank(NcclComm* comm, const NcclRank& rank,
                      const NcclUniqueId& id) override {
    if (!SetDevice(rank.device)) return NcclResult::kUnhandledCudaError;
    ncclConfig_t config = ConfigOf(rank.name);
    return ResultOf(calls_.ncclCommInitRankConfig(
        CommOf(comm), rank.size, IdOf(id), rank.rank, &config));
  }
  NcclResult InitRankScalable(NcclComm* comm, const NcclRank& rank,
                              const std::vector<NcclUniqueId>& ids) override {
    if (!SetDevice(rank.device)) return NcclResult::kUnhandledCudaError;
    ncclConfig_t config = ConfigOf(rank.name);
    std::vector<ncclUniqueId> given;
    for (const NcclUniqueId& id : ids) given.push_back(IdOf(id));
    return ResultOf(calls_.ncclCommInitRankScalable(
        CommOf(comm), rank.size, rank.rank, static_cast<int>(given.size()),
        given.data(), &config));
  }
  NcclResult Finalize(NcclComm comm) override {
    return ResultOf(calls_.ncclCommFinalize(CommOf(comm)));
  }
  NcclResult Destroy(NcclComm comm) override {
    return ResultOf(calls_.ncclCommDestroy(CommOf(comm)));
  }
  NcclResult Abort(NcclComm comm) override {
    return ResultOf(calls_.ncclCommAbort(CommOf(comm)));
  }
  NcclResult GetAsyncError(NcclComm comm, NcclResult* error) override {
    ncclResult_t found = ncclSuccess;
    const ncclResult_t result =
        calls_.ncclCommGetAsyncError(CommOf(comm), &found);
    *error = ResultOf(found);
    return ResultOf(result);
  }

  NcclResult GroupStart() override { return ResultOf(calls_.ncclGroupStart()); }
  NcclResult GroupEnd() override { return ResultOf(calls_.ncclGroupEnd()); }
  NcclResult AllReduce(const void* send, void* receive, size_t count,
                       ElementType type, ElementOp op, NcclComm comm,
                       DeviceStream stream) override {
    return ResultOf(calls_.ncclAllReduce(send, receive, count, TypeOf(type),
                                         OpOf(op), CommOf(comm),
                                         StreamOf(stream)));
  }
  NcclResult Broadcast(const void* send, void* receive, size_t count,
                       ElementType type, int root, NcclComm comm,
                       DeviceStream stream) override {
    return ResultOf(calls_.ncclBroadcast(send, receive, count, TypeOf(type),
                                         root, CommOf(comm), StreamOf(stream)));
  }
  NcclResult ReduceScatter(const void* send, void* receive, size_t count,
                           ElementType type, ElementOp op, NcclComm comm,
                           DeviceStream stream) override {
    return ResultOf(calls_.ncclReduceScatter(send, receive, count, TypeOf(type),
                                             OpOf(op), CommOf(comm),
                                             StreamOf(stream)));
  }
  NcclResult AllGather(const void* send, void* receive, size_t count,
                       ElementType type, NcclComm comm,
                       DeviceStream stream) override {
    return ResultOf(calls_.ncclAllGather(send, receive, count, TypeOf(type),
                                         CommOf(comm), StreamOf(stream)));
  }
  NcclResult Send(const void* data, size_t count, ElementType type, int peer,
                  NcclComm comm, DeviceStream stream) override {
    return ResultOf(calls_.ncclSend(data, count, TypeOf(type), peer,
                                    CommOf(comm), StreamOf(stream)));
  }
  NcclResult Receive(void* data, size_t count, ElementType type, int peer,
                     NcclComm comm, DeviceStream stream) override {
    return ResultOf(calls_.ncclRecv(data, count, TypeOf(type), peer,
                                    CommOf(comm), StreamOf(stream)));
  }

  NcclResult MemAlloc(int device, void** memory, size_t bytes) override {
    if (!SetDevice(device)) return NcclResult::kUnhandledCudaError;
    return ResultOf(calls_.ncclMemAlloc(memory, bytes));
  }
  NcclResult MemFree(int device, void* memory) override {
    if (!SetDevice(device)) return NcclResult::kUnhandledCudaError;
    return ResultOf(calls_.ncclMemFree(memory));
  }
  NcclResult Register(NcclComm comm, void* memory, size_t bytes,
                      void** registration) override {
    return ResultOf(
        calls_.ncclCommRegister(CommOf(comm), memory, bytes, registration));
  }
  NcclResult Deregister(NcclComm comm, void* registration) override {
    return ResultOf(calls_.ncclCommDeregister(CommOf(comm), registration));
  }

 private:
  const Calls calls_;
  int version_ = 0;
};

std::vector<std::string> Candidates() {
  const char* const named = std::getenv("COXSWAIN_NCCL_LIBRARY");
  if (named != nullptr && *named != '\0') return {named};
  std::vector<std::string> paths = {"libnccl.so.2"};
#ifdef COXSWAIN_CUDA_HOME
  for (const char* folder : {"lib64", "lib"}) {
    paths.push_back(
        absl::StrCat(COXSWAIN_CUDA_HOME, "/", folder, "/libnccl.so.2"));
  }
#endif
  return paths;
}

absl::StatusOr<void*> Open(std::string* path) {
  std::vector<std::string> reasons;
  for (const std::string& candidate : Candidates()) {
    void* const library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    *path = candidate;
    if (library != nullptr) return library;
    const char* const why = dlerror();
    reasons.push_back(why == nullptr ? candidate : why);
  }
  return absl::NotFoundError(absl::StrCat(
      "NCCL was not found: ", absl::StrJoin(reasons, "; "),
      "; install it, or let COXSWAIN_NCCL_LIBRARY name its libnccl.so.2"));
}

template <typename Call>
bool Find(void* library, const char* name, Call* call) {
  *call = reinterpret_cast<Call>(dlsym(library, name));
  return *call != nullptr;
}

absl::StatusOr<Calls> FindCalls(void* library, const std::string& path) {
  Calls calls;
  std::vector<std::string> missing;
#define COXSWAIN_NCCL_FIND(name) \
  if (!Find(library, #name, &calls.name)) missing.push_back(#name);
  COXSWAIN_NCCL_NEEDED(COXSWAIN_NCCL_FIND)
#undef COXSWAIN_NCCL_FIND
#define COXSWAIN_NCCL_FIND(name) Find(library, #name, &calls.name)
  COXSWAIN_NCCL_FIND(ncclCommInitRankScalable);
  COXSWAIN_NCCL_FIND(ncclCommRegister);
  COXSWAIN_NCCL_FIND(ncclCommDeregister);
  COXSWAIN_NCCL_FIND(ncclMemAlloc);
  COXSWAIN_NCCL_FIND(ncclMemFree);
#undef COXSWAIN_NCCL_FIND
  int version = 0;
  if (calls.ncclGetVersion != nullptr) calls.ncclGetVersion(&version);
  if (missing.empty() && version >= kOldest) return calls;
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is NCCL ", NcclVersionText(version), "; ",
      NcclVersionText(kOldest), " or newer is needed",
      missing.empty() ? "" : ", and it lacks ", absl::StrJoin(missing, ", ")));
}

absl::StatusOr<NcclApi*> Load() {
  std::string path;
  COXSWAIN_ASSIGN_OR_RETURN(void* const library, Open(&path));
  COXSWAIN_ASSIGN_OR_RETURN(const Calls calls, FindCalls(library, path));
  return new NcclLibrary(calls);
}

#else

absl::StatusOr<NcclApi*> Load() {
  return absl::UnimplementedError(
      "this build has no NCCL: nccl.h was not found when it was built; install "
      "the CUDA toolkit and NCCL's header, and build again");
}

#endif  // COXSWAIN_NCCL

// Never destroyed: communicators of other statics may outlive it.
struct Loaded {
  Mutex mutex;
  NcclApi* api ABSL_GUARDED_BY(mutex) = nullptr;
};
Loaded& TheLoaded() {
  static Loaded* const loaded = new Loaded;
  return *loaded;
}

}  // namespace

absl::StatusOr<NcclApi*> LoadNccl() {
  Loaded& loaded = TheLoaded();
  MutexLock lock(&loaded.mutex);
  if (loaded.api != nullptr) return loaded.api;
  COXSWAIN_ASSIGN_OR_RETURN(loaded.api, Load());
  return loaded.api;
}

void UseNccl(NcclApi* api) {
  Loaded& loaded = TheLoaded();
  MutexLock lock(&loaded.mutex);
  loaded.api = api;
}

}  // namespace coxswain
