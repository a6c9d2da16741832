#ifndef COXSWAIN_CLIENT_COMM_NCCL_EMULATED_EMULATED_NCCL_H_
#define COXSWAIN_CLIENT_COMM_NCCL_EMULATED_EMULATED_NCCL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/comm/nccl/nccl_api.h"

namespace coxswain {

// NCCL among the ranks of one process, on streams of emulated runtimes
// (client/device/emulated): for tests on machines without a GPU. Collectives
// meet on the threads of the streams and really reduce, in the order of ranks;
// one that waits for a peer occupies its stream until the peer comes or its own
// rank aborts, as a kernel of NCCL's does. Calls that come while one is in
// progress are refused, and a collective is on the stream only when its call
// is through. An abort waits for recorded graphs that have its collectives.
//
// Where NCCL would hang or compute nonsense, ranks that begin different
// collectives get kInternalError.
//
// Life-cycle: outlives what is made with it, calls that were held too.
// Thread-safe.
class EmulatedNccl : public NcclApi {
 public:
  explicit EmulatedNccl(int version = 22809) : version_(version) {}
  // Lets calls that are held return, and waits for them.
  ~EmulatedNccl() override;

  // Faults. In effect from now on, until undone.

  // As if the library lacked it, though its version should have it.
  void Remove(NcclFeature feature);
  // InitRank returns `result`, or, if `later`, reports it when it is polled.
  void FailInit(NcclResult result, bool later);
  // Communicators in the making never get ready.
  void HangInit(bool hang);
  // How often each call is still in progress when it is asked for.
  void SetPolls(int polls);
  // The communicators on this device report `error`.
  void InjectError(int device, NcclResult error);
  // Abort does not return; Finalize does not come to its end.
  void HoldAborts(bool hold);
  void HoldFinalize(bool hold);
  void FailMemAlloc(bool fail);

  // What was done so far.
  struct Counts {
    int communicators = 0;  // that exist now
    int inits = 0;          // InitRank, and Scalable with one id
    int scalable_inits = 0;
    int aborts = 0;
    int destroys = 0;
    int registered = 0;       // that exist now
    int allocated = 0;        // by MemAlloc, that exist now
    int64_t collectives = 0;  // that have met
  };
  Counts counts() const;

  int version() const override { return version_; }
  bool has(NcclFeature feature) const override;
  std::string LastError(NcclComm comm) override;
  NcclResult GetUniqueId(NcclUniqueId* id) override;
  NcclResult InitRank(NcclComm* comm, const NcclRank& rank,
                      const NcclUniqueId& id) override;
  NcclResult InitRankScalable(NcclComm* comm, const NcclRank& rank,
                              const std::vector<NcclUniqueId>& ids) override;
  NcclResult Finalize(NcclComm comm) override;
  NcclResult Destroy(NcclComm comm) override;
  NcclResult Abort(NcclComm comm) override;
  NcclResult GetAsyncError(NcclComm comm, NcclResult* error) override;
  NcclResult GroupStart() override;
  NcclResult GroupEnd() override;
  NcclResult AllReduce(const void* send, void* receive, size_t count,
                       ElementType type, ElementOp op, NcclComm comm,
                       DeviceStream stream) override;
  NcclResult Broadcast(const void* send, void* receive, size_t count,
                       ElementType type, int root, NcclComm comm,
                       DeviceStream stream) override;
  NcclResult ReduceScatter(const void* send, void* receive, size_t count,
                           ElementType type, ElementOp op, NcclComm comm,
                           DeviceStream stream) override;
  NcclResult AllGather(const void* send, void* receive, size_t count,
                       ElementType type, NcclComm comm,
                       DeviceStream stream) override;
  NcclResult Send(const void* data, size_t count, ElementType type, int peer,
                  NcclComm comm, DeviceStream stream) override;
  NcclResult Receive(void* data, size_t count, ElementType type, int peer,
                     NcclComm comm, DeviceStream stream) override;
  NcclResult MemAlloc(int device, void** memory, size_t bytes) override;
  NcclResult MemFree(int device, void* memory) override;
  NcclResult Register(NcclComm comm, void* memory, size_t bytes,
                      void** registration) override;
  NcclResult Deregister(NcclComm comm, void* registration) override;

 private:
  enum class Kind {
    kAllReduce,
    kBroadcast,
    kReduceScatter,
    kAllGather,
    kSend,
    kReceive
  };
  struct Call {
    Kind kind = Kind::kAllReduce;
    const char* send = nullptr;
    char* receive = nullptr;
    size_t count = 0;
    ElementType type = ElementType::kFloat32;
    ElementOp op = ElementOp::kSum;
    int peer = 0;  // or the root
    size_t bytes() const { return count * SizeOf(type); }
  };
  // What one rank's stream does in one go: a collective, or the messages of a
  // group.
  using Task = std::vector<Call>;
  struct Message {
    const char* data = nullptr;
    size_t bytes = 0;
    bool taken = false;
  };
  struct Meeting {
    std::map<int, Call> calls;  // by rank
    bool done = false;
  };
  struct Comm;
  // The collectives of a communicator that recorded graphs hold. Has a lock of
  // its own, as they go whenever their graph does.
  struct Recorded {
    // One of them, for as long as the result lives.
    static std::shared_ptr<void> Hold(
        const std::shared_ptr<Recorded>& recorded);
    void AwaitNone();

    Mutex mutex;
    CondVar changed;
    int count ABSL_GUARDED_BY(mutex) = 0;
  };
  // The ranks that share an id.
  struct World {
    int size = 0;
    size_t ids = 0;
    std::map<int, std::shared_ptr<Comm>> members;
    std::map<int64_t, std::shared_ptr<Meeting>> meetings;
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> mail;
  };
  struct Comm {
    int rank = 0;
    int size = 0;
    int device = 0;
    World* world = nullptr;
    NcclResult error = NcclResult::kSuccess;
    int polls = 0;
    // Calls that are in progress, with their streams.
    std::vector<std::pair<DeviceStream, Task>> unissued;
    int64_t next_meeting = 0;
    bool finalizing = false;
    bool aborted = false;
    bool gone = false;  // aborted or destroyed
    const std::shared_ptr<Recorded> recorded = std::make_shared<Recorded>();
  };
  using CommPtr = std::shared_ptr<Comm>;
  struct Group;

  static Group& ThisGroup();
  NcclResult Init(NcclComm* comm, const NcclRank& rank,
                  const std::vector<NcclUniqueId>& ids);
  NcclResult Collective(const Call& call, NcclComm comm, DeviceStream stream);
  // The rest is called with the lock held.
  CommPtr Find(NcclComm comm) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NcclComm Keep(CommPtr comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Ready(const Comm& comm) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NcclResult Post(const CommPtr& comm, DeviceStream stream, Task task)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Issue(const CommPtr& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(const CommPtr& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AwaitOthers(Comm* comm, const std::function<bool()>& done,
                   const std::function<bool(int rank)>& awaited)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On the threads of streams.
  void Run(const CommPtr& comm, const Task& task);
  void Meet(Comm* comm, const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Exchange(Comm* comm, const Task& task)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool Agree(const Meeting& meeting);
  static void Compute(const Meeting& meeting, int size);

  const int version_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::set<NcclFeature> removed_ ABSL_GUARDED_BY(mutex_);
  NcclResult init_result_ ABSL_GUARDED_BY(mutex_) = NcclResult::kSuccess;
  bool init_later_ ABSL_GUARDED_BY(mutex_) = false;
  bool hang_init_ ABSL_GUARDED_BY(mutex_) = false;
  bool hold_aborts_ ABSL_GUARDED_BY(mutex_) = false;
  bool hold_finalize_ ABSL_GUARDED_BY(mutex_) = false;
  bool fail_allocations_ ABSL_GUARDED_BY(mutex_) = false;
  int polls_ ABSL_GUARDED_BY(mutex_) = 0;
  int held_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::map<NcclUniqueId, World*> worlds_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<World>> all_worlds_ ABSL_GUARDED_BY(mutex_);
  std::map<NcclComm, CommPtr> comms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_EMULATED_EMULATED_NCCL_H_
