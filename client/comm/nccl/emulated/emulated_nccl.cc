#include "client/comm/nccl/emulated/emulated_nccl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/reduce_elements.h"
#include "client/device/emulated/emulated_runtime.h"
#include "client/device/emulated/emulated_stream.h"

namespace coxswain {
namespace {

// Above what any test waits for.
constexpr absl::Duration kLong = absl::Hours(1);
constexpr size_t kAlignment = 256;

}  // namespace

// What a thread has called since its GroupStart.
struct EmulatedNccl::Group {
  int depth = 0;
  NcclResult error = NcclResult::kSuccess;
  NcclComm comm = nullptr;
  DeviceStream stream = nullptr;
  Task task;
};

EmulatedNccl::Group& EmulatedNccl::ThisGroup() {
  thread_local Group group;
  return group;
}

EmulatedNccl::~EmulatedNccl() {
  HoldAborts(false);
  HoldFinalize(false);
  MutexLock lock(&mutex_);
  const bool none_held = changed_.WaitFor(
      &mutex_, absl::Minutes(1),
      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return held_ == 0; });
  COXSWAIN_CHECK(none_held);
}

void EmulatedNccl::Remove(NcclFeature feature) {
  MutexLock lock(&mutex_);
  removed_.insert(feature);
}
void EmulatedNccl::FailInit(NcclResult result, bool later) {
  MutexLock lock(&mutex_);
  init_result_ = result;
  init_later_ = later;
}
void EmulatedNccl::HangInit(bool hang) {
  MutexLock lock(&mutex_);
  hang_init_ = hang;
}
void EmulatedNccl::SetPolls(int polls) {
  MutexLock lock(&mutex_);
  polls_ = polls;
}
void EmulatedNccl::InjectError(int device, NcclResult error) {
  MutexLock lock(&mutex_);
  for (const auto& [handle, comm] : comms_) {
    if (comm->device == device) comm->error = error;
  }
}
void EmulatedNccl::HoldAborts(bool hold) {
  MutexLock lock(&mutex_);
  hold_aborts_ = hold;
  changed_.NotifyAll();
}
void EmulatedNccl::HoldFinalize(bool hold) {
  MutexLock lock(&mutex_);
  hold_finalize_ = hold;
}
void EmulatedNccl::FailMemAlloc(bool fail) {
  MutexLock lock(&mutex_);
  fail_allocations_ = fail;
}
EmulatedNccl::Counts EmulatedNccl::counts() const {
  MutexLock lock(&mutex_);
  Counts counts = counts_;
  counts.communicators = static_cast<int>(comms_.size());
  return counts;
}

bool EmulatedNccl::has(NcclFeature feature) const {
  const int since = feature == NcclFeature::kInitRankScalable ? 22300 : 21900;
  MutexLock lock(&mutex_);
  return version_ >= since && removed_.count(feature) == 0;
}

std::string EmulatedNccl::LastError(NcclComm) { return "emulated"; }

NcclResult EmulatedNccl::GetUniqueId(NcclUniqueId* id) {
  MutexLock lock(&mutex_);
  id->fill(0);
  ++last_id_;
  std::memcpy(id->data(), &last_id_, sizeof(last_id_));
  return NcclResult::kSuccess;
}

EmulatedNccl::CommPtr EmulatedNccl::Find(NcclComm comm) const {
  const auto found = comms_.find(comm);
  // Using a communicator that is gone is memory that was freed, with NCCL.
  COXSWAIN_CHECK(found != comms_.end());
  return found->second;
}

NcclComm EmulatedNccl::Keep(CommPtr comm) {
  auto* const handle = reinterpret_cast<NcclComm>(comm.get());
  comms_[handle] = std::move(comm);
  return handle;
}

NcclResult EmulatedNccl::InitRank(NcclComm* comm, const NcclRank& rank,
                                  const NcclUniqueId& id) {
  return Init(comm, rank, {id});
}

NcclResult EmulatedNccl::InitRankScalable(
    NcclComm* comm, const NcclRank& rank,
    const std::vector<NcclUniqueId>& ids) {
  if (!has(NcclFeature::kInitRankScalable) || ids.empty()) {
    return NcclResult::kInvalidUsage;
  }
  return Init(comm, rank, ids);
}

NcclResult EmulatedNccl::Init(NcclComm* comm, const NcclRank& rank,
                              const std::vector<NcclUniqueId>& ids) {
  MutexLock lock(&mutex_);
  if (init_result_ != NcclResult::kSuccess && !init_later_) return init_result_;
  World*& world = worlds_[ids[0]];
  if (world == nullptr) {
    all_worlds_.push_back(std::make_unique<World>());
    world = all_worlds_.back().get();
    world->size = rank.size;
    world->ids = ids.size();
  }
  const bool fits = world->size == rank.size && world->ids == ids.size();
  if (!fits || world->members.count(rank.rank) > 0) {
    return NcclResult::kInvalidUsage;
  }
  ++(ids.size() > 1 ? counts_.scalable_inits : counts_.inits);
  auto made = std::make_shared<Comm>();
  made->rank = rank.rank;
  made->size = rank.size;
  made->device = rank.device;
  made->world = world;
  made->error = init_result_;
  made->polls = polls_;
  world->members[rank.rank] = made;
  *comm = Keep(std::move(made));
  return NcclResult::kInProgress;
}

bool EmulatedNccl::Ready(const Comm& comm) const {
  if (comm.polls > 0 || comm.finalizing || !comm.unissued.empty()) {
    return false;
  }
  return static_cast<int>(comm.world->members.size()) == comm.size;
}

NcclResult EmulatedNccl::GetAsyncError(NcclComm handle, NcclResult* error) {
  MutexLock lock(&mutex_);
  const CommPtr comm = Find(handle);
  *error = comm->error;
  if (comm->error != NcclResult::kSuccess) return NcclResult::kSuccess;
  *error = NcclResult::kInProgress;
  const bool joined =
      static_cast<int>(comm->world->members.size()) == comm->size;
  if (!joined || hang_init_) return NcclResult::kSuccess;
  if (comm->finalizing && hold_finalize_) return NcclResult::kSuccess;
  if (comm->polls > 0) {
    if (--comm->polls == 0) Issue(comm);
    return NcclResult::kSuccess;
  }
  *error = NcclResult::kSuccess;
  return NcclResult::kSuccess;
}

NcclResult EmulatedNccl::Finalize(NcclComm handle) {
  MutexLock lock(&mutex_);
  const CommPtr comm = Find(handle);
  if (!Ready(*comm)) return NcclResult::kInvalidUsage;
  comm->finalizing = true;
  comm->polls = polls_;
  return NcclResult::kInProgress;
}

void EmulatedNccl::Leave(const CommPtr& comm) {
  comm->gone = true;
  comms_.erase(reinterpret_cast<NcclComm>(comm.get()));
  changed_.NotifyAll();
}

NcclResult EmulatedNccl::Destroy(NcclComm handle) {
  MutexLock lock(&mutex_);
  const CommPtr comm = Find(handle);
  ++counts_.destroys;
  Leave(comm);
  return comm->finalizing ? NcclResult::kSuccess : NcclResult::kInvalidUsage;
}

NcclResult EmulatedNccl::Abort(NcclComm handle) {
  CommPtr comm;
  {
    MutexLock lock(&mutex_);
    comm = Find(handle);
    ++counts_.aborts;
    ++held_;
    changed_.WaitFor(&mutex_, kLong, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return !hold_aborts_;
    });
    comm->aborted = true;
    comm->unissued.clear();
    changed_.NotifyAll();
  }
  comm->recorded->AwaitNone();
  MutexLock lock(&mutex_);
  --held_;
  Leave(comm);
  return NcclResult::kSuccess;
}

std::shared_ptr<void> EmulatedNccl::Recorded::Hold(
    const std::shared_ptr<Recorded>& recorded) {
  MutexLock lock(&recorded->mutex);
  ++recorded->count;
  return {recorded.get(), [recorded](void*) {
            MutexLock lock(&recorded->mutex);
            --recorded->count;
            recorded->changed.NotifyAll();
          }};
}

void EmulatedNccl::Recorded::AwaitNone() {
  MutexLock lock(&mutex);
  changed.WaitFor(&mutex, kLong, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return count == 0;
  });
}

NcclResult EmulatedNccl::GroupStart() {
  ++ThisGroup().depth;
  return NcclResult::kSuccess;
}

NcclResult EmulatedNccl::GroupEnd() {
  Group& group = ThisGroup();
  if (group.depth == 0) return NcclResult::kInvalidUsage;
  if (--group.depth > 0) return NcclResult::kSuccess;
  const Group whole = std::exchange(group, Group());
  if (whole.error != NcclResult::kSuccess) return whole.error;
  if (whole.task.empty()) return NcclResult::kSuccess;
  MutexLock lock(&mutex_);
  return Post(Find(whole.comm), whole.stream, whole.task);
}

NcclResult EmulatedNccl::Collective(const Call& call, NcclComm comm,
                                    DeviceStream stream) {
  Group& group = ThisGroup();
  const bool message = call.kind == Kind::kSend || call.kind == Kind::kReceive;
  if (group.depth > 0) {
    const bool other =
        group.comm != nullptr && (group.comm != comm || group.stream != stream);
    // As much as this library does with groups.
    if (!message || other) group.error = NcclResult::kInvalidUsage;
    group.comm = comm;
    group.stream = stream;
    group.task.push_back(call);
    return group.error;
  }
  MutexLock lock(&mutex_);
  return Post(Find(comm), stream, {call});
}

NcclResult EmulatedNccl::Post(const CommPtr& comm, DeviceStream stream,
                              Task task) {
  if (comm->error != NcclResult::kSuccess) return comm->error;
  if (!Ready(*comm)) return NcclResult::kInvalidUsage;
  comm->unissued.emplace_back(stream, std::move(task));
  comm->polls = polls_;
  if (polls_ > 0) return NcclResult::kInProgress;
  Issue(comm);
  return NcclResult::kSuccess;
}

void EmulatedNccl::Issue(const CommPtr& comm) {
  for (auto& [stream, task] : comm->unissued) {
    auto* const host =
        static_cast<EmulatedStream*>(EmulatedRuntime::HostStreamOf(stream));
    std::shared_ptr<void> hold;
    if (host->capturing()) hold = Recorded::Hold(comm->recorded);
    host->Enqueue(
        [this, comm, hold, task = std::move(task)] { Run(comm, task); });
  }
  comm->unissued.clear();
}

void EmulatedNccl::Run(const CommPtr& comm, const Task& task) {
  MutexLock lock(&mutex_);
  if (comm->aborted) return;
  const Kind kind = task[0].kind;
  if (kind == Kind::kSend || kind == Kind::kReceive) {
    Exchange(comm.get(), task);
  } else {
    Meet(comm.get(), task[0]);
  }
}

// False if the rank was aborted first. A rank that is awaited and gone is
// reported, and waited for all the same.
bool EmulatedNccl::AwaitOthers(Comm* comm, const std::function<bool()>& done,
                               const std::function<bool(int rank)>& awaited) {
  changed_.WaitFor(&mutex_, kLong, [&] {
    if (done() || comm->aborted) return true;
    for (const auto& [rank, member] : comm->world->members) {
      if (member->gone && awaited(rank) &&
          comm->error == NcclResult::kSuccess) {
        comm->error = NcclResult::kRemoteError;
      }
    }
    return false;
  });
  return done();
}

void EmulatedNccl::Meet(Comm* comm, const Call& call) {
  World& world = *comm->world;
  const int64_t number = comm->next_meeting++;
  std::shared_ptr<Meeting>& place = world.meetings[number];
  if (place == nullptr) place = std::make_shared<Meeting>();
  const std::shared_ptr<Meeting> meeting = place;
  meeting->calls[comm->rank] = call;
  if (static_cast<int>(meeting->calls.size()) == world.size) {
    world.meetings.erase(number);
    if (Agree(*meeting)) {
      Compute(*meeting, world.size);
      ++counts_.collectives;
      meeting->done = true;
      changed_.NotifyAll();
      return;
    }
    for (const auto& [rank, member] : world.members) {
      member->error = NcclResult::kInternalError;
    }
  }
  const auto done = [&] { return meeting->done; };
  const auto awaited = [&](int rank) {
    return meeting->calls.count(rank) == 0;
  };
  // The memory of a rank that has left must not be read or written.
  if (!AwaitOthers(comm, done, awaited)) meeting->calls.erase(comm->rank);
}

bool EmulatedNccl::Agree(const Meeting& meeting) {
  const Call& first = meeting.calls.begin()->second;
  for (const auto& [rank, call] : meeting.calls) {
    if (call.kind != first.kind || call.count != first.count ||
        call.type != first.type || call.op != first.op ||
        call.peer != first.peer) {
      return false;
    }
  }
  return true;
}

void EmulatedNccl::Compute(const Meeting& meeting, int size) {
  const Call& first = meeting.calls.at(0);
  const size_t bytes = first.bytes();
  const size_t slices =
      first.kind == Kind::kReduceScatter || first.kind == Kind::kAllGather
          ? static_cast<size_t>(size)
          : 1;
  // The whole of it, which each rank gets or of which it gets its slice.
  std::vector<char> all(bytes * slices);
  if (first.kind == Kind::kBroadcast) {
    std::memcpy(all.data(), meeting.calls.at(first.peer).send, bytes);
  } else if (first.kind == Kind::kAllGather) {
    for (const auto& [rank, call] : meeting.calls) {
      std::memcpy(all.data() + static_cast<size_t>(rank) * bytes, call.send,
                  bytes);
    }
  } else {
    std::memcpy(all.data(), first.send, all.size());
    for (int rank = 1; rank < size; ++rank) {
      ReduceElements(first.type, first.op, all.data(), all.data(),
                     meeting.calls.at(rank).send, first.count * slices);
    }
  }
  for (const auto& [rank, call] : meeting.calls) {
    const bool slice = call.kind == Kind::kReduceScatter;
    std::memcpy(call.receive,
                all.data() + (slice ? static_cast<size_t>(rank) * bytes : 0),
                slice ? bytes : all.size());
  }
}

void EmulatedNccl::Exchange(Comm* comm, const Task& task) {
  World& world = *comm->world;
  std::vector<std::shared_ptr<Message>> sent;
  for (const Call& call : task) {
    if (call.kind != Kind::kSend) continue;
    sent.push_back(std::make_shared<Message>());
    sent.back()->data = call.send;
    sent.back()->bytes = call.bytes();
    world.mail[{comm->rank, call.peer}].push_back(sent.back());
  }
  changed_.NotifyAll();
  bool well = true;
  for (const Call& call : task) {
    if (call.kind != Kind::kReceive || !well) continue;
    auto& mail = world.mail[{call.peer, comm->rank}];
    well = AwaitOthers(
        comm, [&] { return !mail.empty(); },
        [&](int rank) { return rank == call.peer; });
    if (!well) break;
    const std::shared_ptr<Message> message = mail.front();
    mail.pop_front();
    if (message->bytes == call.bytes()) {
      std::memcpy(call.receive, message->data, message->bytes);
    } else {
      comm->error = NcclResult::kInternalError;
    }
    message->taken = true;
    changed_.NotifyAll();
  }
  const auto all_taken = [&] {
    return std::all_of(sent.begin(), sent.end(),
                       [](const auto& one) { return one->taken; });
  };
  if (well) well = AwaitOthers(comm, all_taken, [](int) { return true; });
  if (well) return;
  for (auto& [way, mail] : world.mail) {
    if (way.first == comm->rank) mail.clear();
  }
}

NcclResult EmulatedNccl::AllReduce(const void* send, void* receive,
                                   size_t count, ElementType type, ElementOp op,
                                   NcclComm comm, DeviceStream stream) {
  return Collective({Kind::kAllReduce, static_cast<const char*>(send),
                     static_cast<char*>(receive), count, type, op, 0},
                    comm, stream);
}
NcclResult EmulatedNccl::Broadcast(const void* send, void* receive,
                                   size_t count, ElementType type, int root,
                                   NcclComm comm, DeviceStream stream) {
  return Collective(
      {Kind::kBroadcast, static_cast<const char*>(send),
       static_cast<char*>(receive), count, type, ElementOp::kSum, root},
      comm, stream);
}
NcclResult EmulatedNccl::ReduceScatter(const void* send, void* receive,
                                       size_t count, ElementType type,
                                       ElementOp op, NcclComm comm,
                                       DeviceStream stream) {
  return Collective({Kind::kReduceScatter, static_cast<const char*>(send),
                     static_cast<char*>(receive), count, type, op, 0},
                    comm, stream);
}
NcclResult EmulatedNccl::AllGather(const void* send, void* receive,
                                   size_t count, ElementType type,
                                   NcclComm comm, DeviceStream stream) {
  return Collective(
      {Kind::kAllGather, static_cast<const char*>(send),
       static_cast<char*>(receive), count, type, ElementOp::kSum, 0},
      comm, stream);
}
NcclResult EmulatedNccl::Send(const void* data, size_t count, ElementType type,
                              int peer, NcclComm comm, DeviceStream stream) {
  return Collective({Kind::kSend, static_cast<const char*>(data), nullptr,
                     count, type, ElementOp::kSum, peer},
                    comm, stream);
}
NcclResult EmulatedNccl::Receive(void* data, size_t count, ElementType type,
                                 int peer, NcclComm comm, DeviceStream stream) {
  return Collective({Kind::kReceive, nullptr, static_cast<char*>(data), count,
                     type, ElementOp::kSum, peer},
                    comm, stream);
}

NcclResult EmulatedNccl::MemAlloc(int, void** memory, size_t bytes) {
  MutexLock lock(&mutex_);
  if (fail_allocations_) return NcclResult::kUnhandledCudaError;
  *memory = std::aligned_alloc(
      kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  ++counts_.allocated;
  return NcclResult::kSuccess;
}
NcclResult EmulatedNccl::MemFree(int, void* memory) {
  MutexLock lock(&mutex_);
  std::free(memory);
  --counts_.allocated;
  return NcclResult::kSuccess;
}
NcclResult EmulatedNccl::Register(NcclComm comm, void* memory, size_t,
                                  void** registration) {
  MutexLock lock(&mutex_);
  if (!Ready(*Find(comm))) return NcclResult::kInvalidUsage;
  *registration = memory;
  ++counts_.registered;
  return NcclResult::kSuccess;
}
NcclResult EmulatedNccl::Deregister(NcclComm comm, void*) {
  MutexLock lock(&mutex_);
  if (!Ready(*Find(comm))) return NcclResult::kInvalidUsage;
  --counts_.registered;
  return NcclResult::kSuccess;
}

}  // namespace coxswain
