#ifndef COXSWAIN_CLIENT_COMM_NCCL_NCCL_API_H_
#define COXSWAIN_CLIENT_COMM_NCCL_NCCL_API_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/element_type.h"
#include "client/device/launch.h"

// The part of NCCL that this library uses, as a class: over the library that
// is found when the process runs (nccl_library.h), and among the threads of
// one process for tests (emulated/emulated_nccl.h). Free of NCCL's header, so
// that all but nccl_library.cc is compiled and tested without it.

namespace coxswain {

// ncclComm_t.
struct NcclCommHandle;
using NcclComm = NcclCommHandle*;

// ncclUniqueId: where the ranks of a communicator meet. Opaque.
using NcclUniqueId = std::array<char, 128>;

// ncclResult_t, by its numbers.
enum class NcclResult {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// Features that not every version from 2.18 on has. Looked up in the library
// itself.
enum class NcclFeature {
  kInitRankScalable,  // 2.23: several unique ids for one communicator
  kRegister,          // 2.19: user buffers
  kMemAlloc,          // 2.19: memory that is made to be registered
};

// ncclCommShrink is not among them: a generation that lost a member is followed
// by one with new ids and new communicators, and the old ones are aborted at
// once, when no rank knows yet who the next members are. Nor is ncclCommSplit:
// all ranks of the parent would have to call it, and Split is called by members
// only.

// A rank of a communicator to be.
struct NcclRank {
  int rank = 0;
  int size = 1;
  int device = 0;    // CUDA's index
  std::string name;  // for NCCL's messages and its RAS
};

// All calls are as NCCL documents them. Communicators are made non-blocking:
// where a call returns kInProgress, GetAsyncError returns whether it has ended,
// and its result, and the communicator takes no other call but Abort until
// then.
//
// Threading: different communicators from different threads; one from one at a
// time, but for Abort. A group belongs to the thread that started it.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual int version() const = 0;  // 22809 is 2.28.9
  virtual bool has(NcclFeature feature) const = 0;
  // Returns the description of the last error on this thread; may be empty.
  virtual std::string LastError(NcclComm comm) = 0;

  virtual NcclResult GetUniqueId(NcclUniqueId* id) = 0;
  virtual NcclResult InitRank(NcclComm* comm, const NcclRank& rank,
                              const NcclUniqueId& id) = 0;
  // Takes several ids, each made by any rank; needs kInitRankScalable.
  virtual NcclResult InitRankScalable(NcclComm* comm, const NcclRank& rank,
                                      const std::vector<NcclUniqueId>& ids) = 0;
  // Completes what was started. Then Destroy frees the communicator.
  virtual NcclResult Finalize(NcclComm comm) = 0;
  virtual NcclResult Destroy(NcclComm comm) = 0;
  // Ends kernels that wait for peers, and frees the communicator. May block,
  // and does not return while a recorded graph has a collective of it.
  virtual NcclResult Abort(NcclComm comm) = 0;
  virtual NcclResult GetAsyncError(NcclComm comm, NcclResult* error) = 0;

  virtual NcclResult GroupStart() = 0;
  virtual NcclResult GroupEnd() = 0;
  virtual NcclResult AllReduce(const void* send, void* receive, size_t count,
                               ElementType type, ElementOp op, NcclComm comm,
                               DeviceStream stream) = 0;
  virtual NcclResult Broadcast(const void* send, void* receive, size_t count,
                               ElementType type, int root, NcclComm comm,
                               DeviceStream stream) = 0;
  // `count` of what each rank receives.
  virtual NcclResult ReduceScatter(const void* send, void* receive,
                                   size_t count, ElementType type, ElementOp op,
                                   NcclComm comm, DeviceStream stream) = 0;
  // `count` of what each rank sends.
  virtual NcclResult AllGather(const void* send, void* receive, size_t count,
                               ElementType type, NcclComm comm,
                               DeviceStream stream) = 0;
  virtual NcclResult Send(const void* data, size_t count, ElementType type,
                          int peer, NcclComm comm, DeviceStream stream) = 0;
  virtual NcclResult Receive(void* data, size_t count, ElementType type,
                             int peer, NcclComm comm, DeviceStream stream) = 0;

  virtual NcclResult MemAlloc(int device, void** memory, size_t bytes) = 0;
  virtual NcclResult MemFree(int device, void* memory) = 0;
  virtual NcclResult Register(NcclComm comm, void* memory, size_t bytes,
                              void** registration) = 0;
  virtual NcclResult Deregister(NcclComm comm, void* registration) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_NCCL_API_H_
